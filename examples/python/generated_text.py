"""Invented English sentences, no two alike for long: a haystack that needs no files."""

from __future__ import annotations

import random
from collections.abc import Iterator

ADJECTIVES = """amber ancient bold brave calm candid clever cosmic crimson curious daring distant
eager elegant famous fearless festive frosty gallant gentle golden graceful hidden hollow humble
jolly keen lively lonely lucid mellow mighty misty modest noble northern patient placid polite
proud quiet rapid rosy rustic scarlet serene silent silver sleepy solar steady stormy sunny swift
tender tranquil vivid western wild witty""".split()
NOUNS = """acorn anchor anvil arrow badge ballad barley basket beacon bridge cabin candle canyon
castle cedar comet compass copper cottage crystal dolphin dragon falcon feather fiddle forest
fountain galaxy garden glacier goblet hammer harbor hill island jasmine kettle ladder lagoon
lantern lemon locket magnet maple meadow mirror mosaic needle oasis orchard otter palace pebble
piano quarry ribbon river rocket saddle sparrow summit thistle timber valley violin willow
window""".split()
PEOPLE = "engineers painters farmers merchants sailors teachers gardeners weavers clerks".split()
THINGS = "habits letters roads machines stories markets seasons tools maps songs rules".split()
VERBS = "admire avoid borrow carry collect compare describe follow improve measure repair".split()
ADVERBS = "seldom often quietly gladly usually slowly carefully sometimes openly".split()
PLACES = (
    "in the northern valleys", "along the old canal", "behind the town hall", "near the harbor",
    "in small workshops", "at the edge of the forest", "across the plain", "beside the mill",
    "in quiet libraries", "between the two hills", "far from the capital",
)


def sentences(seed: int) -> Iterator[str]:
    """Endless invented sentences, the same for the same seed."""
    pick = random.Random(seed).choice
    while True:
        forms = (
            f"The {pick(PEOPLE)} {pick(PLACES)} {pick(ADVERBS)} {pick(VERBS)} {pick(THINGS)}.",
            f"{pick(PLACES).capitalize()}, the {pick(PEOPLE)} {pick(VERBS)} the {pick(ADJECTIVES)} "
            f"{pick(NOUNS)}.",
            f"Some {pick(PEOPLE)} {pick(VERBS)} {pick(THINGS)}, and others {pick(VERBS)} the "
            f"{pick(NOUNS)} {pick(PLACES)}.",
            f"A {pick(ADJECTIVES)} {pick(NOUNS)} is {pick(ADVERBS)} seen {pick(PLACES)}.",
        )
        yield pick(forms)


def text_of_words(words: int, seed: int) -> str:
    """Sentences of at least so many words."""
    chosen: list[str] = []
    source, count = sentences(seed), 0
    while count < words:
        chosen.append(next(source))
        count += chosen[-1].count(" ") + 1
    return " ".join(chosen)
