"""From a folder of texts and the tasks to batches of tokens, weights and positions.

Every step's batch follows from (seed, step) alone, whatever the number of workers, so that a
resumed run sees what the uninterrupted one would have seen.
"""

import math
import random
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers, trainers

import tasks

BOS, EOS = 0, 1
SPECIAL = ["<|bos|>", "<|eos|>"]
# The pattern of models/needle-14m: GPT-2's words, but every digit alone, so that a number is
# copied digit by digit and no number is rarer than another.
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
           r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
NOISE = ("The grass is green. The sky is blue. The sun is yellow. Here we go. "
         "There and back again.\n")
ANSWER_WEIGHT = 10.0


def read_texts(folder):
    """All .txt files below the folder, by name."""
    folder = Path(folder)
    if not folder.is_dir():
        raise SystemExit(f"{folder}: no such folder; give one that holds .txt files")
    paths = sorted(folder.rglob("*.txt"))
    if not paths:
        raise SystemExit(f"{folder}: no .txt file in it; put the training texts there as UTF-8")
    texts = []
    for path in paths:
        try:
            texts.append(path.read_text(encoding="utf-8"))
        except UnicodeDecodeError as error:
            raise SystemExit(f"{path}: not UTF-8 at byte {error.start}; convert it") from error
    return texts


def common_words(texts, most=8000):
    """Lower-case words of the texts, most frequent first: the stuff that keys are made of."""
    counts = {}
    for text in texts:
        for word in re.findall(r"\b[a-z]{3,10}\b", text):
            counts[word] = counts.get(word, 0) + 1
    words = sorted(counts, key=lambda word: (-counts[word], word))[:most]
    if len(words) < 200:
        raise SystemExit(f"the texts hold {len(words)} different words of 3 to 10 letters, at "
                         "least 200 are needed; add text")
    return words


def train_tokenizer(texts, words, vocab_size, seed):
    """Byte-level BPE over the texts and a share of task wording."""
    if vocab_size < 256 + len(SPECIAL):
        raise SystemExit(f"--vocab {vocab_size}: byte-level BPE needs {256 + len(SPECIAL)} or more")
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(tokenizers.Regex(PATTERN), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=SPECIAL, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    rng = random.Random(seed)
    wording = []
    for _ in range(500):
        task = tasks.draw(rng, words, rng.randint(1, 20))
        wording.append(task.intro + "\n".join(task.facts) +
                       "".join(prompt + answer for prompt, answer in task.questions))
    tokenizer.train_from_iterator(texts + wording, trainer)
    if tokenizer.get_vocab_size() != vocab_size:
        raise SystemExit(f"the texts give a vocabulary of {tokenizer.get_vocab_size()} tokens "
                         f"only; lower --vocab {vocab_size} or add text")
    return tokenizer


def check_tokenizer(tokenizer, source):
    for number, content in enumerate(SPECIAL):
        if tokenizer.token_to_id(content) != number:
            raise SystemExit(f"{source}: expected {content} with id {number}, found id "
                             f"{tokenizer.token_to_id(content)}")


@dataclass
class Corpus:
    ids: np.ndarray  # uint16 or int32, all texts one after the other
    noise: np.ndarray
    ends: np.ndarray  # [vocab] bool: may a sentence end with this token?
    words: list


def tokenize(tokenizer, texts, words):
    width = np.uint16 if tokenizer.get_vocab_size() <= 65536 else np.int32
    pieces = []
    for text in texts:
        # Paragraph by paragraph: one call over a whole book takes far more memory.
        for encoding in tokenizer.encode_batch(re.split(r"(?<=\n)(?=\n)", text)):
            pieces.append(np.array(encoding.ids, dtype=width))
    ends = np.zeros(tokenizer.get_vocab_size(), dtype=bool)
    for token in range(len(SPECIAL), tokenizer.get_vocab_size()):
        ends[token] = tokenizer.decode([token])[-1:] in (".", "\n", "!", "?")
    noise = np.array(tokenizer.encode(NOISE).ids, dtype=width)
    return Corpus(np.concatenate(pieces), noise, ends, words)


class Sampler:
    """Makes single samples: tokens [length] and the weight of each in the loss."""

    def __init__(self, tokenizer, corpus):
        self.tokenizer, self.corpus = tokenizer, corpus

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def sample(self, rng, length):
        if rng.random() < 0.2:
            return self.copying(rng, length)
        count = int(math.exp(rng.uniform(0, math.log(min(1024, max(2, length // 96))))))
        return self.place(rng, length, tasks.draw(rng, self.corpus.words, count))

    def hay(self, rng, length):
        """length tokens of running text, or of noise that says nothing, as some of RULER's."""
        source = self.corpus.noise if rng.random() < 0.15 else self.corpus.ids
        start = rng.randrange(len(source))
        parts, have = [], 0
        while have < length:
            part = source[start:start + length - have]
            parts.append(part)
            have += len(part)
            start = 0 if source is self.corpus.noise else rng.randrange(len(source))
        return np.concatenate(parts).astype(np.int64) if parts else np.zeros(0, np.int64)

    def place(self, rng, length, task, depth=None):
        """Hides the task's facts in text and asks its questions at the end.

        depth: where in the text a single fact lies, 0 to 1; random when None.
        Whatever does not fit is left out, questions first; a length that cannot hold one fact and
        one question is refused.
        """
        intro = [BOS] + self.encode(task.intro)
        facts = [self.encode(f" {fact} ") for fact in task.facts]
        questions = [(self.encode(prompt), self.encode(answer))
                     for prompt, answer in task.questions]
        room = length - len(intro) - sum(map(len, facts)) - 1
        tail, weights = [], []
        for prompt, answer in questions:
            if len(tail) + len(prompt) + len(answer) > room:
                break
            tail += prompt + answer
            weights += [1.0] * len(prompt) + [ANSWER_WEIGHT] * len(answer)
        if not tail:
            raise ValueError(f"{length} tokens cannot hold {len(facts)} facts and a question")
        tail.append(EOS)
        weights.append(1.0)

        hay = self.hay(rng, length - len(intro) - sum(map(len, facts)) - len(tail))
        ends = np.concatenate(([0], 1 + np.flatnonzero(self.corpus.ends[hay])))
        wanted = sorted(rng.uniform(0, len(hay)) if depth is None else depth * len(hay)
                        for _ in facts)
        cuts = ends[np.minimum(np.searchsorted(ends, wanted), len(ends) - 1)]
        parts, begin = [np.array(intro)], 0
        for cut, fact in zip(cuts, facts):
            parts += [hay[begin:cut], np.array(fact)]
            begin = cut
        parts += [hay[begin:], np.array(tail)]
        ids = np.concatenate(parts).astype(np.int64)
        weight = np.ones(length, dtype=np.float32)
        weight[length - len(weights):] = weights
        return ids, weight

    def copying(self, rng, length):
        """Text in which spans come again word for word, or nonsense that does."""
        ids = np.concatenate(([BOS], self.hay(rng, length - 1)))
        if rng.random() < 0.3:  # without any help from language
            ids[1:] = np.random.default_rng(rng.getrandbits(32)).integers(
                len(SPECIAL), len(self.corpus.ends), length - 1)
        weight = np.ones(length, dtype=np.float32)
        marker = np.array(self.encode("\nAgain: "))
        lead = 8  # tokens that say which span is meant; only what follows them can be known
        at = length // 2
        while True:
            span = min(rng.randint(24, 256), length // 4)
            if at + len(marker) + span > length:
                return ids, weight
            source = rng.randrange(1, length // 2 - span)
            ids[at:at + len(marker)] = marker
            at += len(marker)
            ids[at:at + span] = ids[source:source + span]
            weight[at + lead:at + span] = ANSWER_WEIGHT
            at += span + rng.randint(0, 64)


def positions(rng, length, reach, skip_share=0.5):
    """Ascending positions [length]; in half of the samples with gaps, so that they spread.

    Distances that short samples do not have are learnt from the gaps (PoSE, Zhu et al. 2023): the
    span is drawn log-uniformly up to `reach` and the skipped positions lie at a few random cuts.
    """
    place = np.arange(length, dtype=np.int64)
    if length >= reach or rng.random() > skip_share:
        return place
    span = math.exp(rng.uniform(math.log(length), math.log(reach)))
    cuts = sorted(rng.randrange(length) for _ in range(rng.randint(1, 32)))
    total = int(span) - length
    ends = sorted(rng.randint(0, total) for _ in cuts)
    for cut, skipped, before in zip(cuts, ends, [0] + ends):
        place[cut:] += skipped - before
    return place


class Steps(torch.utils.data.Dataset):
    """Item `step` is that step's batch: ids, weights and positions, each [rows, length]."""

    def __init__(self, sampler, plan, reach, seed):
        self.sampler, self.plan, self.reach, self.seed = sampler, plan, reach, seed

    def __len__(self):
        return len(self.plan)

    def __getitem__(self, step):
        rows, length = self.plan[step]
        batch = []
        for row in range(rows):
            rng = random.Random(f"{self.seed} {step} {row}")
            while True:
                try:
                    ids, weight = self.sampler.sample(rng, length)
                    break
                except ValueError:  # facts too long for the length: draw another task
                    continue
            batch.append((ids, weight, positions(rng, length, self.reach)))
        return tuple(torch.from_numpy(np.stack(part)) for part in zip(*batch))
