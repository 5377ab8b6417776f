"""Fails when a public name has no entry in the built site.

    python docs/check_names.py build/docs/doxygen/xml out/docs/html/objects.inv

C++: every public member of namespace topkv in doxygen's XML (tables of contents, not what breathe
made of them). Python: what the packages' `__all__` and the stubs' classes say, read as source.
"""

import ast
import pathlib
import sys
from xml.etree import ElementTree

from sphinx.util.inventory import InventoryFile

PACKAGE = pathlib.Path(__file__).parent.parent / "bindings/topkv"
# A module of the site, where its __all__ stands, and the stub that says what classes have.
MODULES = (
    ("topkv", "__init__.py", "_core.pyi"),
    ("topkv.eval", "eval/__init__.py", "eval/_core.pyi"),
    ("topkv.hf", "hf/__init__.py", None),
    ("topkv.mass", "mass.py", None),
    ("topkv.plot", "plot.py", None),
)


def cpp_names(xml):
    names = set()
    for path in sorted(xml.glob("*.xml")):
        root = ElementTree.parse(path).getroot()
        for compound in root.findall("compounddef"):
            name = compound.findtext("compoundname")
            if compound.get("prot", "public") != "public" or name.split("::")[0] != "topkv":
                continue
            if compound.get("kind") in ("class", "struct"):
                names.add(name)
            for member in compound.iter("memberdef"):
                if member.get("prot") != "public" or member.get("kind") == "friend":
                    continue
                member_name = f"{name}::{member.findtext('name')}"
                names.add(member_name)
                for value in member.findall("enumvalue"):
                    names.add(f"{member_name}::{value.findtext('name')}")
    return names


def python_names():
    # Modules imported on demand are listed by the package itself: a new one must be listed here.
    names = {f"topkv.{module}" for module in _assigned(PACKAGE / "__init__.py", "_ON_DEMAND")}
    if unlisted := names - {module for module, _, _ in MODULES}:
        raise SystemExit(f"check_names: add to MODULES of {__file__}: {sorted(unlisted)}")
    for module, exported_in, stub in MODULES:
        names.add(module)
        exported = _assigned(PACKAGE / exported_in, "__all__")
        names |= {f"{module}.{name}" for name in exported}
        if stub is not None:
            names |= {
                f"{module}.{name}"
                for name in _members(PACKAGE / stub)
                if name.split(".")[0] in exported
            }
    return names


def _assigned(path, name):
    for statement in ast.parse(path.read_text()).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == name:
            return ast.literal_eval(statement.value)
    raise SystemExit(f"check_names: {path} has no {name}, which says what is public; add it")


def _members(path):
    """Public functions, properties and fields of the classes of a stub."""
    for scope in ast.parse(path.read_text()).body:
        if not isinstance(scope, ast.ClassDef):
            continue
        for member in scope.body:
            if isinstance(member, ast.FunctionDef):
                name = member.name
            elif isinstance(member, ast.AnnAssign):
                name = member.target.id
            else:
                continue
            if not name.startswith("_"):
                yield f"{scope.name}.{name}"


def main():
    xml, inventory = map(pathlib.Path, sys.argv[1:])
    found = InventoryFile.loads(inventory.read_bytes(), uri="").data
    documented = {
        domain: {name for kind, names in found.items() if kind.startswith(domain) for name in names}
        for domain in ("cpp:", "py:")
    }
    wanted = {"cpp:": cpp_names(xml), "py:": python_names()}
    for domain, names in wanted.items():
        if not names:
            raise SystemExit(f"check_names: found no public names of {domain} in the sources")
    missing = sorted(
        name for domain, names in wanted.items() for name in names - documented[domain]
    )
    if missing:
        raise SystemExit(
            f"check_names: {len(missing)} public names have no entry on the site: "
            + ", ".join(missing)
        )
    print(f"check_names: all {sum(map(len, wanted.values()))} public names are on the site")


if __name__ == "__main__":
    main()
