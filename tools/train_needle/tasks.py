"""Retrieval tasks: facts to hide in a text, and questions about them.

A task is a function (rng, words, count) -> Task, with `count` facts or about as many. It knows
nothing of tokens or of the text around the facts; data.py places them. Wording follows RULER
(Hsieh et al. 2024, appendix B) where RULER has the task, so that a model trained here can be
asked in RULER's words.

`python tools/train_needle --self-check` checks that every answer follows from its facts.
"""

import random
import re
import string
from dataclasses import dataclass


@dataclass
class Task:
    """facts are hidden in the text in the order given; a fact is a whole sentence or line."""

    intro: str
    facts: list[str]
    questions: list[tuple[str, str]]  # (prompt, answer): the text goes on prompt + answer


def number(rng, digits=7):
    return str(rng.randrange(10 ** (digits - 1), 10**digits))


def distinct(rng, count, make):
    """count different results of make(rng), in random order."""
    seen = {}
    while len(seen) < count:
        seen[make(rng)] = None
    return list(seen)


def pair(words):
    return lambda rng: f"{rng.choice(words)}-{rng.choice(words)}"


def joined(items):
    """a / a, and b / a, b, and c: as RULER lists several answers."""
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + ", and " + items[-1]


def needles(rng, words, count):
    """RULER's niah_*: one to four values for a key, keys and values numbers or word pairs."""
    kind, values_are = rng.choice(
        [("numbers", number), ("numbers", number), ("words", pair(words))])
    make_key = rng.choice([pair(words), pair(words), number, lambda rng: rng.choice(words)])
    several = 1 if rng.random() < 0.7 else rng.randint(2, 4)
    keys = distinct(rng, max(1, min(count // several, len(words) // 2)), make_key)
    values = distinct(rng, len(keys) * several, values_are)
    owned = {key: values[i * several:(i + 1) * several] for i, key in enumerate(keys)}
    placed = [(key, value) for key in keys for value in owned[key]]
    rng.shuffle(placed)
    order = {key: [v for k, v in placed if k == key] for key in keys}

    one = kind[:-1]
    if len(placed) == 1:
        intro = (f"A special magic {one} is hidden within the following text. Make sure to "
                 f"memorize it. I will quiz you about the {one} afterwards.\n")
    else:
        intro = (f"Some special magic {kind} are hidden within the following text. Make sure to "
                 f"memorize it. I will quiz you about the {kind} afterwards.\n")
    questions = []
    for key in rng.sample(keys, len(keys)):
        if several == 1:
            what, verb = f"the special magic {one} for {key} mentioned in the provided text", "is"
            questions.append((f"\nWhat is {what}? The{what[3:]} {verb}", f" {order[key][0]}."))
        else:
            what = f"the special magic {kind} for {key} mentioned in the provided text"
            questions.append((f"\nWhat are all {what}? The{what[3:]} are",
                              f" {joined(order[key])}."))
    facts = [f"One of the special magic {kind} for {key} is: {value}." for key, value in placed]
    return Task(intro, facts, questions)


def key_values(rng, words, count):
    """Lines of a table, a JSON object or assignments; asked by giving the key again."""
    keys = distinct(rng, count, rng.choice([pair(words), number]))
    values = distinct(rng, count, rng.choice([number, pair(words), lambda rng: number(rng, 12)]))
    left, right = rng.choice([('"{}": "', '{}",'), ("{} = ", "{}"), ("{}: ", "{}"),
                              ("The value of {} is ", "{}.")])
    facts = [left.format(k) + right.format(v) for k, v in zip(keys, values)]
    asked = rng.sample(range(count), count)
    questions = [("\n" + left.format(keys[i]).rstrip(), _after(left) + right.format(values[i]))
                 for i in asked]
    return Task("", facts, questions)


def _after(left):
    """The blank that ends `left`: it belongs to the answer, for tokens begin with blanks."""
    return left[len(left.rstrip()):]


def variable_chains(rng, words, count):
    """RULER's variable tracking: which variables hold a value, through chains of assignments."""
    hops = rng.randint(2, 5)
    chains = max(1, count // hops)
    names = distinct(rng, chains * hops,
                     lambda rng: "".join(rng.choices(string.ascii_uppercase, k=5)))
    values = distinct(rng, chains, lambda rng: number(rng, 5))
    lines = []
    for c in range(chains):
        chain = names[c * hops:(c + 1) * hops]
        lines.append([f"VAR {chain[0]} = {values[c]}"] +
                     [f"VAR {b} = VAR {a}" for a, b in zip(chain, chain[1:])])
    facts = _interleaved(rng, lines)
    questions = []
    for c in rng.sample(range(chains), chains):
        chain = names[c * hops:(c + 1) * hops]
        questions.append((
            f"\nQuestion: Find all variables that are assigned the value {values[c]} in the text "
            f"above. Answer: According to the chain(s) of variable assignment in the text above, "
            f"{hops} variables are assigned the value {values[c]}, they are:",
            " " + " ".join(chain)))
    intro = ("Memorize and track the chain(s) of variable assignment hidden in the following "
             "text.\n")
    return Task(intro, facts, questions)


def _interleaved(rng, chains):
    """All lines in random order, those of one chain in their own order."""
    order = [c for c, lines in enumerate(chains) for _ in lines]
    rng.shuffle(order)
    rest = [iter(lines) for lines in chains]
    return [next(rest[c]) for c in order]


def pass_key(rng, words, count):
    """Landmark attention's pass key (Mohtashami and Jaggi 2023)."""
    key = number(rng, rng.randint(5, 7))
    intro = ("There is an important info hidden inside a lot of irrelevant text. Find it and "
             "memorize it. I will quiz you about the important information there.\n")
    fact = f"The pass key is {key}. Remember it. {key} is the pass key."
    return Task(intro, [fact], [("\nWhat is the pass key? The pass key is", f" {key}.")])


def free_form(rng, words, count):
    """Sentences about people and places whose answer is a few words of the text."""
    verb, question = rng.choice([
        ("The best thing to do in {} is to {}.", "What is the best thing to do in {}?"),
        ("{} keeps the {} in the shed.", "What does {} keep in the shed?"),
        ("The secret ingredient of {} is {}.", "What is the secret ingredient of {}?"),
        ("The meeting in {} was moved to {}.", "Where was the meeting in {} moved to?"),
    ])
    subjects = distinct(rng, count, lambda rng: f"{rng.choice(words)} {rng.choice(words)}".title())
    objects = [" ".join(rng.choices(words, k=rng.randint(1, 5))) for _ in subjects]
    facts = [verb.format(s, o) for s, o in zip(subjects, objects)]
    before, end = verb.rsplit(" {}", 1)
    questions = [(f"\n{question.format(subjects[i])} {before.format(subjects[i])}",
                  f" {objects[i]}{end}") for i in rng.sample(range(count), count)]
    return Task("", facts, questions)


# Tasks and how often each is drawn. data.py adds copying, which needs the text itself.
TASKS = [(needles, 5), (key_values, 2), (variable_chains, 2), (pass_key, 1), (free_form, 2)]


def draw(rng, words, count):
    makers, shares = zip(*TASKS)
    return rng.choices(makers, shares)[0](rng, words, count)


def self_check(words):
    """Raises AssertionError where an answer does not follow from the facts."""
    for seed in range(300):
        rng = random.Random(seed)
        for make, _ in TASKS:
            task = make(rng, words, rng.randint(1, 40))
            assert task.facts and task.questions, make.__name__
            for prompt, answer in task.questions:
                assert prompt.startswith("\n") and not prompt.endswith(" "), (make.__name__, prompt)
                assert _follows(make, task.facts, prompt, answer), (make.__name__, prompt, answer)


def _follows(make, facts, prompt, answer):
    if make is needles:
        key = re.search(r"magic (?:number|word)s? for (\S+) mentioned", prompt)[1]
        owned = [fact.split(" is: ")[1][:-1] for fact in facts if f" for {key} is: " in fact]
        return answer == f" {joined(owned)}."
    if make is variable_chains:
        value = re.search(r"assigned the value (\d+) in", prompt)[1]
        held = []  # in the order of assignment
        for fact in facts:
            name, source = fact.removeprefix("VAR ").split(" = ")
            if source == value or source.removeprefix("VAR ") in held:
                held.append(name)
        return answer.split() == held
    if make is key_values:
        return (prompt + answer).strip() in facts
    statement = prompt.split("? ", 1)[1] + answer  # the fact, or its beginning
    return any(fact.startswith(statement) for fact in facts)
