#!/usr/bin/env python3
"""Writes src/text/unicode/unicode_additions.cc: which characters the `tokenizers` library puts into a
general category and PCRE2 10.42 (Unicode 14) does not.

Needs a Python whose unicodedata is of Unicode 14 (3.11), and the tokenizers package to compare with.
Run from the root of the repository.
"""

import unicodedata

from tokenizers import Regex, pre_tokenizers

CATEGORIES = "Ll Lm Lo Lt Lu Mc Me Mn Nd Nl No Pc Pd Pe Pf Pi Po Ps Sc Sk Sm So Zl Zp Zs Cc".split()

HEAD = """// Written by tools/make_unicode_additions.py. Do not edit.
#include "src/text/unicode/unicode_additions.h"

namespace topkv {
namespace {

constexpr UnicodeRange ranges[] = {
"""
TAIL = """};

}  // namespace

std::span<const UnicodeRange> unicode_additions() { return ranges; }

}  // namespace topkv
"""


def in_category(character: str, splitter: pre_tokenizers.Split) -> bool:
    # A match and a gap look the same when alone. Doubled, matches are two pieces and a gap is one.
    return len(splitter.pre_tokenize_str(character * 2)) == 2


def main() -> None:
    assert unicodedata.unidata_version.startswith("14."), unicodedata.unidata_version
    rows = []
    for category in CATEGORIES:
        splitter = pre_tokenizers.Split(Regex(r"\p{%s}" % category), "isolated")
        ranges = []
        for code_point in range(0x110000):
            if 0xD800 <= code_point < 0xE000:
                continue
            character = chr(code_point)
            if unicodedata.category(character) == category or not in_category(character, splitter):
                continue
            if ranges and ranges[-1][1] == code_point - 1:
                ranges[-1][1] = code_point
            else:
                ranges.append([code_point, code_point])
        rows += [(first, last, category) for first, last in ranges]
    rows.sort()
    cells = [f'{{0x{first:x}, 0x{last:x}, "{category}"}},' for first, last, category in rows]
    with open("src/text/unicode/unicode_additions.cc", "w", encoding="utf-8") as out:
        out.write(HEAD)
        for i in range(0, len(cells), 3):
            out.write("    " + " ".join(cells[i : i + 3]) + "\n")
        out.write(TAIL)


if __name__ == "__main__":
    main()
