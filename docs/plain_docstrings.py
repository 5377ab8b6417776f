"""topkv's docstrings are plain text with `code` in it; Sphinx reads reStructuredText.

Paragraphs whose every line is indented are code; all else is text in which nothing means something
but backticks and *emphasis*.
"""

import re
import textwrap


def setup(app):
    app.connect("autodoc-process-docstring", _process)


def _process(app, what, name, obj, options, lines):
    lines[:] = to_rst("\n".join(lines)).splitlines()


def to_rst(docstring):
    blocks = re.split(r"\n[ \t]*\n", docstring.strip("\n"))
    return "\n\n".join(_block(block) for block in blocks if block.strip()) + "\n"


def _block(block):
    lines = block.splitlines()
    if all(line.startswith("  ") for line in lines):
        return "::\n\n" + textwrap.indent(textwrap.dedent(block), "    ")
    if any(line.lstrip().startswith("- ") for line in lines):
        return "\n".join(map(_text, _items(lines)))
    # On one line, for summaries are a docstring's first.
    return _text(" ".join(line.strip() for line in lines))


def _items(lines):
    """The items of a list, each on one line."""
    items = []
    for line in map(str.strip, lines):
        if line.startswith("- ") or not items:
            items.append(line)
        else:
            items[-1] += " " + line
    return items


def _text(line):
    """Escapes what is neither code nor *emphasis*."""
    parts = re.split(r"`+([^`]+)`+", re.sub(":+$", ":", line))
    for i, part in enumerate(parts):
        parts[i] = f"``{part}``" if i % 2 else re.sub(r"(\*\w+\*)|([\\*|_])", _escaped, part)
    return "".join(parts)


def _escaped(match):
    return match[1] or "\\" + match[2]
