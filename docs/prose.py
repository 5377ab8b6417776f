"""The text of pages, public headers and help texts, block by block.

A block is a line number, a text, and whether the text is prose: a paragraph, a list item or a comment.
Headings and the cells of tables are blocks too. Inline code becomes one word; code blocks are left out.
"""

import re

from markdown_it import MarkdownIt

MARKDOWN = MarkdownIt("commonmark").enable("table")
COMMENT = re.compile(r"(?P<code>.*?)(?<![:\"])(?P<marker>//+<?) ?(?P<text>.*)$")
# Comments are Markdown, but for lines indented by two spaces that no list item begins: plain text.
COMMENT_PARTS = re.compile(
    r"(?P<markdown>(?:^(?:(?:-|\*|\d\.) .*(?:\n  .*)*|(?!  ).*)\n?)+)|(?P<plain>(?:^  .*\n?)+)", re.M
)
DEFINITION = re.compile(r" {1,6}(?P<term>\S+(?: \S+)*)(?: {2,}(?P<text>\S.*))?$")


def markdown(text, line=1):
    r"""Blocks of a Markdown text.

    >>> list(markdown("# A title\n\nSee [a page](p.md), `f(x, y)`.\n\n    code\n\n| a |\n| - |\n| b c |"))
    [(1, 'A title', False), (3, 'See a page, `code`.', True), (7, 'a', False), (9, 'b c', False)]
    """
    kind, lines = "", (0, 0)
    for token in MARKDOWN.parse(text):
        lines = token.map or lines
        if token.type == "inline":
            shown = "".join(map(_shown, token.children))
            yield line + lines[0], shown, kind == "paragraph_open"
        kind = token.type


def _shown(part):
    if part.type in ("softbreak", "hardbreak"):
        return "\n"
    return {"code_inline": "`code`", "html_inline": ""}.get(part.type, part.content)


def plain(text, line=1):
    r"""Blocks of a plain text: paragraphs, and the definitions of terms in two columns.

    >>> list(plain("usage: topkv x\n\nAsks.\n\nmodel:\n  -m, --model M  its\n                 folder"))
    [(3, 'Asks.', True), (5, 'model:', False), (6, 'its\nfolder', True)]
    """
    block, skipped = None, False
    for number, row in enumerate([*text.split("\n"), ""], line):
        definition = DEFINITION.match(row)
        if block and (not row or definition):
            yield from [tuple(block)] if block[1].strip() else []
            block = None
        skipped = bool(row) and (skipped or row.startswith(("usage:", "examples:")))
        if row and not skipped and block:
            block[1] += "\n" + row.strip()
        elif row and not skipped:
            shown = (definition["text"] or "") if definition else row
            block = [number, shown, bool(definition) or not row.endswith(":")]


def help_page(text):
    """Blocks of a page that shows help texts, each in a fence."""
    for fence in MARKDOWN.parse(text):
        if fence.type == "fence":
            yield from plain(fence.content, fence.map[0] + 2)


def header(text):
    r"""Blocks of a C++ header's comments.

    >>> list(header("/// Rows.\n/// All.\nint a;  ///< one\nint b;  ///< two\n        ///< more"))
    [(1, 'Rows.\nAll.', True), (3, 'one', True), (4, 'two\nmore', True)]
    """
    comments, before = [], None
    for number, row in enumerate(text.split("\n"), 1):
        found = COMMENT.match(row)
        if found and before == found["marker"] and not found["code"].strip():
            comments[-1][1] += "\n" + found["text"]
        elif found:
            comments.append([number, found["text"]])
        before = found and found["marker"]
    for number, comment in comments:
        for part in COMMENT_PARTS.finditer(comment):
            blocks = markdown if part["markdown"] is not None else plain
            yield from blocks(part[0], number + comment[: part.start()].count("\n"))
