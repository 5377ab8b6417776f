"""RULER, as lm-evaluation-harness runs it, with dense attention beside retrieval.

    pip install "lm_eval[hf,ruler]"
    python examples/python/ruler.py --lengths 4096 --limit 10 --k 64,256

The harness is used unmodified: its tasks, prompts, generation and scores. Each cache answers the
same prompts. A prompt is prefilled densely up to its last token; retrieval answers from there on.

niah_single_1, niah_multikey_2, niah_multikey_3, ruler_vt, ruler_cwe and ruler_fwe make their text
themselves. The other niah tasks take essays from the Hugging Face hub; without a network,
--haystack stands a text in for them ("generated", or a folder of *.txt), and their scores are then
of this text.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import itertools
import json
import os
import random
import sys
import time
from pathlib import Path

import numpy as np

OFFLINE_TASKS = "niah_single_1,niah_multikey_2,niah_multikey_3,ruler_vt"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="models/needle-14m")
    parser.add_argument("--tasks", default=OFFLINE_TASKS, help=f"default: {OFFLINE_TASKS}")
    parser.add_argument("--lengths", default="4096", help="tokens of a prompt and its answer")
    parser.add_argument("--limit", type=int, default=10, help="samples of each task and length")
    parser.add_argument("--index", default="exact", help="index specs, separated by ';'")
    parser.add_argument("--k", default="64,256", help="rows retrieved per query head")
    parser.add_argument("--dense-layers", default="0", help="first layers that attend every row")
    parser.add_argument("--window", type=int, default=1024)
    parser.add_argument("--sinks", type=int, default=4)
    parser.add_argument("--haystack", help="'generated' or a folder of *.txt, for the essays")
    parser.add_argument("--device", default=None, help="default: cuda where there is one")
    parser.add_argument("--without-dense", action="store_true")
    parser.add_argument("-o", "--output", type=Path, default=Path("out/ruler"))
    return parser.parse_args()


def stand_in_for_essays(source: str, words: int, folder: Path) -> None:
    """Puts a text where the harness looks for its essays before it asks the network.

    datasets.load_dataset("baber/paul_graham_essays") takes a folder of that name in the working
    directory; NLTK takes the tables of its sentence splitter from nltk.data.path. Empty tables make
    it split at every full stop, question and exclamation mark.
    """
    if source == "generated":
        from generated_text import text_of_words

        text = text_of_words(words, seed=1)
    else:
        files = sorted(Path(source).glob("*.txt"))
        text = " ".join(file.read_text(encoding="utf-8") for file in files)
        text = text * (1 + words // max(1, len(text.split()))) if text else text
    if not text:
        sys.exit(f"--haystack: {source} holds no *.txt file with text in it")
    essays = folder / "baber" / "paul_graham_essays"
    tables = folder / "nltk_data" / "tokenizers" / "punkt_tab" / "english"
    for made in (essays, tables):
        made.mkdir(parents=True, exist_ok=True)
    (essays / "train.jsonl").write_text(json.dumps({"text": text}) + "\n", encoding="utf-8")
    for table in ("collocations.tab", "sent_starters.txt", "abbrev_types.txt", "ortho_context.tab"):
        (tables / table).write_text("")
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.chdir(folder)
    import nltk

    nltk.data.path.insert(0, str(folder / "nltk_data"))


def load_model(path: str, device: str | None):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype).to(device).eval()
    tokenizer = AutoTokenizer.from_pretrained(path)
    for name in ("bos_token", "eos_token"):  # some checkpoints name them in their config only
        number = getattr(model.config, f"{name}_id")
        if getattr(tokenizer, name) is None and isinstance(number, int):
            setattr(tokenizer, name, tokenizer.convert_ids_to_tokens(number))
    return model, tokenizer


def caches_of(args) -> dict[str, dict | None]:
    """Name to the options of topkv.hf.install; None for transformers' own cache."""
    caches: dict[str, dict | None] = {} if args.without_dense else {"dense": None}
    several = itertools.product(
        args.index.split(";"), args.k.split(","), args.dense_layers.split(",")
    )
    for index, k, layers in several:
        name = f"{index}, k = {k}" + (f", {layers} dense" if int(layers) else "")
        caches[name] = {
            "index": index, "k": int(k), "dense_layers": int(layers), "window": args.window,
            "sinks": args.sinks,
        }
    return caches


def scores_of(model, tokenizer, tasks: list, length: int, limit: int) -> dict[str, float]:
    """The harness's score of each task."""
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM

    lm = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=1)
    results = simple_evaluate(lm, tasks=tasks, limit=limit, bootstrap_iters=0, log_samples=False)
    return {name: result[f"{length},none"] for name, result in results["results"].items()}


def write_csv(path: Path, rows: list[dict]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)


def print_table(rows: list[dict], caches: list[str]) -> None:
    width = max(len(row["task"]) for row in rows)
    columns = {name: max(8, len(name)) for name in caches}
    names = "".join(f"  {name:>{columns[name]}}" for name in caches)
    print(f"\n{'task':{width}}  {'length':>7}{names}")
    for task, length in dict.fromkeys((row["task"], row["length"]) for row in rows):
        here = [row for row in rows if (row["task"], row["length"]) == (task, length)]
        found = {row["cache"]: row for row in here}
        print(f"{task:{width}}  {length:>7}" + "".join(
            f"  {100 * found[name]['score']:>{columns[name] - 2}.1f} %" for name in caches))


def main() -> None:
    args = parse()
    for package in ("lm_eval", "accelerate", "nltk", "wonderwords"):
        if importlib.util.find_spec(package) is None:
            sys.exit(f"{package} is missing; this script needs: pip install \"lm_eval[hf,ruler]\"")
    lengths = [int(length) for length in args.lengths.split(",")]
    args.model = str(Path(args.model).resolve()) if Path(args.model).exists() else args.model
    output = args.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    if args.haystack:
        source = args.haystack
        source = source if source == "generated" else str(Path(source).resolve())
        stand_in_for_essays(source, words=max(lengths), folder=output)
    import lm_eval  # after the settings for a stand-in, which it reads when it is imported
    from lm_eval.tasks import TaskManager

    import topkv.hf

    model, tokenizer = load_model(args.model, args.device)
    caches, rows = caches_of(args), []
    for length in lengths:
        random.seed(1234)
        np.random.seed(1234)
        metadata = {"max_seq_lengths": [length], "tokenizer": args.model}
        # Loaded once, so that every cache is asked the same questions.
        tasks = TaskManager(metadata=metadata).load(args.tasks.split(","))["tasks"]
        for task in tasks.values():
            for name, options in caches.items():
                if options is not None:
                    topkv.hf.install(model, **options)
                begin = time.perf_counter()
                try:
                    scores = scores_of(model, tokenizer, [task], length, args.limit)
                finally:
                    if options is not None:
                        topkv.hf.uninstall(model)
                seconds = time.perf_counter() - begin
                for task_name, score in scores.items():
                    rows.append({"task": task_name, "length": length, "cache": name,
                                 "score": score, "samples": args.limit,
                                 "seconds": round(seconds, 1)})
                    print(f"{task_name} at {length}, {name}: {100 * score:.1f} %, {seconds:.0f} s",
                          flush=True)
                write_csv(output / "ruler.csv", rows)
    print_table(rows, list(caches))
    print(f"\nlm_eval {lm_eval.__version__}, {args.limit} samples each; {output / 'ruler.csv'}")


if __name__ == "__main__":
    main()
