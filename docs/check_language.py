"""Fails when a page, a public header or a help text has long sentences or banned constructions.

    python docs/check_language.py                 # what `make docs` runs
    python docs/check_language.py docs/howto-chat.md  # prints every finding in these files
    python docs/check_language.py --means         # prints the mean words a sentence of each file
    python docs/check_language.py --shrink        # takes what was mended off the list of exceptions

CONTRIBUTING.md has the rules. docs/language_exceptions.ini counts, for each file, the findings that it
may have. A file with more fails. A file with fewer fails until --shrink has lowered the list, which
never grows. List items, headings and the cells of tables are sentences.
"""

import argparse
import configparser
import pathlib
import re
from collections import Counter, defaultdict

import prose

ROOT = pathlib.Path(__file__).parent.parent
EXCEPTIONS = ROOT / "docs/language_exceptions.ini"
CHECKED = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/**/*.md", "include/topkv/*.h")
COPIES = ("docs/project/", "docs/reference/cpp/", "docs/reference/python/")  # of checked texts
HELP = "docs/reference/command.md"

MOST_WORDS = 35
BEGINNING = re.compile(r"\W*(where|of|what|likewise|so)\s", re.I)
PHRASE = re.compile(
    r"\b(that is none|that are none|(?:is|are|was|were) told|those of|that of|so many|as many"
    r"|all of it|but for|likewise)\b",
    re.I,
)
SENTENCE_END = re.compile(
    r"(?<!al)(?<!e\.g)(?<!i\.e)[.!?][\"”)*]*\s+(?=[\"“(*`]*(?:[A-Z0-9`]|topkv\b))| · "
)


def sentences(text):
    r"""The sentences of a text, each with the number of lines before it.

    >>> list(sentences("By Synk et al. 2025. `k` is\nhow many.\nIt is an int."))
    [(0, 'By Synk et al. 2025.'), (0, '`k` is how many.'), (2, 'It is an int.')]
    """
    start = 0
    for end in [*(found.end() for found in SENTENCE_END.finditer(text)), len(text)]:
        if sentence := " ".join(text[start:end].split()):
            yield text[:start].count("\n"), sentence
        start = end


def word_count(sentence):
    return sum(any(map(str.isalnum, word)) for word in sentence.split())


def findings(sentence):
    """The kinds of what is wrong with a sentence.

    >>> findings("Where there is no GPU, rows are those of the host.")
    ['begins with where', 'those of']
    >>> findings("What does a step cost?"), findings("word - " * 35), findings("word " * 36)
    ([], [], ['long'])
    """
    found = ["long"] if word_count(sentence) > MOST_WORDS else []
    if (beginning := BEGINNING.match(sentence)) and not sentence.endswith("?"):
        found.append(f"begins with {beginning[1].lower()}")
    return found + [phrase.lower() for phrase in PHRASE.findall(sentence)]


def read(name):
    """The findings of a file as lines by (name, kind), and the words of each sentence of prose."""
    blocks = prose.header if name.endswith(".h") else prose.markdown
    if name == HELP:
        blocks = prose.help_page
    found, lengths = defaultdict(list), []
    for line, text, is_prose in blocks((ROOT / name).read_text()):
        for offset, sentence in sentences(text):
            words = word_count(sentence)
            lengths += [words] if is_prose else []
            for kind in findings(sentence):
                place = f"{name}:{line + offset}"
                found[name, kind].append(f"{place}: {kind} ({words} words): {sentence}")
    return found, lengths


def compare(found, shrink):
    """Compares the findings with the list of exceptions, and lowers the list when it shrinks."""
    listed = configparser.ConfigParser()
    listed.read(EXCEPTIONS)
    counts = Counter({key: len(lines) for key, lines in found.items()})
    allowed = Counter({(name, kind): int(listed[name][kind])
                       for name in listed.sections() for kind in listed[name]})  # fmt: skip
    if shrink:
        allowed &= counts
        listed.clear()
        listed.read_dict({name: {k: c for (n, k), c in sorted(allowed.items()) if n == name}
                          for name, _ in sorted(allowed)})  # fmt: skip
        with EXCEPTIONS.open("w") as file:
            listed.write(file)
    if new := counts - allowed:
        print("\n".join(line for key in sorted(new) for line in found[key]))
        files = ", ".join(sorted({f"{name} ({kind})" for name, kind in new}))
        raise SystemExit(f"check_language: {new.total()} findings more than the list has: {files}")
    if allowed - counts:
        raise SystemExit("check_language: less is wrong than the list has; run "
                         "build/docs/venv/bin/python docs/check_language.py --shrink")  # fmt: skip
    print(f"check_language: {counts.total()} findings, all in {EXCEPTIONS.relative_to(ROOT)}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="*", help="print every finding in these files")
    parser.add_argument("--means", action="store_true", help="print mean words a sentence")
    parser.add_argument("--shrink", action="store_true", help="lower the list of exceptions")
    args = parser.parse_args()
    paths = map(pathlib.Path.resolve, map(pathlib.Path, args.files))
    if not args.files:
        paths = sorted(path for pattern in CHECKED for path in ROOT.glob(pattern))
    names = [path.relative_to(ROOT).as_posix() for path in paths]
    found = {}
    for name in names:
        if name.startswith(COPIES):
            continue
        found_here, lengths = read(name)
        found |= found_here
        if args.means and lengths:
            mean = sum(lengths) / len(lengths)
            print(f"{mean:5.1f} words a sentence of {len(lengths):3}: {name}")
    if args.files and not args.means:
        lines = [line for of_kind in found.values() for line in of_kind]
        print("\n".join(sorted(lines, key=lambda line: (line.split(":")[0], int(line.split(":")[1])))))
    elif not args.means:
        compare(found, args.shrink)


if __name__ == "__main__":
    main()
