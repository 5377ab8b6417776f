"""The flags of python -m topkv.eval."""

from __future__ import annotations

import argparse
import re

import torch

from topkv import InvalidArgument
from topkv.eval.settings import Settings
from topkv.hf.options import CHOOSING

_EPILOG = """\
METHODS, as in `topkv eval`: dense (transformers' own cache, read densely), codes, streaming, or an index such as
exact; INDEX+TAIL; and FILE.py:CLASS, a method of yours. METHOD@window=N,sinks=N,dense=N,select=HOW sets
the other options of a method.
docs/reference/eval.md describes tasks, methods, files, and the methods of a class.

examples:
  python -m topkv.eval -m models/needle-14m --tasks niah_single_2 --methods "dense;exact" --samples 5
  python -m topkv.eval -m MODEL --tasks ruler --methods "dense;codes;my_methods.py:MyMethod"
"""

_FACTORS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}


def count(text: str) -> int:
    """4096, 128K or 128Ki, 1M."""
    found = re.fullmatch(r"\s*(\d+)\s*(?:([kKmMgG])i?)?\s*", text)
    if not found or int(found[1]) == 0:
        raise argparse.ArgumentTypeError(f"expected a count such as 4096, 128K or 1M, found {text!r}")
    return int(found[1]) * _FACTORS[(found[2] or "").lower()]


def counts(text: str) -> list[int]:
    return [count(part) for part in text.split(",")]


def dtype(text: str) -> str | torch.dtype:
    """auto, or PyTorch's name of a type of floats."""
    found = text if text == "auto" else getattr(torch, text, None)
    if found != "auto" and not (isinstance(found, torch.dtype) and found.is_floating_point):
        raise argparse.ArgumentTypeError(
            f"expected auto, float32, bfloat16 or float16, found {text!r}"
        )
    return found


def device(text: str) -> torch.device:
    try:
        found = torch.device(text)
    except RuntimeError:
        found = None
    if found is None or found.type not in ("cpu", "cuda"):
        raise argparse.ArgumentTypeError(f"expected cpu, cuda or cuda:1, found {text!r}")
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise argparse.ArgumentTypeError(
            f"{text}: PyTorch sees {torch.cuda.device_count()} CUDA devices here; use cpu"
        )
    return found


def _files(lists: list[str]) -> list[str]:
    return [file for part in lists for file in part.split(",")]


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m topkv.eval",
        description="Compares methods on tasks through transformers' generate: `topkv eval` for any "
        "model that topkv.hf takes, and for methods written in Python.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add("-m", "--model", required=True, metavar="MODEL", help="folder of a checkpoint, or its name")
    add("--tasks", default="ruler", metavar="LIST",
        help="ruler or some of its tasks, passkey, passkey_steps, repetition, tables, mrcr, "
        "text2json, html_to_tsv, multineedle, qa [ruler]")
    add("--lengths", type=counts, default="4K,16K", metavar="LIST",
        help="tokens of context, question and answer together, as in RULER [4K,16K]")
    add("--methods", default="dense;codes", metavar="LIST", help="';' between them [dense;codes]")
    add("--budgets", type=counts, default="128", metavar="LIST",
        help="rows that each query head retrieves [128]")
    add("--samples", type=count, metavar="N",
        help="samples of each task and length [20; for qa all questions]")
    add("--seed", type=int, default=42, metavar="N", help="seed of the texts [42]")
    add("--essays", default="", metavar="DIR", help="prose: *.txt and *.md [generated sentences]")
    add("-f", "--file", action="append", default=[], metavar="FILES",
        help="qa: the text to ask about, a.txt,b.md")
    add("--questions", default="", metavar="FILE",
        help='qa: lines of {"question": …, "answers": […], "context_file": …}')
    add("--kv-window", type=count, default=1024, metavar="N", help="last tokens attended [1024]")
    add("--kv-sinks", type=int, default=4, metavar="N", help="first tokens attended [4]")
    add("--kv-dense-layers", type=int, default=0, metavar="N",
        help="first layers that attend all rows [0]")
    add("--kv-select", choices=("query_head", "group"), default="query_head",
        help="chooses rows for each query head or for a group [query_head]")
    add("--kv-host-search", action="store_true",
        help="search on the host although a GPU could, to keep indices out of its memory")
    add("--prefill", choices=("auto", "dense", "sparse", "window"), default="dense",
        help="how topkv reads texts: auto is sparse, or dense where that is quicker [dense]")
    add("--prefill-keys", type=count, metavar="N",
        help="sparse: let tokens choose up to N earlier keys [8192]")
    add("--prefill-least", type=int, metavar="N",
        help="sparse: let tokens choose N keys or more [512, or --prefill-keys if that is less]")
    add("--prefill-mass", type=float, metavar="X",
        help="sparse: choose no more keys once this share of attention is met [0.98]")
    add("--kv-dtype", metavar="TYPE", help="dtype of topkv's rows: f32, f16, bf16, q8, q8/q4, q4 [the "
        "model's; bf16 on a GPU]")
    add("--device", type=device, metavar="WHERE", help="PyTorch's, as cpu or cuda:1 [a GPU if there is one]")
    add("--dtype", type=dtype, default="auto", metavar="TYPE", help="dtype of the model: auto, float32, bfloat16, … "
        "[auto: as stored]")
    add("--chunk", type=count, default=2048, metavar="N", help="tokens read at a time [2048]")
    add("--trust-remote-code", action="store_true", help="run the code of the checkpoint")
    add("-o", "--output", metavar="DIR",
        help="folder of results; continues an earlier run, and adds answers to it [out/eval-…, by settings]")
    add("--fresh", action="store_true", help="start over")
    return made


def _choice(flags: argparse.Namespace) -> dict[str, float]:
    """Settings of how tokens of a prefill choose keys, if they are given."""
    names = ("prefill_keys", "prefill_least", "prefill_mass")
    given = {name: getattr(flags, name) for name in names if getattr(flags, name) is not None}
    if given and flags.prefill not in CHOOSING:
        flag = "--" + next(iter(given)).replace("_", "-")
        raise InvalidArgument(
            f"{flag}: has no effect with --prefill {flags.prefill}; leave it out, or give --prefill sparse or auto"
        )
    return given


def settings_of(flags: argparse.Namespace) -> Settings:
    return Settings(
        tasks=flags.tasks.split(","),
        lengths=flags.lengths,
        methods=flags.methods,
        budgets=flags.budgets,
        samples=flags.samples,
        seed=flags.seed,
        essays=flags.essays,
        files=_files(flags.file),
        questions=flags.questions,
        window=flags.kv_window,
        sinks=flags.kv_sinks,
        dense_layers=flags.kv_dense_layers,
        select_by=flags.kv_select,
        host_search=flags.kv_host_search,
        prefill=flags.prefill,
        **_choice(flags),
        kv_dtype=flags.kv_dtype,
        chunk=flags.chunk,
    )
