"""A model that is asked through generate: reading texts and answering."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast
from transformers.generation.stopping_criteria import StoppingCriteria


def load_tokenizer(model: str, **options: Any) -> Any:
    """The tokenizer of a checkpoint; a bare tokenizer.json will do."""
    bare = Path(model) / "tokenizer.json"
    if bare.exists() and not (Path(model) / "tokenizer_config.json").exists():
        return PreTrainedTokenizerFast(tokenizer_file=str(bare))
    return AutoTokenizer.from_pretrained(model, **options)


def encode_of(tokenizer: Any) -> Callable[[str], list[int]]:
    # A text longer than the model is cut by the task; the tokenizer's warning of it is noise.
    return lambda text: tokenizer.encode(text, add_special_tokens=False, verbose=False)


def beginning_of(tokenizer: Any) -> list[int]:
    """The tokens that the tokenizer puts before a text: a BOS, if any."""
    plain = tokenizer.encode("a", add_special_tokens=False)
    full = tokenizer.encode("a")
    for at in range(len(full)):
        if full[at : at + len(plain)] == plain:
            return full[:at]
    return full


@contextmanager
def greedy(model: Any) -> Iterator[None]:
    """Makes generate() take the likeliest token until one ends the text, whatever the checkpoint's
    settings are."""
    own = model.generation_config
    pad = own.pad_token_id
    if pad is None:  # generate() wants one, and says so else; a text by itself is not padded
        pad = own.eos_token_id[0] if isinstance(own.eos_token_id, list) else own.eos_token_id
    model.generation_config = GenerationConfig(
        do_sample=False, eos_token_id=own.eos_token_id, pad_token_id=pad
    )
    try:
        yield
    finally:
        model.generation_config = own


class _Watch(StoppingCriteria):
    """Sees each token: notes the time of the first, and ends an answer at the end of its line."""

    def __init__(self, decode: Callable[[Sequence[int]], str], prompt: int, one_line: bool):
        self._decode, self._prompt, self._one_line = decode, prompt, one_line
        self.first_at: float | None = None
        self.tokens = 0

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        tokens = input_ids[0, self._prompt :].tolist()  # waits for the device
        self.first_at = self.first_at or time.perf_counter()
        self.tokens += 1
        # A line break before the first word does not end the answer.
        ends = self._one_line and "\n" in self._decode(tokens).lstrip(" \n")
        return torch.tensor([ends], device=input_ids.device)


@dataclass(frozen=True)
class Answer:
    text: str
    tokens: int
    question_seconds: float
    decode_seconds: float
    decode_steps: int  # tokens decoded in decode_seconds


class Asked:
    """A model with its tokenizer. Texts are ids [1, n] on the model's device."""

    def __init__(self, model: Any, tokenizer: Any, chunk: int):
        self.model, self.tokenizer, self._chunk = model, tokenizer, chunk
        eos = model.generation_config.eos_token_id
        self._eos = set(eos if isinstance(eos, list) else [eos])

    def ids(self, tokens: Sequence[int]) -> torch.Tensor:
        return torch.tensor([list(tokens)], device=self.model.device)

    def decode(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(
            tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )

    def read(self, ids: torch.Tensor, cache: Any) -> float:
        """Gives the cache a text, and returns the seconds that took."""
        start, end = time.perf_counter(), ids.shape[1]
        at = 0
        while at < end:
            # A single token would end the text of a TopkCache.
            more = end - at if end - at <= self._chunk + 1 else self._chunk
            self.model.base_model(ids[:, at : at + more], past_key_values=cache, use_cache=True)
            at += more
        if ids.is_cuda:
            torch.cuda.synchronize(ids.device)
        return time.perf_counter() - start

    def ask(
        self, text: torch.Tensor, question: torch.Tensor, cache: Any, predict: int,
        one_line: bool = False, steps: bool = False,
    ) -> Answer:
        """The answer to a question after the text that the cache holds. steps: the question is fed
        token by token, as in decoding."""
        ids = torch.cat((text, question), dim=1)
        start = time.perf_counter()
        if steps:
            for at in range(text.shape[1], ids.shape[1] - 1):
                self.model(ids[:, at : at + 1], past_key_values=cache, use_cache=True)
        watch = _Watch(self.decode, ids.shape[1], one_line)
        out = self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            past_key_values=cache,
            max_new_tokens=predict,
            stopping_criteria=[watch],
        )
        end = time.perf_counter()
        tokens = out[0, ids.shape[1] :].tolist()
        if tokens and tokens[-1] in self._eos:
            tokens.pop()
        return Answer(
            text=self.decode(tokens),
            tokens=len(tokens),
            question_seconds=watch.first_at - start,
            decode_seconds=end - watch.first_at,
            decode_steps=watch.tokens - 1,
        )
