#!/usr/bin/env python3
"""How often `topkv ask --cite` names the file and the line of the fact that a question asks for.

Each context has several files, which are made of consecutive lines of real texts. Facts are hidden in
them, each on a line of its own, and one question asks for each fact. A question is a hit at n if the
fact's file and line are among the first n citations.

    python bench/citations.py --topkv build/release/src/cli/topkv -m models/needle-14m --needles \\
        --texts DIR --half second

DIR has texts (*.txt, *.md, *.txt.xz). Give --chat for a model with a chat template. Prints one line for
each question as it goes, and a table at the end.
"""

from __future__ import annotations

import argparse
import json
import lzma
import random
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

NAMES = (
    "Alice Boris Clara Dmitri Elena Farid Greta Hassan Ingrid Jorge Katya Liam Mirela Nadia Oscar Priya "
    "Quentin Rosa Stefan Tamara Umberto Vera Walter Ximena Yusuf Zelda"
).split()
CITIES = "Lisbon Oslo Nairobi Quito Hanoi Riga Tunis Lima Kyoto Dublin Prague Bergen Havana Cairo".split()
ADJECTIVES = "amber crimson silent golden frozen rusty velvet hollow misty copper".split()
NOUNS = "falcon lantern harbor orchard compass anvil meadow glacier violin bridge".split()
ANIMALS = "parrot tortoise donkey ferret heron goat lizard hamster".split()


@dataclass
class Fact:
    line: str
    question: str
    answer: str
    file: str = ""
    number: int = 0


def needles(draw: random.Random, count: int) -> list[Fact]:
    """Facts as the bundled model knows them."""
    keys = draw.sample([f"{a}-{n}" for a in ADJECTIVES for n in NOUNS], count)
    facts = []
    for key in keys:
        value = str(draw.randint(10**6, 10**7 - 1))
        about = f"special magic number for {key} mentioned in the provided text"
        facts.append(
            Fact(
                f"One of the special magic numbers for {key} is: {value}.",
                f"What is the {about}? The {about} is",
                value,
            )
        )
    return facts


def sentences(draw: random.Random, count: int) -> list[Fact]:
    """Facts of five kinds about names and things that are different in each fact."""
    names = draw.sample(NAMES, count)
    things = draw.sample([f"{a} {n}" for a in ADJECTIVES for n in NOUNS], count)
    facts = []
    for i, (name, thing) in enumerate(zip(names, things)):
        city, animal = draw.choice(CITIES), draw.choice(ANIMALS)
        year, code, track = draw.randint(1950, 2015), draw.randint(10000, 99999), draw.randint(2, 49)
        facts.append(
            [
                Fact(
                    f"{name} opened a small bakery in {city} in the spring of {year}.",
                    f"In which city did {name} open a small bakery?",
                    city,
                ),
                Fact(
                    f"The access code of the {thing} storage room is {code}.",
                    f"What is the access code of the {thing} storage room?",
                    str(code),
                ),
                Fact(
                    f"The favourite pet of {name} is a {animal} that sleeps all day.",
                    f"Which animal is the favourite pet of {name}?",
                    animal,
                ),
                Fact(
                    f"The train named {thing} leaves from platform {track} every morning.",
                    f"From which platform does the train named {thing} leave?",
                    str(track),
                ),
                Fact(
                    f"The bridge over the {thing} river was built in {year}.",
                    f"In which year was the bridge over the {thing} river built?",
                    str(year),
                ),
            ][i % 5]
        )
    return facts


def lines_of(folder: Path, half: str) -> list[str]:
    """The lines of all texts of a folder, or of one half of each of them. Empty lines are left out."""
    lines: list[str] = []
    for path in sorted(folder.iterdir()):
        if path.name.endswith(".txt.xz"):
            text = lzma.open(path, "rt", encoding="utf-8").read()
        elif path.suffix in (".txt", ".md"):
            text = path.read_text(encoding="utf-8")
        else:
            continue
        found = [line for line in text.split("\n") if line.strip()]
        middle = len(found) // 2
        lines += {"first": found[:middle], "second": found[middle:], "all": found}[half]
    if not lines:
        raise SystemExit(f"{folder}: has no *.txt, *.md or *.txt.xz; give a folder with texts")
    return lines


def write_files(folder: Path, lines: list[str], facts: list[Fact], draw: random.Random, files: int, size: int):
    """Writes files of `size` bytes in all, with the facts among their lines. Returns their names."""
    at = draw.randrange(len(lines))
    texts: list[list[str]] = []
    for _ in range(files):
        text: list[str] = []
        while sum(map(len, text)) < size / files:
            text.append(lines[at % len(lines)])
            at += 1
        texts.append(text)
    for fact in facts:
        text = draw.choice(texts)
        text.insert(draw.randrange(len(text) + 1), fact.line)
    names = []
    for number, text in enumerate(texts):
        name = folder / f"text{number}.txt"
        name.write_text("\n".join(text) + "\n", encoding="utf-8")
        names.append(str(name))
        for fact in facts:
            if fact.line in text:
                fact.file, fact.number = str(name), text.index(fact.line) + 1
    return names


def output_of(command: list[str]) -> str:
    """The standard output of a command. Ends the program with the command's errors if it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{command[0]} {command[1]} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def prompt_of(args, fact: Fact) -> str:
    """A question in the form that the model takes behind the files."""
    if args.chat:
        return fact.question
    return f"\n{fact.question}" if args.needles else f"\nQuestion: {fact.question}\nAnswer:"


def answers(args, names: list[str], facts: list[Fact], folder: Path) -> tuple[int, list[dict]]:
    """Reads the files and asks all questions. Returns the tokens of the context, and the answers."""
    context = folder / "context.tkv"
    common = ["-m", args.model, *(["-t", str(args.threads)] if args.threads else [])]
    read = [args.topkv, "prefill", *common, "-o", str(context), "--json", "--quiet", *args.prefill.split()]
    read += ["--chat"] if args.chat else []
    for name in names:
        read += ["-f", name]
    made = json.loads(output_of(read))
    ask = [args.topkv, "ask", str(context), *common, "--cite", "--json", "--quiet", "--temp", "0"]
    ask += ["-n", str(args.predict), *args.ask.split()]
    for fact in facts:
        ask += ["-p", prompt_of(args, fact)]
    events = [json.loads(line) for line in output_of(ask).splitlines()]
    return made["context_tokens"], [event for event in events if event["event"] == "answer"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--topkv", required=True, help="the command")
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--texts", type=Path, required=True, help="a folder with *.txt, *.md or *.txt.xz")
    parser.add_argument("--half", choices=("first", "second", "all"), default="all", help="of each text")
    parser.add_argument("--needles", action="store_true", help="facts as the bundled model knows them")
    parser.add_argument("--chat", action="store_true", help="ask in the model's chat template")
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--facts", type=int, default=10, help="facts in a context, each asked for")
    parser.add_argument("--files", type=int, default=4, help="files of a context")
    parser.add_argument("--kib", type=int, default=24, help="size of a context's files")
    parser.add_argument("--predict", type=int, default=20, help="the most tokens of an answer")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=0, help="0: all cores")
    parser.add_argument("--prefill", default="", help="further flags of topkv prefill")
    parser.add_argument("--ask", default="", help="further flags of topkv ask")
    args = parser.parse_args()
    lines = lines_of(args.texts, args.half)
    draw = random.Random(args.seed)
    right = first = third = right_third = asked = 0
    tokens: list[int] = []
    while asked < args.questions:
        count = min(args.facts, args.questions - asked)
        facts = (needles if args.needles else sentences)(draw, count)
        with tempfile.TemporaryDirectory() as folder:
            names = write_files(Path(folder), lines, facts, draw, args.files, args.kib * 1024)
            length, found = answers(args, names, facts, Path(folder))
        tokens.append(length)
        for fact, answer in zip(facts, found, strict=True):
            places = [(of["file"], of["line"]) for of in answer["citations"]]
            place = (fact.file, fact.number)
            is_right = fact.answer.lower() in answer["text"].lower()
            asked += 1
            right += is_right
            first += place in places[:1]
            third += place in places[:3]
            right_third += is_right and place in places[:3]
            rank = places.index(place) + 1 if place in places else 0
            print(f"{asked:4} rank {rank} {'right' if is_right else 'wrong'} {fact.question!r} {answer['text']!r}")
            sys.stdout.flush()
    share = f"{100 * right_third / right:.1f} %" if right else "-"
    print("| model | tokens | questions | answered right | hits@1 | hits@3 | hits@3 if answered right |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    print(
        f"| {Path(args.model).name} | {min(tokens):,} to {max(tokens):,} | {asked} | {100 * right / asked:.1f} % "
        f"| {100 * first / asked:.1f} % | {100 * third / asked:.1f} % | {share} |"
    )


if __name__ == "__main__":
    main()
