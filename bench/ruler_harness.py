"""RULER's tasks as lm-evaluation-harness makes and scores them, beside those of `topkv eval`.

    pip install "lm_eval[hf,ruler]==0.4.13"
    python bench/ruler_harness.py samples --lengths 4096,8192 --limit 50
    python bench/ruler_harness.py scores --lengths 4096 --limit 20

samples: what the prompts of both are made of, fact by fact (ruler_facts.py); facts.csv.
scores: dense attention's, of the harness through transformers and of the command (`make build`, or
--topkv), which makes its own samples; besides, the harness's prompts answered by topkv. scores.csv.

The harness is used as it is. Its essays are on the network: both are given the same generated text
instead, or the *.txt of --essays.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPOSITORY / "examples/python"), str(REPOSITORY / "bench")]

from generated_text import text_of_words  # noqa: E402
from ruler import stand_in_for_essays  # noqa: E402
from ruler_facts import facts_of  # noqa: E402

TASKS = (
    "niah_single_1,niah_single_2,niah_single_3,niah_multikey_1,niah_multikey_2,niah_multikey_3,"
    "niah_multivalue,niah_multiquery,vt,cwe,fwe"
)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("samples", "scores"))
    parser.add_argument("--model", type=Path, default=REPOSITORY / "models/needle-14m")
    parser.add_argument("--tasks", default=TASKS, help="by the names of `topkv eval`")
    parser.add_argument("--lengths", default="4096")
    parser.add_argument("--limit", type=int, default=20, help="samples of each task and length")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--essays", type=Path, help="a folder of *.txt; generated text without it")
    parser.add_argument("--topkv", type=Path, default=REPOSITORY / "build/release/src/cli/topkv")
    parser.add_argument("-o", "--output", type=Path, default=Path("out/ruler-harness"))
    return parser.parse_args()


def essays_of(args) -> Path:
    """The folder that both read; for the harness also put where it looks for its essays."""
    folder = args.essays
    if folder is None:
        folder = args.output / "essays"
        folder.mkdir(exist_ok=True)
        words = max(int(length) for length in args.lengths.split(","))
        (folder / "text.txt").write_text(text_of_words(words, seed=1), encoding="utf-8")
    stand_in_for_essays(str(folder), words=10_000, folder=args.output)
    return folder


def harness_task(name: str, length: int, args):
    """As TaskManager has it. Loaded once: a task draws its samples when it is made."""
    from lm_eval.tasks import TaskManager

    random.seed(args.seed)
    np.random.seed(args.seed)
    name = name if name.startswith("niah") else f"ruler_{name}"
    metadata = {"max_seq_lengths": [length], "tokenizer": str(args.model)}
    with contextlib.redirect_stdout(None):  # vt prints each length that it tries
        return TaskManager(metadata=metadata).load([name])["tasks"][name]


def harness_prompts(task, limit: int) -> list[tuple[str, list[str]]]:
    """Prompts as the model is given them, with their references."""
    task.build_all_requests(limit=limit, rank=0, world_size=1)
    return [(one.args[0], one.doc["outputs"]) for one in task.instances]


def own_task(name: str, tokenizer, essays: Path):
    from topkv.eval._core import make_tasks

    return make_tasks([name], lambda text: tokenizer.encode(text), [], str(essays))[0]


def summary(values: list) -> str:
    if len(set(values)) == 1:
        return str(values[0])
    if all(isinstance(value, (int, float)) for value in values):
        return f"{min(values)} to {max(values)}"
    return " OR ".join(sorted(set(map(str, values))))


def alike(ours: list, theirs: list) -> bool:
    """Numbers that vary are alike where their ranges meet."""
    if len(set(ours + theirs)) == 1:
        return True
    if all(isinstance(value, (int, float)) for value in ours + theirs):
        return len(set(ours)) > 1 and len(set(theirs)) > 1 and (
            min(ours) <= max(theirs) and min(theirs) <= max(ours))
    return set(map(str, ours)) == set(map(str, theirs))


def compare_samples(args, tokenizer, essays: Path) -> list[dict]:
    rows = []
    for length in map(int, args.lengths.split(",")):
        for name in args.tasks.split(","):
            facts: dict[str, list[dict]] = {"harness": [], "topkv": []}

            def add(side, prompt, references, predict, name=name, length=length, facts=facts):
                tokens = len(tokenizer.encode(prompt))
                facts[side].append(facts_of(name, prompt, references) | {
                    "tokens to generate": predict,
                    "of the length, %": round(100 * (tokens + predict) / length, 1),
                })

            task = harness_task(name, length, args)
            predict = task.config.generation_kwargs["max_gen_toks"]
            for prompt, references in harness_prompts(task, args.limit):
                add("harness", prompt, references, predict)
            own = own_task(name, tokenizer, essays)
            for number in range(args.limit):
                sample = own.sample(length, number, args.seed)
                text = tokenizer.decode(sample.context, clean_up_tokenization_spaces=False)
                add("topkv", text + sample.question, sample.references, sample.predict)
            for fact in facts["topkv"][0]:
                sides = {side: [one.get(fact, "-") for one in made] for side, made in facts.items()}
                rows.append({
                    "task": name, "length": length, "fact": fact,
                    "alike": "yes" if alike(sides["topkv"], sides["harness"]) else "no",
                    "harness": summary(sides["harness"]), "topkv": summary(sides["topkv"]),
                })
                if rows[-1]["alike"] == "no":
                    print(f"{name} at {length}, {fact}:\n  harness  {rows[-1]['harness']}\n"
                          f"  topkv    {rows[-1]['topkv']}", flush=True)
    return rows


def interval(scores: list[float]) -> tuple[float, float]:
    """95 % of the mean: Wilson's where every score is 0 or 1, else Student's t."""
    from scipy import stats

    if set(scores) <= {0.0, 1.0}:
        found = stats.binomtest(int(sum(scores)), len(scores)).proportion_ci(method="wilson")
        return found.low, found.high
    mean, half = np.mean(scores), stats.t.ppf(0.975, len(scores) - 1) * stats.sem(scores)
    return max(0.0, mean - half), min(1.0, mean + half)


def chance(first: list[float], second: list[float]) -> float:
    """How often means of samples that are dealt anew differ as much: a permutation test."""
    from scipy import stats

    if np.mean(first) == np.mean(second):
        return 1.0
    return stats.permutation_test(
        (first, second), lambda a, b, axis: np.mean(a, axis=axis) - np.mean(b, axis=axis),
        n_resamples=9999, vectorized=True, rng=np.random.default_rng(0)).pvalue


def in_percent(scores: list[float]) -> str:
    low, high = interval(scores)
    return f"{100 * np.mean(scores):.1f} [{100 * low:.0f}-{100 * high:.0f}]"


def command_scores(args, name: str, length: int, essays: Path) -> list[float]:
    folder = args.output / f"topkv-{name}-{length}"
    subprocess.run(
        [args.topkv, "eval", "-m", args.model, "--tasks", name, "--lengths", str(length),
         "--methods", "dense", "--samples", str(args.limit), "--seed", str(args.seed),
         "--essays", essays, "--kv-dtype", "f32", "-o", folder, "--fresh"],
        check=True, stdout=subprocess.DEVNULL)
    lines = (folder / "samples.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["score"] for line in lines]


def compare_scores(args, tokenizer, essays: Path) -> list[dict]:
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from ruler import load_model

    import topkv

    model, named = load_model(str(args.model), None)
    lm = HFLM(pretrained=model, tokenizer=named, batch_size=1)
    own = topkv.Model.load(args.model)
    rows = []
    for length in map(int, args.lengths.split(",")):
        for name in args.tasks.split(","):
            begin = time.perf_counter()
            task = harness_task(name, length, args)
            of_task = own_task(name, tokenizer, essays)
            samples = next(iter(simple_evaluate(
                lm, tasks=[task], limit=args.limit, bootstrap_iters=0, log_samples=True,
            )["samples"].values()))
            theirs = [sample[str(length)] for sample in samples]
            again, same = [], 0
            for sample in samples:
                prompt = tokenizer.encode(sample["arguments"][0][0])
                context = own.prefill(prompt[:-1], kv_dtype="f32")
                session = topkv.Session(context, dense_layers=own.config.attention.layers)
                out = own.generate(
                    session, prompt[-1:], task.config.generation_kwargs["max_gen_toks"],
                    temperature=0)
                text = tokenizer.decode(list(map(int, out.tokens)), skip_special_tokens=True)
                again.append(of_task.score(text, sample["doc"]["outputs"]))
                same += text.strip() == sample["resps"][0][0].strip()
            ours = command_scores(args, name, length, essays)
            rows.append({
                "task": name, "length": length, "samples": args.limit,
                "harness": in_percent(theirs), "topkv": in_percent(ours),
                "chance": round(float(chance(theirs, ours)), 3),
                "harness's prompts in topkv": in_percent(again),
                "same answers": f"{same} of {len(samples)}",
            })
            print(rows[-1], f"{time.perf_counter() - begin:.0f} s", flush=True)
            write(args.output / "scores.csv", rows)
    return rows


def write(path: Path, rows: list[dict]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    args = parse()
    for name in ("model", "topkv", "output"):
        setattr(args, name, getattr(args, name).resolve())
    args.essays = args.essays and args.essays.resolve()
    args.output.mkdir(parents=True, exist_ok=True)
    essays = essays_of(args)  # before the harness is imported: it goes into the folder
    from topkv.eval.answer import load_tokenizer

    tokenizer = load_tokenizer(str(args.model))
    if args.what == "samples":
        rows = compare_samples(args, tokenizer, essays)
        write(args.output / "facts.csv", rows)
        differ = sum(row["alike"] == "no" for row in rows)
        print(f"{len(rows)} facts, {differ} differ: {args.output / 'facts.csv'}")
    else:
        compare_scores(args, tokenizer, essays)
        print(args.output / "scores.csv")


if __name__ == "__main__":
    main()
