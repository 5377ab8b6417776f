"""lm-eval: multiple choice by echoed logprobs, and generation by completions and by chats, over tasks of tasks/."""

import json
import pathlib
import subprocess
import sys

from facts import *

HERE = pathlib.Path(__file__).parent
TOKENIZER = str(pathlib.Path(WORK, "tokenizer"))
OUT = pathlib.Path(WORK, "lm_eval")


def lm_eval(kind, path, task, *words, **more):
    """The task's scores, and what was answered to each of its documents."""
    arguments = {"model": MODEL, "base_url": URL + path, "max_retries": 1, **more}
    out = OUT / f"{kind}-{task}-{len(list(OUT.glob('*')))}"
    command = [str(pathlib.Path(sys.executable).with_name("lm_eval")), "run", "--model", kind, "--tasks", task]
    command += ["--model_args", ",".join(f"{name}={value}" for name, value in arguments.items())]
    command += ["--include_path", str(HERE / "tasks"), "--output_path", str(out), "--log_samples", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=HERE.parent.parent)
    if done.returncode:
        raise RuntimeError(done.stderr[-1500:])
    (scores,) = out.rglob("results_*.json")
    (samples,) = out.rglob("samples_*.jsonl")
    lines = [json.loads(line) for line in samples.read_text().splitlines()]
    return json.loads(scores.read_text())["results"][task], sorted(lines, key=lambda line: line["doc_id"])


OUT.mkdir(exist_ok=True)
subprocess.run([sys.executable, str(HERE / "tokenizer_of_gguf.py"), MODEL_FILE, TOKENIZER], check=True)
by_text = tried("multiple choice, of texts", lambda: lm_eval("local-completions", "/completions", "topkv_choice", tokenizer=TOKENIZER, tokenizer_backend="huggingface", tokenized_requests=False))
by_ids = tried("multiple choice, of ids", lambda: lm_eval("local-completions", "/completions", "topkv_choice", tokenizer=TOKENIZER, tokenizer_backend="huggingface", tokenized_requests=True))
batched = tried("multiple choice, four at a time", lambda: lm_eval("local-completions", "/completions", "topkv_choice", tokenizer=TOKENIZER, tokenizer_backend="huggingface", tokenized_requests=True, batch_size=4))
if by_text and by_ids and batched:
    same("all are answered right", by_text[0]["acc,none"], 1.0)
    likelihoods = [[[float(choice[0]) for (choice,) in line["resps"]] for line in run[1]] for run in (by_text, by_ids, batched)]
    same("ids give what texts give", likelihoods[1], likelihoods[0])
    far = max(abs(a - b) for line, other in zip(likelihoods[0], likelihoods[2]) for a, b in zip(line, other))
    fact("so do four at a time, but for rounding", far < 0.2, far)

answers = tried("generation by chats", lambda: lm_eval("local-chat-completions", "/chat/completions", "topkv_answer", "--apply_chat_template"))
if answers:
    for line in answers[1]:
        same("an answer", line["resps"][0][0], chat_text(line["doc"]["question"], "--stop", r"\n"))
answers = tried("generation by completions", lambda: lm_eval("local-completions", "/completions", "topkv_answer", tokenizer=TOKENIZER, tokenizer_backend="huggingface", tokenized_requests=False))
if answers:
    for line in answers[1]:
        same("a continuation", line["resps"][0][0], plain_text(line["doc"]["question"], "--stop", r"\n"))
