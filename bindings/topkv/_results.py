"""Reads results of the `topkv` command and of the scripts as plain rows for topkv.plot."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from topkv import FileError, InvalidArgument

Row = Mapping[str, Any]


def is_path(data: object) -> bool:
    return isinstance(data, (str, os.PathLike))


def rows_of(data: object) -> list[Row]:
    """Rows as given, or read from a file.

    A file is CSV with a heading line, a JSON list, or one JSON object per line. A JSON object with
    such a list as "results" will do. A directory stands for the cells.jsonl of `topkv needle` in it."""
    if not is_path(data):
        if isinstance(data, Mapping) or not isinstance(data, Iterable):
            raise InvalidArgument(f"expected rows or a file's path, found {type(data).__name__}")
        return list(data)
    path = Path(data)
    if path.is_dir():
        path = path / "cells.jsonl"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{path}: cannot be read: {error}") from error
    rows = _csv_rows(text) if path.suffix == ".csv" else _json_rows(text, path)
    if not rows:
        raise FileError(f"{path}: has no results; expected at least one row")
    return rows


def member(row: Row, *names: str) -> Any:
    """The row's member of the first of these names that it has."""
    for name in names:
        if name in row:
            return row[name]
    wanted = " or ".join(f"'{name}'" for name in names)
    raise InvalidArgument(f"a row has no {wanted}; it has {', '.join(map(repr, row))}")


def number(value: Any) -> float:
    """The float of a number, or of its text as in CSV."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InvalidArgument(f"expected a number, found {value!r}") from None


def share(value: Any) -> float:
    """The share from 0 to 1 that a value gives: True, False, their names, or a number."""
    named = {"true": 1.0, "yes": 1.0, "false": 0.0, "no": 0.0}
    if isinstance(value, str) and value.strip().lower() in named:
        return named[value.strip().lower()]
    found = number(value)
    if not 0 <= found <= 1:
        raise InvalidArgument(f"expected found or missed, or a share of 0 to 1, found {value!r}")
    return found


def _csv_rows(text: str) -> list[Row]:
    return list(csv.DictReader(text.splitlines()))


def _json_rows(text: str, path: Path) -> list[Row]:
    try:
        whole = json.loads(text)
        if isinstance(whole, dict):  # one result, or a program's arguments and its results
            whole = whole.get("results", [whole])
        rows = whole if isinstance(whole, list) else [whole]
    except json.JSONDecodeError:
        # The last line is left out when a run was stopped while it wrote it, as the command does.
        lines = [line for line in text.split("\n")[:-1] if line.strip()]
        try:
            rows = [json.loads(line) for line in lines]
        except json.JSONDecodeError as error:
            raise FileError(f"{path}: is neither CSV, JSON nor JSON lines: {error}") from error
    if not all(isinstance(row, dict) for row in rows):
        raise FileError(f"{path}: expected JSON objects, one for each result")
    return rows
