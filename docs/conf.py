"""Sphinx's configuration of the documentation site; `make docs` builds it."""

import logging
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))  # the modules beside this file

import plain_docstrings
import project_pages
import python_sources

ROOT = pathlib.Path(__file__).parent.parent

project = "topkv"
copyright = "the topkv authors"
version = release = re.search(
    r"^project\(topkv VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text(), re.M
).group(1)

extensions = ["myst_parser", "breathe", "sphinx.ext.autodoc", "autoapi.extension"]
exclude_patterns = ["requirements.txt"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
suppress_warnings = [
    # topkv.eval takes names out of the compiled module, and its stub says what they are.
    "autoapi.python_import_resolution",
    "myst.header",  # titles of a level that a repository's web page shows well
]

# The titles of pages may be linked to as on a repository's web page.
myst_heading_anchors = 4

# C++: from the comments of the public headers, by way of doxygen's XML.
DOXYGEN_XML = ROOT / "build/docs/doxygen/xml"
breathe_projects = {"topkv": str(DOXYGEN_XML)}
breathe_default_project = "topkv"
primary_domain = "cpp"
highlight_language = "none"

# Python: read, never imported, for the compiled module need not be there.
autoapi_dirs = [str(ROOT / "build/docs/python/topkv")]
autoapi_file_patterns = ["*.pyi", "*.py"]
autoapi_root = "reference/python"
autoapi_add_toctree_entry = False
autoapi_member_order = "bysource"
autoapi_own_page_level = "module"
autoapi_options = ["members", "undoc-members", "imported-members", "show-module-summary"]
autodoc_typehints = "signature"

html_theme = "furo"
html_title = f"topkv {release}"
html_copy_source = False
html_static_path = ["images/site.css"]
html_css_files = ["site.css"]

# A pattern of pages may match none yet. The warning has no type, so suppress_warnings has no name for it.
logging.getLogger("sphinx.sphinx.directives.other").addFilter(
    lambda record: getattr(record, "subtype", None) != "empty_glob"
)


def setup(app):
    project_pages.setup(app, ROOT, DOXYGEN_XML)
    python_sources.setup(app, ROOT, ROOT / "build/docs/python/topkv")
    plain_docstrings.setup(app)
