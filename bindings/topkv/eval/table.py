"""Scores as text for people."""

from __future__ import annotations

from topkv.eval._core import Score, ScoreRow, ScoreTable

_KEYS = 5  # columns that tell a row from others

LEGEND = """\
Percent; for repetition characters. Brackets have 95 % intervals: Wilson's if every score is 0 or 1,
else Student's. rows: rows that a query head attended beyond window and sinks, per token and layer, on
average. read: bytes of the text read per token."""


def score_text(score: Score | None) -> str:
    """"80 [55–93]"; a part that is unknown is left out."""
    if score is None:
        return "-"
    if score.interval is None:
        return f"{score.mean:.0f}"
    low, high = score.interval
    return f"{score.mean:.0f} [{low:.0f}–{high:.0f}]"


def _length_text(tokens: int) -> str:
    """4K and 1M for multiples of these units, else 4000."""
    for unit, factor in (("M", 1024**2), ("K", 1024)):
        if tokens % factor == 0:
            return f"{tokens // factor}{unit}"
    return str(tokens)


def _bytes_text(count: float) -> str:
    """As 900 B and 1.5 MiB."""
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while count >= 1023.95 and len(units) > 1:
        count /= 1024
        units.pop(0)
    return f"{count:.0f} B" if units[0] == "B" else f"{count:.1f} {units[0]}"


def _cells(row: ScoreRow) -> list[str]:
    has = row.budget is not None
    cells = [
        _length_text(row.length),
        row.method,
        str(row.budget) if has else "all",
        f"{row.rows_per_head:.0f}" if has else "all",
        "-" if row.bytes_read is None else _bytes_text(row.bytes_read),
    ]
    cells += [score_text(score) for score in row.scores]
    return [*cells, "-" if row.average is None else f"{row.average:.1f}"]


def table_text(table: ScoreTable, width: int) -> str:
    """The table in lines of at most `width` characters, if the columns of a row fit. A wide table is
    split, and each part repeats the columns that identify a row."""
    headings = ["length", "method", "budget", "rows", "read", *table.columns, "average"]
    lines = [headings, *(_cells(row) for row in table.rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(headings))]
    keys = list(range(_KEYS))
    taken = sum(widths[:_KEYS]) + 2 * (_KEYS - 1)
    parts: list[list[int]] = []
    left = 0
    for column in range(_KEYS, len(headings)):
        if not parts or widths[column] + 2 > left:
            parts.append([])
            left = width - taken
        parts[-1].append(column)
        left -= widths[column] + 2
    return "\n".join(_one(lines, [*keys, *part], widths) for part in parts)


def _one(lines: list[list[str]], columns: list[int], widths: list[int]) -> str:
    text = ""
    for line in lines:
        cells = [
            line[i].ljust(widths[i]) if i == 1 else line[i].rjust(widths[i]) for i in columns
        ]
        text += "  ".join(cells).rstrip() + "\n"
    return text
