"""Pages of the C++ reference, Markdown with breathe's directives, from doxygen's XML."""

import pathlib
import re
from xml.etree import ElementTree

DIRECTIVES = {"enum": "enum", "function": "function", "typedef": "typedef", "variable": "variable"}


class Declarations:
    """What namespace topkv declares, by the header that does; in the headers' order."""

    def __init__(self, xml: pathlib.Path):
        self._of = {}
        index = ElementTree.parse(xml / "index.xml").getroot()
        for compound in index:
            if compound.get("kind") not in ("class", "struct", "namespace"):
                continue
            root = ElementTree.parse(xml / f"{compound.get('refid')}.xml").getroot()[0]
            name = root.findtext("compoundname")
            if compound.get("kind") != "namespace":
                # Those inside of another are on its page with it.
                if root.get("prot") == "public" and name.count("::") == 1:
                    self._add(root, root.get("kind"), name)
            elif name == "topkv":
                for member in root.iter("memberdef"):
                    self._add(member, DIRECTIVES[member.get("kind")], _qualified(member))

    def of(self, header):
        return [declared for _, declared in sorted(self._of.get(header, []))]

    def _add(self, element, directive, name):
        place = element.find("location")
        header = pathlib.PurePath(place.get("file")).name
        self._of.setdefault(header, []).append((int(place.get("line")), (directive, name)))


def _qualified(member):
    """With the types of a function's parameters: it may have others of its name."""
    name = f"topkv::{member.findtext('name')}"
    if member.get("kind") != "function":
        return name
    types = ("".join(param.find("type").itertext()) for param in member.findall("param"))
    return f"{name}({', '.join(types)})"


def page(name, text, declarations):
    """The header's opening comment, whose indented lines are code, then what it declares."""
    comment = []
    for line in text.splitlines():
        if not line.startswith("//"):
            break
        line = line.removeprefix("//").removeprefix(" ")
        if re.match(r"[A-Z][a-z]+: ", line):  # "Threads: …" is a paragraph of its own
            comment.append("")
        comment.append("  " + line if line.startswith("  ") else line)
    lines = [f"# {name}", "", f"`#include <topkv/{name}>`", "", *comment, ""]
    for directive, declared in declarations.of(name):
        lines += [f"```{{doxygen{directive}}} {declared}"]
        if directive in ("class", "struct"):
            lines += [":members:", ":undoc-members:"]
        lines += ["```", ""]
    return "\n".join(lines)
