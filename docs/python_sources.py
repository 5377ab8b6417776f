"""The Python package as its users see it, for sphinx-autoapi, which reads sources.

What topkv re-exports of its compiled module has the names topkv.Context and so on: in the copy that
is read, the stub of the module is the package's own.
"""

import shutil

PAGES = ("topkv", "topkv.eval", "topkv.hf", "topkv.mass", "topkv.plot")


def setup(app, root, copy):
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(
        root / "bindings/topkv", copy, ignore=shutil.ignore_patterns("__pycache__", "*.so")
    )
    package = (copy / "__init__.py").read_text()
    docstring = package[: package.index('"""', 3) + 3]
    exported = package[package.index("__all__ = [") : package.index("\n]\n") + 3]
    stub = (copy / "_core.pyi").read_text()
    declared = stub[stub.index('"""', 3) + 3 :]
    (copy / "__init__.pyi").write_text(f"{docstring}\n{declared}\n{exported}")
    (copy / "_core.pyi").unlink()
    app.connect("autoapi-skip-member", _skip)


def _skip(app, what, name, obj, skip, options):
    """Modules without a page: their public names stand on their packages' pages."""
    if name == "topkv.__version__":  # public, though it looks private
        return False
    return True if what in ("module", "package") and name not in PAGES else None
