"""Whatever ends a call of the cache, and wherever: made again it gives what it would have given."""

import os

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import interrupts
from small_models import FAMILIES, OTHERS, make_ids, make_model
from topkv.hf import TopkCache
from topkv.hf.kept import is_recurrent

ALL = {"k": 10_000, "window": 8, "sinks": 2}

#: One point in so many is tried, of families whose layers differ for topkv: full attention, windows, sinks, shared rows,
#: a wide K that is V, learnt positions, experts, recurrences. With TOPKV_TEST_EVERY_POINT=1, each point of all families.
STRIDES = {"llama": 29, "gemma2": 29, "gpt_oss": 29}
STRIDES |= dict.fromkeys(["gemma3n", "gemma4-shared", "gemma4_text", "gpt2", "mixtral", "qwen2-window"], 97)
RECURRENT = ["granitemoehybrid", "lfm2", "qwen3_next", "zaya"]
STRIDES |= dict.fromkeys(RECURRENT, 47)
EVERY_POINT = bool(os.environ.get("TOPKV_TEST_EVERY_POINT"))
if EVERY_POINT:
    STRIDES = dict.fromkeys([*FAMILIES, *OTHERS, *RECURRENT], 1)


class Run:
    """A cache and the calls that are made of it, each once."""

    def __init__(self, model):
        self.model = model
        self.cache = TopkCache(model.config, **ALL, progress=False)
        self.sessions = {}

    def read(self, tokens, seed, cache=None, rows=1):
        cache = self.cache if cache is None else cache
        ids = make_ids(tokens, self.model.device, seed=seed, rows=rows)
        return self.model(ids, past_key_values=cache, use_cache=True).logits

    def make_session(self, name, batch):
        self.sessions[name] = self.cache.session(batch=batch)

    def state(self):
        caches = [self.cache, *self.sessions.values()]
        layers = [[x for x in c.layers if hasattr(x, "get_seq_length")] for c in caches]
        bytes_of = [(c.memory().sliding, c.memory().states) for c in caches]
        lengths = [{layer.get_seq_length() for layer in own} for own in layers]
        return list(zip((c.get_seq_length() for c in caches), bytes_of, lengths, strict=True))

    def counted(self):
        """What a call changes when it is done, and not on its way."""
        states = [c._engine.state for c in [self.cache, *self.sessions.values()]]
        counts = [(s.tokens, s.records, s.batch, len(self.sessions)) for s in states]
        # A text that a step ends stays ended when the step fails; so the step changes no more.
        is_read = [s.text is None for s in states if s.tokens > 30]
        return counts, is_read

    def calls(self):
        """Name and call. Of 30 tokens and more, so that windows of 24 are full."""
        read, sessions = self.read, self.sessions
        full = not any(self.cache.is_sliding)  # windows have dropped what a crop would need
        # The states of recurrences can go back by whole calls.
        last = 3 if any(map(is_recurrent, self.cache.layers)) else 2
        yield "prefill", lambda: read(25, 1)
        yield "chunk", lambda: read(9, 2)
        yield "two tokens too many", lambda: read(2, 11)
        yield "crop of the text", lambda: self.cache.crop(-2) if full else None
        yield "freeze", lambda: self.cache.freeze()
        yield "step", lambda: read(1, 3)
        yield "question", lambda: read(4, 4)
        yield "record", lambda: self.cache.activate_past_recording()
        yield "candidates", lambda: read(3, 5)
        yield "crop", lambda: self.cache.crop(-last)
        yield "step after crop", lambda: read(1, 6)
        yield "session", lambda: self.make_session("two", 2)
        yield "batch", lambda: read(3, 7, sessions["two"], rows=2)
        yield "reorder", lambda: sessions["two"].reorder_cache(torch.tensor([1, 1]))
        yield "batch after reorder", lambda: read(1, 8, sessions["two"], rows=2)
        yield "reset", lambda: self.cache.reset()
        yield "prefill after reset", lambda: read(7, 9)
        yield "first step freezes", lambda: read(1, 10)


@pytest.mark.parametrize("family, stride", STRIDES.items())
def test_a_call_ended_anywhere_can_be_made_again(family, stride):
    model = make_model(family, torch.device("cpu"))
    undisturbed, counted, disturbed = (Run(model) for _ in range(3))
    calls = zip(undisturbed.calls(), counted.calls(), disturbed.calls(), strict=True)
    tried = 0
    for (name, expected), (_, to_count), (_, call) in calls:
        logits, points, _ = interrupts.run_counting(expected, undisturbed.counted)
        # Once made in vain, a call has less to do: what it made on its way is there.
        first = points * 3 // 4
        if first > 0:
            assert interrupts.run_until(to_count, first)[0], name
        _, points, after = interrupts.run_counting(to_count, counted.counted)
        assert after <= 4, f"{name}: {after} points after it counted"
        for point in (first, *range(tried % stride, points, stride), points - 1):
            if point not in range(points):
                continue
            held = disturbed.state()
            ended, found = interrupts.run_until(call, point)
            if not ended:
                break
            assert disturbed.state() == held, f"{name}, ended at point {point} of {points}"
            tried += 1
        else:
            found = call()
        assert disturbed.state() == undisturbed.state(), name
        if isinstance(logits, torch.Tensor):
            assert torch.equal(found, logits), f"{name}: off by {(found - logits).abs().max()}"
    assert tried > (500 if EVERY_POINT else 20)
