"""What the clients here share: the server's addresses, the command's answers, facts that are checked and printed.

A program prints each fact. Its exit status is 1 when one did not hold, or when it checked nothing.
"""

import atexit
import os
import subprocess
import sys
import time
import urllib.request

SERVER = os.environ["TOPKV_URL"]
URL = SERVER + "/v1"
MODEL = os.environ["TOPKV_MODEL"]  # as /v1/models lists it
MODEL_FILE = os.environ["TOPKV_MODEL_FILE"]
WORK = os.environ["TOPKV_WORK"]  # a folder for what a client writes

QUESTION = "What is the capital of France?"
FOLLOW_UP = "And of Italy?"
STORY = "Once upon a time, in a small village by the sea,"
TOKENS = 24
TOO_LONG = "The grass is green. " * 2500  # some 12,500 tokens; the model was made for 8192

checked, failed = 0, 0


def fact(what, holds, found=""):
    """Prints whether it holds, and what was found."""
    global checked, failed
    checked += 1
    failed += not holds
    text = str(found).replace("\n", "\\n")
    print(f"  {'holds ' if holds else 'FAILED'}  {what}" + (f": {text[:300]}" if text else ""), flush=True)
    return holds


def same(what, found, expected):
    """What is found is the expected; a call that fails does not find it."""
    if callable(found):
        try:
            found = found()
        except Exception as problem:
            return fact(what, False, f"{type(problem).__name__}: {problem}")
    if found == expected:
        return fact(what, True, repr(found))
    return fact(what, False, f"{found!r}, expected {expected!r}")


def refused(what, error, call, *words):
    """The call raises this error, whose message has these words."""
    try:
        result = call()
    except error as problem:
        return fact(what, all(word in str(problem) for word in words), f"{type(problem).__name__}: {problem}")
    except Exception as problem:
        return fact(what, False, f"{type(problem).__name__}, expected {error.__name__}: {problem}")
    return fact(what, False, f"was answered: {result}")


def tried(what, call):
    """What the call returns; a failure is a fact that does not hold, and None."""
    try:
        return call()
    except Exception as problem:
        fact(what, False, f"{type(problem).__name__}: {problem}")
        return None


def command(*words, sent=None):
    """What the command topkv prints, without the end of its last line."""
    done = subprocess.run([os.environ["TOPKV"], *words], input=sent, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout.removesuffix("\n")


GREEDY = ("-m", MODEL_FILE, "--temp", "0", "--quiet")


def chat_text(question, *more, tokens=TOKENS):
    return command("generate", "--chat", *GREEDY, "-n", str(tokens), "-p", question, *more)


def plain_text(prompt, *more, tokens=TOKENS):
    return command("generate", *GREEDY, "-n", str(tokens), "-p", prompt, *more)


def context_text(name, prompt, tokens=TOKENS):
    return command("ask", os.path.join(WORK, name + ".tkv"), *GREEDY, "-n", str(tokens), "-p", prompt)


def turns_text(*questions, tokens=TOKENS):
    """The last answer of a conversation."""
    lines = "".join(question + "\n" for question in questions)
    return command("chat", *GREEDY, "-n", str(tokens), sent=lines).rstrip("\n").split("\n")


def metric(name):
    with urllib.request.urlopen(SERVER + "/metrics") as response:
        for line in response.read().decode().splitlines():
            if line.startswith(name + " "):
                return float(line.split()[1])
    raise KeyError(name)


def becomes(name, value, seconds=20):
    """Whether the server's metric has this value within that time."""
    until = time.monotonic() + seconds
    while metric(name) != value and time.monotonic() < until:
        time.sleep(0.05)
    return metric(name) == value


@atexit.register
def finish():
    print(f"{checked} facts, {failed} failed", flush=True)
    if failed or not checked:
        sys.stdout.flush()
        os._exit(1)
