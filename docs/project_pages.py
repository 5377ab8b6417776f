"""Pages that are made of what lies outside of docs/, and links to it.

Written below docs/ before Sphinx looks for pages, and not kept in the repository:
- project/*.md, the texts at the repository's root
- reference/cpp/*.md, one for each public header: its opening comment, then what it declares

Pages link to files of the repository by relative paths, so that they can be read on its web page.
On the site a link to a page's source becomes one to the page, one to another file or folder becomes
its text, and one to what does not exist is a warning, which fails the build.
"""

import os
import pathlib

import header_pages
from docutils import nodes
from sphinx import addnodes
from sphinx.transforms import SphinxTransform
from sphinx.util import logging

TEXTS = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
HEADERS = pathlib.PurePath("include/topkv")
LOGGER = logging.getLogger(__name__)


def setup(app, root, doxygen_xml):
    pages = {root / text: f"project/{pathlib.Path(text).stem.lower()}" for text in TEXTS}
    headers = sorted((root / HEADERS).glob("*.h"))
    pages |= {header: f"reference/cpp/{header.stem}" for header in headers}

    declarations = header_pages.Declarations(doxygen_xml)
    wanted = {}
    for source, docname in pages.items():
        text = source.read_text()
        wanted[root / "docs" / f"{docname}.md"] = (
            text if source.suffix == ".md" else header_pages.page(source.name, text, declarations)
        )
    for folder in {page.parent for page in wanted}:
        folder.mkdir(parents=True, exist_ok=True)
        for old in set(folder.glob("*.md")) - set(wanted):
            old.unlink()
    for page, text in wanted.items():
        if not page.exists() or page.read_text() != text:  # else Sphinx would read it again
            page.write_text(text)

    Links.root = root
    Links.pages = pages
    app.add_transform(Links)


class Links(SphinxTransform):
    """Gives each relative link of a Markdown page what it leads to on the site."""

    default_priority = 200
    root: pathlib.Path
    pages: dict[pathlib.Path, str]

    def apply(self, **kwargs):
        base = self.root / "docs"
        for source, docname in self.pages.items():
            if docname == self.env.docname:
                base = source.parent
        links = [*self.document.findall(addnodes.pending_xref)]
        links += self.document.findall(addnodes.download_reference)
        for link in links:
            if link.get("reftype") == "myst":
                self._resolve(link, self._folder(base))
        if base == self.root:  # a page from there: its pictures are below docs/, too
            for image in self.document.findall(nodes.image):
                image["uri"] = "/" + image["uri"].removeprefix("docs/")

    def _folder(self, base):
        """Where the page's source lies: below docs/ as its name says, or at the root."""
        if base != self.root / "docs":
            return base
        return (base / self.env.docname).parent

    def _resolve(self, link, folder):
        target = link["reftarget"]
        if link.get("refdomain") == "doc":  # a Markdown file, by its path without the suffix
            file = pathlib.Path(os.path.normpath(self.root / "docs" / f"{target}.md"))
            anchor = link["reftargetid"]
        else:
            path, _, anchor = target.partition("#")
            if not path:  # a title of this page: myst's own to find
                return
            file = pathlib.Path(os.path.normpath(folder / path))
        docname = self.pages.get(file)
        if docname is None and file.suffix == ".md" and file.is_relative_to(self.root / "docs"):
            docname = file.relative_to(self.root / "docs").with_suffix("").as_posix()
        if docname is not None and file.exists():
            page = addnodes.pending_xref(
                refdomain="doc", reftarget=docname, reftargetid=anchor or None, reftype="myst",
                refdoc=self.env.docname, refexplicit=link["refexplicit"],
            )  # fmt: skip
            page.source, page.line = link.source, link.line
            page += link.children
            link.replace_self(page)
        elif file.exists() and file.is_relative_to(self.root):
            shown = nodes.inline("", "", *link.children, classes=["repository-file"])
            shown["title"] = file.relative_to(self.root).as_posix()
            link.replace_self(shown)
        else:
            LOGGER.warning("no such file in the repository: %s", target, location=link)
