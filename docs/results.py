"""Makes docs/measurements/results.md from docs/results/*.json.

    python docs/results.py            # writes the page
    python docs/results.py --check    # fails where the page, or a page that shows a table too, differs

A file is a table: what was measured (`title`, `setting`), when, on which machine and by which commands,
and the cells as a page shows them. `page` is the page that discusses the table, relative to docs/. A page
that shows one row of the table must show every row as it is in the file.
"""

import json
import os
import pathlib
import sys

DOCS = pathlib.Path(__file__).parent
PAGE = DOCS / "measurements/results.md"
FIELDS = {"title", "date", "machine", "setting", "commands", "columns", "rows", "page"}
SECTIONS = {
    "needles": "Needles",
    "fidelity": "Distance from dense attention",
    "models": "Published models",
    "methods": "Methods of the literature",
    "rates": "Rates and memory",
}
INTRODUCTION = """\
# Results

<!-- Made by docs/results.py from docs/results/*.json: change these, then run it. -->

The most important figures, each with its date, its machine and the commands that reproduce it. The pages linked below the tables explain them.

- The date of a row is the date of its commit. The row was measured then or a little before, with the topkv of that day.
- Machines are shared, and rates vary by a third between runs. Compare rates of one run.
"""


def row_of(cells):
    return "| " + " | ".join(cells) + " |"


def tables():
    for path in sorted((DOCS / "results").glob("*.json"), key=_place):
        table = json.loads(path.read_text())
        if set(table) != FIELDS:
            raise SystemExit(f"results: {path} must have these fields: {sorted(FIELDS)}")
        if not table["rows"] or not table["commands"]:
            raise SystemExit(f"results: {path} has no rows, or no command that gives them")
        for row in table["rows"]:
            if len(row) != len(table["columns"]):
                raise SystemExit(f"results: {path}: {row} does not have a cell for each column")
        yield path, table


def _place(path):
    """Sections in their order, and files of a section in that of their numbers."""
    return list(SECTIONS).index(path.name.split("-")[0]), int(path.name.split("-")[1])


def _link(page):
    """A page of docs/ with its anchor, as the page of results links to it."""
    path, hash_sign, anchor = page.partition("#")
    return os.path.relpath(DOCS / path, PAGE.parent) + hash_sign + anchor


def page():
    text = INTRODUCTION
    section = None
    for path, table in tables():
        if (name := path.name.split("-")[0]) != section:
            section = name
            text += f"\n## {SECTIONS[name]}\n"
        lines = [
            "",
            f"### {table['title']}",
            "",
            f"{table['date']}, {table['machine']}. {table['setting']}",
            "",
            row_of(table["columns"]),
            row_of("---" for _ in table["columns"]),
            *map(row_of, table["rows"]),
            "",
            *(f"    {command}" for command in table["commands"]),
            "",
            f"[Details]({_link(table['page'])})",
        ]
        text += "\n".join(lines) + "\n"
    return text


def differences():
    if not PAGE.exists() or PAGE.read_text() != page():
        yield f"{PAGE} is not what the files of results give; run: python docs/results.py"
    for path, table in tables():
        shown = _rows(DOCS / table["page"].partition("#")[0])
        rows = [_plain(row_of(row)) for row in table["rows"]]
        missing = [row for row in rows if row not in shown]
        if missing and len(missing) < len(rows):
            yield f"{path}: {table['page']} shows other figures than {missing[0]}"
        if missing and _plain(row_of(table["columns"])) in shown:
            yield f"{path}: {table['page']} has its columns, but not {missing[0]}"


def _rows(path):
    return {_plain(line) for line in path.read_text().splitlines() if line.startswith("|")}


def _plain(row):
    return " | ".join(cell.strip() for cell in row.strip().strip("|").split("|"))


def main():
    if sys.argv[1:] == ["--check"]:
        if found := sorted(set(differences())):
            raise SystemExit("results: " + "\nresults: ".join(found))
        print(f"results: {sum(1 for _ in tables())} tables, and the page made of them, agree")
    else:
        PAGE.write_text(page())


if __name__ == "__main__":
    main()
