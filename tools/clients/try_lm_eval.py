"""lm-eval: multiple choice by echoed logprobs, and generation by completions and by chats, over tasks of tasks/."""

import json
import pathlib
import subprocess
import sys

from facts import *

HERE = pathlib.Path(__file__).parent
TOKENIZER = str(pathlib.Path(WORK, "tokenizer"))
OUT = pathlib.Path(WORK, "lm_eval")


def lm_eval(kind, path, tasks, *words, **more):
    """By the task's name: its scores, and what was answered to each of its documents."""
    arguments = {"model": MODEL, "base_url": URL + path, "max_retries": 1, **more}
    out = OUT / str(len(list(OUT.glob("*"))))
    command = [str(pathlib.Path(sys.executable).with_name("lm_eval")), "run", "--model", kind, "--tasks", tasks]
    command += ["--model_args", ",".join(f"{name}={value}" for name, value in arguments.items())]
    command += ["--include_path", str(HERE / "tasks"), "--output_path", str(out), "--log_samples", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=HERE.parent.parent)
    if done.returncode:
        raise RuntimeError(done.stderr[-300:])
    (scores,) = out.rglob("results_*.json")
    results = json.loads(scores.read_text())["results"]
    samples = {}
    for task in tasks.split(","):
        (file,) = out.rglob(f"samples_{task}_*.jsonl")
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        samples[task] = sorted(lines, key=lambda line: line["doc_id"])
    return results, samples


def likelihoods(samples):
    return [float(choice[0]) for line in samples["topkv_choice"] for (choice,) in line["resps"]]


def asked(line):
    """What the task makes of a document: its doc_to_text."""
    return f"Question: {line['doc']['question']}\nAnswer: The"


OUT.mkdir(exist_ok=True)
subprocess.run([sys.executable, str(HERE / "tokenizer_of_gguf.py"), MODEL_FILE, TOKENIZER], check=True)
counting = {"tokenizer": TOKENIZER, "tokenizer_backend": "huggingface"}
texts = tried("texts", lambda: lm_eval("local-completions", "/completions", "topkv_choice,topkv_answer", **counting, tokenized_requests=False))
ids = tried("ids, three at a time", lambda: lm_eval("local-completions", "/completions", "topkv_choice", "--batch_size", "3", **counting, tokenized_requests=True))
if texts and ids:
    same("multiple choice: all are answered right", texts[0]["topkv_choice"]["acc,none"], 1.0)
    one, three = likelihoods(texts[1]), likelihoods(ids[1])
    far = max(abs(a - b) for a, b in zip(one, three, strict=True))
    fact("ids, three at a time, give what texts give, but for rounding", far < 0.2, [(a, b) for a, b in zip(one, three)])
if texts:
    for line in texts[1]["topkv_answer"]:
        same("generation by completions", line["resps"][0][0], plain_text(asked(line), "--stop", r"\n\n"))
chats = tried("chats", lambda: lm_eval("local-chat-completions", "/chat/completions", "topkv_answer", "--apply_chat_template"))
if chats:
    for line in chats[1]["topkv_answer"]:
        same("generation by chats", line["resps"][0][0], chat_text(asked(line), "--stop", r"\n\n"))
