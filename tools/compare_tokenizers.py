#!/usr/bin/env python3
"""Compares topkv's tokenizers with the `tokenizers` library over megabytes of nasty text: ids and decoded text, for each kind of
tokenizer that topkv runs. Prints a line for each; ends with 1 when anything differs.

    PYTHONPATH=build/dev/python python tools/compare_tokenizers.py --megabytes 20 [--only unigram …] [-- FILE.json …]

Files are further tokenizer.json to compare. Needs the tokenizers package, and topkv. Run from the root of the repository.
"""

import argparse
import pathlib
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "bindings/tests"))
import tokenizer_kinds
from nasty_text import nasty_text
from tokenizers import Tokenizer

import topkv


def differences(ours: list, theirs: list) -> int:
    """Of two lists of ids; those that are longer differ in what is too much as well."""
    return sum(a != b for a, b in zip(ours, theirs)) + abs(len(ours) - len(theirs))


def compare(theirs: Tokenizer, ours: topkv.Tokenizer, texts: list[str]) -> dict:
    # The library spells added tokens that are normalized in their normal form, and leaves none out.
    added = theirs.get_added_tokens_decoder()
    apart = {token for token, one in added.items() if one.special or one.normalized}
    found = {"bytes": 0, "tokens": 0, "ids": 0, "texts": 0, "ours": 0.0, "theirs": 0.0}
    for text in texts:
        start = time.perf_counter()
        expected = theirs.encode(text, add_special_tokens=False).ids
        middle = time.perf_counter()
        ids = ours.encode(text)
        found["ours"] += time.perf_counter() - middle
        found["theirs"] += middle - start
        found["bytes"] += len(text.encode())
        found["tokens"] += len(expected)
        found["ids"] += differences(ids, expected)
        plain = [token for token in expected if token not in apart]
        found["texts"] += ours.decode(plain) != theirs.decode(plain)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=20, help="of text for each tokenizer")
    parser.add_argument("--part", type=int, default=1, help="megabytes that are encoded at a time")
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--only", nargs="+", default=[""], help="tokenizers whose name has one of these in it")
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    flags = parser.parse_args()
    size = flags.part * 1_000_000
    texts = [nasty_text(size, flags.seed + i) for i in range(flags.megabytes // flags.part)]
    tokenizers = {str(file): Tokenizer.from_file(str(file)) for file in flags.files} or tokenizer_kinds.all_tokenizers()
    bad = False
    print(f"{'tokenizer':40}{'MB':>8}{'tokens':>12}{'ids differ':>12}{'texts differ':>14}{'topkv s':>10}{'library s':>11}")
    with tempfile.TemporaryDirectory() as folder:
        for name, theirs in tokenizers.items():
            if not any(part in name for part in flags.only):
                continue
            file = pathlib.Path(folder) / "tokenizer.json"
            theirs.save(str(file))
            found = compare(theirs, topkv.Tokenizer.load(file), texts)
            bad = bad or found["ids"] > 0 or found["texts"] > 0
            print(
                f"{name:40}{found['bytes'] / 1e6:8.1f}{found['tokens']:12}{found['ids']:12}{found['texts']:14}"
                f"{found['ours']:10.2f}{found['theirs']:11.2f}",
                flush=True,
            )
    sys.exit(bad)


if __name__ == "__main__":
    main()
