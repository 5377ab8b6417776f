"""A long text of noise with facts hidden in it, as token ids; used by the other scripts.

Noise, facts and questions are RULER's (Hsieh et al. 2024, single-value numbers):
"One of the special magic numbers for busy-otter is: 4087213."
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from generated_text import ADJECTIVES, NOUNS

NOISE = (
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n"
)
INTRO = (
    "A special magic number is hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the number afterwards.\n"
)
NEEDLE_14M = Path(__file__).resolve().parents[2] / "models" / "needle-14m"


@dataclass
class Needle:
    depth: float  # 0 to 1, of the text
    value: str
    sentence: str
    question: str


def make_needles(count: int, seed: int = 0) -> list[Needle]:
    """Facts at evenly spread depths, each about another thing."""
    draw = random.Random(seed)
    needles = []
    for i, words in enumerate(zip(draw.sample(ADJECTIVES, count), draw.sample(NOUNS, count))):
        key = "-".join(words)
        value = str(draw.randint(1000000, 9999999))
        needles.append(
            Needle(
                depth=(i + 0.5) / count,
                value=value,
                sentence=f"One of the special magic numbers for {key} is: {value}.\n",
                question=f"What is the special magic number for {key} mentioned in the provided "
                f"text? The special magic number for {key} mentioned in the provided text is",
            )
        )
    return needles


def text_with(needles: list[Needle], tokens: int, tokenizer) -> list[int]:
    """Ids of a text of at most this many tokens that holds the needles at their depths."""

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False)

    noise = encode(NOISE)
    hidden = [encode(needle.sentence) for needle in needles]
    ids = tokenizer.encode("", add_special_tokens=True) + encode(INTRO)
    room = tokens - len(ids) - sum(map(len, hidden))
    if room < 0:
        raise ValueError(f"{tokens} tokens cannot hold {len(needles)} needles")
    written = 0
    for needle, sentence in zip(needles, hidden):
        while (written + 1) * len(noise) <= needle.depth * room:
            ids += noise
            written += 1
        ids += sentence
    ids += noise * (room // len(noise) - written)
    return ids


def load_tokenizer(directory: str | Path):
    """The tokenizer of a checkpoint; needle-14m's is a bare tokenizer.json."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if (Path(directory) / "tokenizer_config.json").exists():
        return AutoTokenizer.from_pretrained(directory)
    return PreTrainedTokenizerFast(tokenizer_file=str(Path(directory) / "tokenizer.json"))
