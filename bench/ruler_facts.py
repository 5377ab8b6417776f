"""What a prompt of one of RULER's tasks is made of: its wording, with what is drawn replaced by
capitals in brackets, and its counts. It reads text alone, so that prompts of several generators can
be compared."""

from __future__ import annotations

import re
from collections import Counter

NEEDLE = re.compile(r"One of the special magic (numbers|uuids) for (.+?) is: (.+?)\.")
NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"


def facts_of(task: str, prompt: str, references: list[str]) -> dict[str, object]:
    """Facts by name; the same names for all prompts of a task. Raises ValueError for a prompt that
    is not worded as the task's."""
    kind = task.split("_")[0]
    made = {"niah": _needles, "vt": _variables, "cwe": _common, "fwe": _frequent}[kind]
    return {"references": len(references)} | made(prompt, references)


def _parts(pattern: str, text: str) -> dict[str, str]:
    match = re.fullmatch(pattern, text, re.DOTALL)
    if match is None:
        raise ValueError(f"a prompt of another wording: {text[:100]!r} … {text[-300:]!r}")
    return match.groupdict()


def _kind(text: str) -> str:
    if re.fullmatch(UUID, text):
        return "uuid"
    return f"{len(text)} digits" if text.isdigit() else "adjective-noun"


def _needles(prompt: str, references: list[str]) -> dict[str, object]:
    parts = _parts(r"(?P<intro>[^\n]*)\n(?P<context>.*)\n(?P<question>[^\n]*)", prompt)
    needles = NEEDLE.findall(parts["context"])
    asked = {key for _, key, value in needles if value in references}
    question = parts["question"]
    for key in sorted(asked, key=len, reverse=True):
        question = question.replace(key, "[KEY]")
    rest = NEEDLE.sub("[NEEDLE]", parts["context"])
    of_needles = set(rest.split("\n")) == {"[NEEDLE]"}
    of_noise = set(rest.split("\n")) == {"[NEEDLE]", NOISE}
    keys = Counter(key for _, key, _ in needles)
    haystack = "needles, by lines" if of_needles else "noise, by lines" if of_noise else "text"
    return {
        "introduction": parts["intro"],
        "question": question,
        "haystack": haystack,
        "needles": "all lines" if of_needles else len(needles),
        "needles say": ", ".join(sorted({kind for kind, _, _ in needles})),
        "keys asked": len(asked),
        "keys": ", ".join(sorted({_kind(key) for key in keys})),
        "values": ", ".join(sorted({_kind(value) for _, _, value in needles})),
        "values of a key": max(keys.values()),
    }


def _chain(text: str) -> dict[str, object]:
    begin = re.findall(r"VAR ([A-Z]+) = (\d+)", text)
    hops = re.findall(r"VAR ([A-Z]+) = VAR ([A-Z]+)", text)
    names = [name for name, _ in begin] + [name for name, _ in hops]
    linked = all(new[1] == old for new, old in zip(hops, names))
    lines = re.sub(r"\b[A-Z]{3,}\b(?= =|\s)", "[NAME]", text.replace("VAR", "var"))
    lines = set(re.sub(r"\d{5}", "[VALUE]", lines).split("\n"))
    lines = {re.sub(re.escape(NOISE), "[NOISE]", line) for line in lines if line}
    return {
        "chains": len(begin),
        "hops": len(hops),
        "each of the one before": linked,
        "letters of a name": max(map(len, names)),
        "digits of the value": max(len(value) for _, value in begin),
        "lines": " | ".join(sorted(lines)).replace("var", "VAR"),
    }


def _variables(prompt: str, references: list[str]) -> dict[str, object]:
    begin = "Memorize and track the chain(s) of variable assignment hidden in the following text."
    if prompt.count(begin) != 2:
        raise ValueError(f"expected an example and a task: {prompt[:100]!r}")
    at = prompt.rindex(begin)
    example, asked = prompt[:at], prompt[at:]
    made: dict[str, object] = {"between example and task": repr(example[len(example.rstrip()) :])}
    for name, text in (("example", example.rstrip()), ("task", asked)):
        parts = _parts(r"(?P<intro>.*?)\n\n(?P<context>.*)\nQuestion: (?P<question>[^\n]*)", text)
        question = re.sub(r"\b\d{5}\b", "[VALUE]", parts["question"])
        made[f"{name}: introduction"] = parts["intro"]
        made[f"{name}: question"] = repr(re.sub(r"\b[A-Z]{3}\b", "[NAME]", question))
        made |= {f"{name}: {fact}": value for fact, value in _chain(parts["context"]).items()}
    return made


def _list(text: str) -> dict[str, object]:
    words = [word for _, word in re.findall(r"(\d+)\. (.+?)(?= \d+\. |$)", text)]
    times = Counter(Counter(words).values())
    often = max(times)
    return {
        "words that are common": times[often],
        "times of a common word": often,
        "times of another": ", ".join(str(n) for n in sorted(times) if n != often),
        "other words": sum(times[n] for n in times if n != often),
        "numbered": text.startswith("1. ") and f" {len(words)}. " in text,
    }


def _common(prompt: str, references: list[str]) -> dict[str, object]:
    begin = "Below is a numbered list of words."
    at = prompt.rindex(begin)
    made: dict[str, object] = {"example": "yes" if at > 0 else "none"}
    shape = r"(?P<intro>[^\n]*)\n(?P<context>[^\n]*)\n+Question: (?P<question>.*?)\n?"
    for name, text in (("example", prompt[:at]), ("task", prompt[at:])):
        if text:
            parts = _parts(shape, text)
            question = re.sub(r"(?<=: 1\. ).*", "[ANSWER]", parts["question"])
            made[f"{name}: introduction"] = parts["intro"]
            made[f"{name}: question"] = repr(question)
            made |= {f"{name}: {fact}": x for fact, x in _list(parts["context"]).items()}
    return made


def _frequent(prompt: str, references: list[str]) -> dict[str, object]:
    parts = _parts(
        r"(?P<intro>.*? coded words\. )(?P<context>[^\n]*)\nQuestion: (?P<question>.*)", prompt
    )
    words = Counter(parts["context"].split(" "))
    ranked = [word for word, _ in words.most_common()]
    total = sum(words.values())
    return {
        "introduction": parts["intro"],
        "question": repr(parts["question"]),
        "noise word": ranked[0],
        "answers are ranks 2 to 4": set(ranked[1:4]) == set(references),
        "letters of a word": max(len(word) for word in ranked[1:]),
        "share of rank 1": round(words[ranked[0]] / total, 2),
        "share of rank 2": round(words[ranked[1]] / total, 2),
        "different words": len(words),
        "words": total,
    }
