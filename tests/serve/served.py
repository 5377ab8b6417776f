"""What the scripts that ask topkv serve over HTTP share: a server of their own, and contexts with facts in them.

A script is given TOPKV MODEL_DIRECTORY WORK_DIRECTORY, and works in the last of them.
"""

import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time

TOPKV, MODEL, WORK = sys.argv[1], pathlib.Path(sys.argv[2]).resolve(), pathlib.Path(sys.argv[3])
MOST_SECONDS = 120  # of any wait
NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n"
TEMPLATE = (
    '{% for m in messages %}{{ "<" ~ m.role ~ ">" }}{{ m.content }}{{ "\\n" }}{% endfor %}'
    '{{ "<a>" if add_generation_prompt }}'
)
NUMBERS = {"quiet-river": "7281934", "tall-tower": "5520017"}
failures = []


def holds(what, condition, found=""):
    if not condition:
        failures.append(what)
        print(f"FAILED: {what} {found}")


def question(name):
    at = f"special magic number for {name} mentioned in the provided text"
    return f" What is the {at}? The {at} is"


def run(*words):
    done = subprocess.run([TOPKV, *words], capture_output=True, text=True, timeout=MOST_SECONDS)
    assert done.returncode == 0, done.stderr
    return done.stdout


class Server:
    def __init__(self, *words, env=None, model="chat"):
        self.log = open(WORK / "serve.log", "a+")
        self.process = subprocess.Popen(
            [TOPKV, "serve", "-m", model, "--port", "0", "--device", "cpu", "-t", "2", "--kv-window", "64", *words],
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env={**os.environ, **(env or {})},
        )
        address = self.process.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:"), (WORK / "serve.log").read_text()
        self.port = int(address.rsplit(":", 1)[1])

    def request(self, method, path, body=None, headers=None):
        """Status, headers, body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=MOST_SECONDS)
        try:
            text = body if isinstance(body, (bytes, str)) or body is None else json.dumps(body)
            sent = {"Content-Type": "application/json"} if body is not None else {}
            connection.request(method, path, text, {**sent, **(headers or {})})
            response = connection.getresponse()
            return response.status, response.headers, response.read().decode()
        finally:
            connection.close()

    def post(self, path, body, headers=None):
        status, _, text = self.request("POST", path, body, headers)
        return status, json.loads(text)

    def get(self, path):
        return json.loads(self.request("GET", path)[2])

    def raw(self, sent, wait=MOST_SECONDS):
        """What comes back for these bytes, to the end of the connection."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=wait) as connection:
            received = b""
            try:
                connection.sendall(sent)
                while piece := connection.recv(65536):
                    received += piece
            except ConnectionError:
                pass
            return received

    def metric(self, name):
        for line in self.request("GET", "/metrics")[2].splitlines():
            if line.startswith(name + " "):
                return float(line.split()[1])
        raise AssertionError(name)

    def becomes(self, name, value):
        until = time.monotonic() + MOST_SECONDS
        while self.metric(name) != value and time.monotonic() < until:
            time.sleep(0.05)
        return self.metric(name) == value

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=MOST_SECONDS)


def prepare():
    """The folder of work: the model with a chat template, a plain context "notes" and a chat context "talk"."""
    shutil.rmtree(WORK, ignore_errors=True)
    (WORK / "chat").mkdir(parents=True)
    os.chdir(WORK)
    for file in MODEL.iterdir():
        if file.name != "chat_template.jinja":
            (WORK / "chat" / file.name).symlink_to(file)
    (WORK / "chat/chat_template.jinja").write_text(TEMPLATE)
    facts = [f"One of the special magic numbers for {name} is: {number}.\n" for name, number in NUMBERS.items()]
    (WORK / "notes.txt").write_text(NOISE * 12 + facts[0] + NOISE * 12 + facts[1])
    run("prefill", "-m", "chat", "-f", "notes.txt", "-o", "notes.tkv", "--device", "cpu")
    run("prefill", "-m", "chat", "-f", "notes.txt", "-o", "talk.tkv", "--chat", "--device", "cpu")


def result():
    """The exit status of the script."""
    print("all as it should be" if not failures else f"{len(failures)} failed")
    return 1 if failures else 0
