"""The command llm: prompts, streamed or not, turns, a system message, a template of a context, completions."""

import os
import pathlib
import subprocess
import sys

from facts import *

home = pathlib.Path(WORK, "llm")
home.mkdir(exist_ok=True)
(home / "extra-openai-models.yaml").write_text(
    f"""- model_id: smol
  model_name: {MODEL}
  api_base: {URL}
  supports_tools: true
- model_id: book
  model_name: {MODEL}:book
  api_base: {URL}
- model_id: smol-plain
  model_name: {MODEL}
  api_base: {URL}
  completion: true
"""
)
LLM = str(pathlib.Path(sys.executable).with_name("llm"))


def run(*words, sent=None):
    environment = {**os.environ, "LLM_USER_PATH": str(home), "OPENAI_API_KEY": "none"}
    return subprocess.run([LLM, *words], input=sent, capture_output=True, text=True, env=environment, timeout=300)


def llm(*words, sent=None):
    done = run(*words, sent=sent)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout.removesuffix("\n")


GREEDY_SMOL = ("-m", "smol", "-o", "temperature", "0", "-o", "max_tokens", str(TOKENS))
expected = chat_text(QUESTION)
fact("models are listed", "smol" in llm("models"), "smol")
same("a prompt, streamed", lambda: llm(*GREEDY_SMOL, QUESTION), expected)
same("a second turn", lambda: llm("-c", "-o", "temperature", "0", "-o", "max_tokens", str(TOKENS), FOLLOW_UP), "\n".join(turns_text(QUESTION, FOLLOW_UP)).removeprefix(expected).strip("\n"))
same("a prompt, whole", lambda: llm(*GREEDY_SMOL, "--no-stream", QUESTION), expected)
brief = "Answer with one word."
same("a system message", lambda: llm(*GREEDY_SMOL, "-s", brief, QUESTION), chat_text(QUESTION, "--system", brief))
usage = run(*GREEDY_SMOL, "--usage", QUESTION).stderr
fact("usage", "input" in usage and "output" in usage, usage.strip())
same("a text on standard input", lambda: llm(*GREEDY_SMOL, QUESTION, sent="Paris is large."), chat_text("Paris is large.\n" + QUESTION))
hero = "Who is the hero of the story?"
same("a context by the model's name", lambda: llm("-m", "book", "-o", "temperature", "0", "-o", "max_tokens", str(TOKENS), hero), context_text("book", hero))
same("a completion", lambda: llm("-m", "smol-plain", "-o", "temperature", "0", "-o", "max_tokens", str(TOKENS), STORY), plain_text(STORY))
chat = llm("chat", *GREEDY_SMOL, sent=f"{QUESTION}\n{FOLLOW_UP}\nquit\n")
fact("llm chat", expected in chat, chat)
failed_run = run(*GREEDY_SMOL, "-T", "llm_version", QUESTION)
fact("tools, which the model's template does not know, are refused", failed_run.returncode != 0 and "tool" in failed_run.stderr, failed_run.stderr.strip())
failed_run = run(*GREEDY_SMOL, sent=TOO_LONG)
fact("a prompt that is too long is refused", failed_run.returncode != 0 and "maximum context length" in failed_run.stderr, failed_run.stderr.strip())
