#!/usr/bin/env python3
"""Loads topkv serve: many clients with short and long questions over three contexts, some of whom leave.

Makes three contexts with facts in them, starts the server over them, asks every question by itself, then has the clients
ask at random. Each answer that is whole is compared with the one that was given alone (temperature 0); facts must be
right, what follows them may differ by rounding and is counted. Ends with status 1 where a fact is wrong, a request
fails otherwise than by 429, or the server does not end well.

    python3 bench/serve_load.py build/release/src/cli/topkv models/needle-14m --minutes 10
"""

import argparse
import http.client
import json
import pathlib
import random
import signal
import subprocess
import tempfile
import threading
import time

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n"
NAMES = ["quiet-river", "tall-tower", "brave-apple", "calm-forest", "bright-candle", "swift-horse"]
FACT_TOKENS = 9  # a space, seven digits, a full stop


def fact(name, number):
    return f"One of the special magic numbers for {name} is: {number}.\n"


def question(name):
    at = f"special magic number for {name} mentioned in the provided text"
    return f" What is the {at}? The {at} is"


def make_context(folder, number, lines):
    draw = random.Random(number)
    text, numbers = [], {}
    for i in range(lines):
        text.append(NOISE)
        if i % (lines // len(NAMES)) == lines // len(NAMES) // 2 and len(numbers) < len(NAMES):
            name = NAMES[len(numbers)]
            numbers[name] = str(draw.randrange(10**6, 10**7))
            text.append(fact(name, numbers[name]))
    (folder / f"c{number}.txt").write_text("".join(text))
    return numbers


class Client:
    """One connection, opened again where it was closed."""

    def __init__(self, port):
        self.port, self.connection = port, None

    def open(self):
        if self.connection is None:
            self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=1800)
        return self.connection

    def close(self):
        if self.connection is not None:
            self.connection.close()
        self.connection = None

    def ask(self, body, leaves_after=None):
        """Status, text, tokens; text is None where the client has left."""
        for _ in range(2):  # the server closes idle connections
            try:
                self.open().request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
                if leaves_after is not None:
                    time.sleep(leaves_after)
                    self.close()
                    return 200, None, 0
                response = self.connection.getresponse()
                text = response.read().decode()
                break
            except (http.client.HTTPException, OSError):
                self.close()
        else:
            return 0, "closed", 0
        if response.status != 200:
            self.close()
            return response.status, text, 0
        if body.get("stream"):
            events = [event.removeprefix("data: ") for event in text.split("\n\n") if event and not event.startswith(":")]
            if events[-1] != "[DONE]":
                return 0, text, 0
            chunks = [json.loads(event) for event in events[:-1]]
            return 200, "".join(c["choices"][0]["text"] for c in chunks if c["choices"]), chunks[-1]["usage"]["completion_tokens"]
        answer = json.loads(text)
        return 200, answer["choices"][0]["text"], answer["usage"]["completion_tokens"]


class Load:
    def __init__(self, port, questions, alone):
        self.port, self.questions, self.alone = port, questions, alone
        self.lock = threading.Lock()
        self.counts = dict.fromkeys(("whole", "tokens", "left", "refused", "failed", "wrong", "else_after_fact"), 0)
        self.seconds, self.examples = [], []
        self.until = 0.0

    def client(self, seed):
        draw = random.Random(seed)
        client = Client(self.port)
        while time.monotonic() < self.until:
            key = draw.choice(list(self.questions))
            body = dict(self.questions[key])
            if draw.random() < 0.5:
                body.update(stream=True, stream_options={"include_usage": True})
            leaves = draw.uniform(0, 2) if draw.random() < 0.1 else None
            start = time.monotonic()
            status, text, tokens = client.ask(body, leaves)
            with self.lock:
                self.count(key, status, text, tokens, time.monotonic() - start)
            if status == 429:
                time.sleep(1)
        client.close()

    def count(self, key, status, text, tokens, seconds):
        counts = self.counts
        if status == 429:
            counts["refused"] += 1
        elif status != 200:
            counts["failed"] += 1
            self.examples.append((key, status, text))
        elif text is None:
            counts["left"] += 1
        else:
            counts["whole"] += 1
            counts["tokens"] += tokens
            self.seconds.append(seconds)
            want = self.alone[key]
            if text[:FACT_TOKENS] != want[:FACT_TOKENS]:
                counts["wrong"] += 1
                self.examples.append((key, text, want))
            elif text != want:
                counts["else_after_fact"] += 1

    def run(self, clients, seconds, every=None):
        """every: called each five seconds."""
        start = time.monotonic()
        self.until = start + seconds
        threads = [threading.Thread(target=self.client, args=(i,)) for i in range(clients)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            time.sleep(min(5, seconds))
            if every:
                every(time.monotonic() - start)
        took = time.monotonic() - start
        return self.counts["whole"] / took, self.counts["tokens"] / took


def metrics(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("topkv")
    parser.add_argument("model")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--alone", type=float, default=30, help="seconds with one client")
    parser.add_argument("--lines", type=int, default=150, help="of a context, 31 tokens each")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", default="2")
    asked = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="topkv-serve-"))
    questions, facts, files = {}, {}, []
    for c in range(3):
        numbers = make_context(folder, c, asked.lines)
        files.append(str(folder / f"c{c}.tkv"))
        subprocess.run([asked.topkv, "prefill", "-m", asked.model, "-f", str(folder / f"c{c}.txt"), "-o", files[-1],
                        "--device", asked.device], check=True, stderr=subprocess.DEVNULL)
        for name, number in numbers.items():
            for kind, before, tokens in (("short", "", FACT_TOKENS), ("long question", NOISE * 12, FACT_TOKENS), ("long answer", "", 40)):
                key = (f"c{c}", name, kind)
                questions[key] = {"context": f"c{c}", "prompt": before + question(name), "max_tokens": tokens, "temperature": 0}
                facts[key] = f" {number}."
    log = open(folder / "log", "w")
    server = subprocess.Popen([asked.topkv, "serve", "-m", asked.model, *files, "--port", "0", "--device", asked.device, "-t", asked.threads],
                              stdout=subprocess.PIPE, stderr=log, text=True)
    port = int(server.stdout.readline().rsplit(":", 1)[1])

    one = Client(port)
    alone = {key: one.ask(body)[1] for key, body in questions.items()}
    one.close()
    wrong = sum(alone[key][:FACT_TOKENS] != facts[key] for key in questions)
    size = metrics(port)['topkv_context_bytes{context="c0"}'] / 2**20
    print(f"{len(questions)} questions over three contexts of {size:.1f} MiB; asked alone, {len(questions) - wrong} give the fact")
    single = Load(port, questions, alone).run(1, asked.alone)
    print(f"1 client:   {single[0]:.2f} answers/s, {single[1]:.1f} tokens/s")

    rows = []

    def every(seconds):
        now = metrics(port)
        rows.append((seconds, now["process_resident_memory_bytes"]))
        if len(rows) % 12 == 1:
            steps = now["topkv_step_sessions_sum"] / max(1, now["topkv_step_sessions_count"])
            print(f"{seconds:6.0f} s  {now['process_resident_memory_bytes'] / 2**20:8.1f} MiB  {int(now['topkv_answers_running']):3d} answered "
                  f"{int(now['topkv_answers_waiting']):3d} wait  {steps:.2f} sessions a step  {load.counts}", flush=True)

    load = Load(port, questions, alone)
    many = load.run(asked.clients, 60 * asked.minutes, every)
    print(f"{asked.clients} clients: {many[0]:.2f} answers/s, {many[1]:.1f} tokens/s, {many[1] / max(single[1], 1e-9):.2f} times one client's")
    times = sorted(load.seconds)
    if times:
        print("seconds of an answer: half within {:.1f}, nine of ten within {:.1f}, all within {:.1f}".format(
            times[len(times) // 2], times[len(times) * 9 // 10], times[-1]))
    half = rows[len(rows) // 2:] or rows
    print(f"memory: {rows[0][1] / 2**20:.1f} MiB at first, {max(r[1] for r in rows) / 2**20:.1f} at most, "
          f"{max(r[1] for r in half) / 2**20:.1f} at most in the second half, {rows[-1][1] / 2**20:.1f} at the end")
    print(load.counts)
    for example in load.examples[:5]:
        print(example)
    end = metrics(port)
    server.send_signal(signal.SIGTERM)
    status = server.wait(timeout=120)
    print(f"ended with status {status}; {int(end['topkv_answers_running'])} answers were left, {int(end['topkv_disconnected_total'])} clients had gone")
    return 1 if load.counts["wrong"] or load.counts["failed"] or status or not load.counts["whole"] else 0


raise SystemExit(main())
