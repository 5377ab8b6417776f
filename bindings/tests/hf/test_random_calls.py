"""Random sequences of calls against a model of what a TopkCache holds: lengths, tokens, refusals.

Some hundred sequences; TOPKV_TEST_SEQUENCES=10000 for more.
"""

import os
import random
from dataclasses import dataclass, field

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import interrupts
import topkv
from small_models import EAGER, VOCABULARY, make_config
from topkv.hf import TopkCache
from transformers import AutoModelForCausalLM, DynamicCache

SEQUENCES = int(os.environ.get("TOPKV_TEST_SEQUENCES", "300"))
PARTS = 10
WINDOW = 6
CAPACITY = 14  # tokens that can follow a text


def make_small(family):
    config = make_config(family)
    config.num_hidden_layers, config.hidden_size, config.intermediate_size = 2, 32, 32
    config.num_attention_heads, config.num_key_value_heads = 2, 1
    config.vocab_size = VOCABULARY
    if hasattr(config, "mamba_d_head"):
        config.mamba_d_head = 16  # four heads of twice the hidden size
    if getattr(config, "sliding_window", None):
        config.sliding_window = WINDOW
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:2]
    torch.manual_seed(1)
    return AutoModelForCausalLM.from_config(config, **EAGER).eval()


@pytest.fixture(scope="module")
def models():
    return [make_small(x) for x in ("llama", "gemma2", "granitemoehybrid")]


@dataclass
class Held:
    """What a cache should hold."""

    rows: list[list[int]] = field(default_factory=lambda: [[]])
    text: int | None = None  # tokens of the text; None: it is being read
    records: bool = False
    was_cropped: bool = False
    kept: int = 0  # of the tokens, the last so many are in the tensors of a sliding window
    earlier: int | None = None  # tokens before the last call, if recurrences can go back to them

    @property
    def tokens(self):
        return len(self.rows[0])

    def freeze(self):
        if self.text is None:
            self.text = self.tokens

    def take(self, rows):
        ends = len(rows[0]) == 1 or (self.records and self.was_cropped)
        if self.text is None and self.tokens > 0 and ends:
            self.freeze()
        self.earlier = self.tokens
        self.rows = [old + new for old, new in zip(self.rows, rows, strict=True)]
        self.kept += len(rows[0])
        self.trim()

    def trim(self, cropped=False):
        if cropped or not self.records:
            self.kept = min(self.kept, WINDOW - 1)


class Sequence:
    """One text's cache and sessions over it, what they should hold, and calls by chance."""

    def __init__(self, model, chance):
        self.model, self.chance = model, chance
        options = {"k": 1000, "window": 3, "sinks": 1, "session_capacity": CAPACITY}
        cache = TopkCache(model.config, **options)
        self.is_sliding = any(cache.is_sliding)
        self.is_recurrent = any(cache.is_linear)
        self.pool = [(cache, Held())]

    def ids(self, rows, tokens):
        return [[self.chance.randrange(VOCABULARY) for _ in range(tokens)] for _ in range(rows)]

    def call(self, cache, rows, **how):
        return self.model(torch.tensor(rows), past_key_values=cache, use_cache=True, **how)

    def refuses(self, call, *kinds):
        with pytest.raises(kinds or topkv.InvalidArgument):
            call()

    # Each: something to do with one of the caches, and what it does to what it should hold.

    def read(self, cache, held):
        tokens = self.chance.choice([1, 1, 2, 3, 5, 8])
        rows = self.ids(len(held.rows), tokens)
        ends = held.tokens > 0 and (tokens == 1 or (held.records and held.was_cropped))
        if held.text is not None or ends:
            own = held.tokens - (held.tokens if held.text is None else held.text)
            if own + tokens > CAPACITY:
                self.refuses(lambda: self.call(cache, rows))
                if ends:
                    held.freeze()
                return
        self.call(cache, rows)
        held.take(rows)

    def read_and_be_interrupted(self, cache, held):
        rows = self.ids(len(held.rows), self.chance.choice([2, 3]))
        if held.text is None and not (held.records and held.was_cropped):
            ended, _ = interrupts.run_until(
                lambda: self.call(cache, rows), self.chance.randrange(60)
            )
            assert ended

    def be_refused(self, cache, held):
        """Calls that nothing comes of. With two tokens, so that none ends the text."""
        batch, tokens = len(held.rows), held.tokens
        rows = self.ids(batch, 2)
        mask = torch.ones(batch, tokens + 3, dtype=torch.int64)
        own = torch.zeros(batch, 1, 2, tokens + 2)
        ends = held.text is None and held.records and held.was_cropped and tokens > 0
        how = self.chance.randrange(6 if not ends else 3)
        if how == 0:
            self.refuses(lambda: self.call(cache, rows, attention_mask=mask))
        elif how == 1 and tokens > 0:  # else it is a batch of texts
            self.refuses(lambda: self.call(cache, rows + self.ids(1, 2)))
        elif how == 2:
            self.model.train()
            self.refuses(lambda: self.call(cache, rows), topkv.Unsupported)
            self.model.eval()
        elif how == 3:
            self.refuses(
                lambda: self.call(cache, rows, attention_mask=own), topkv.Unsupported
            )
        elif how == 4:
            self.refuses(lambda: cache.freeze("hnsw:M=x"))
        else:
            self.refuses(lambda: cache.session(k=0))

    def freeze(self, cache, held):
        if held.tokens == 0:
            self.refuses(cache.freeze)
        else:
            cache.freeze()
            held.freeze()

    def freeze_in_vain(self, cache, held):
        """An index that these few keys are too few for."""
        if held.tokens > 0:
            self.refuses(lambda: cache.freeze("faiss:IVF4096,SQ8"), topkv.Error)

    def session(self, cache, held):
        if held.tokens == 0:
            self.refuses(cache.session)
            return
        batch = self.chance.choice([1, 1, 2])
        session = cache.session(batch=batch)
        held.freeze()
        text = held.rows[0][: held.text]
        kept = min(held.text, WINDOW - 1)
        new = Held([list(text) for _ in range(batch)], text=held.text, kept=kept)
        self.pool = self.pool[:2] + [(session, new)]

    def record(self, cache, held):
        cache.activate_past_recording()
        held.records = True

    def crop(self, cache, held):
        removed = self.chance.choice([0, 1, 2, 3])
        own = held.tokens - (held.text or 0)
        left = held.tokens - removed
        too_many = removed > own
        if self.is_sliding and removed:
            dropped = held.tokens >= WINDOW and not held.records
            too_many |= dropped or held.kept - removed < min(WINDOW - 1, left)
        if self.is_recurrent and removed:
            too_many |= left not in (held.text or 0, held.earlier)
        if too_many:
            self.refuses(lambda: cache.crop(-removed))
            return
        cache.crop(-removed)
        held.earlier = None if removed else held.earlier
        held.was_cropped = True
        held.rows = [row[:left] for row in held.rows]
        held.kept -= removed
        if held.tokens + removed >= WINDOW:
            held.trim(cropped=True)

    def reset(self, cache, held):
        if self.chance.random() < 0.3:
            cache.reset()
            held.__init__()

    def reorder(self, cache, held):
        rows = [self.chance.randrange(len(held.rows)) for _ in held.rows]
        cache.reorder_cache(torch.tensor(rows))
        if rows != list(range(len(rows))):
            held.earlier = None
        held.rows = [list(held.rows[row]) for row in rows]

    def repeat(self, cache, held):
        if len(held.rows) > 1 or held.tokens == 0:
            return
        cache.batch_repeat_interleave(2)
        held.freeze()
        held.earlier = None
        held.rows = [list(row) for row in held.rows for _ in range(2)]

    def select(self, cache, held):
        if len(held.rows) > 1:
            cache.batch_select_indices(torch.tensor([1]))
            held.rows, held.earlier = [held.rows[1]], None

    def generate(self, cache, held):
        """Two tokens after a continuation."""
        own = held.tokens - (held.tokens if held.text is None else held.text)
        if held.text is not None and own + 4 > CAPACITY:
            return
        new = self.ids(len(held.rows), self.chance.choice([1, 2, 3]))
        given = torch.tensor([a + b for a, b in zip(held.rows, new, strict=True)])
        out = self.model.generate(
            given, past_key_values=cache, max_new_tokens=2, do_sample=False
        ).tolist()
        held.take([row[held.tokens : -2] for row in out])
        held.take([row[-2:-1] for row in out])

    def generate_another(self, cache, held):
        """Another text, longer or shorter, or the same again."""
        if held.tokens == 0:
            return
        rows = [list(row) for row in held.rows]
        how = self.chance.randrange(3)
        if how == 0:
            at = self.chance.randrange(held.tokens)
            rows[-1][at] = (rows[-1][at] + 1) % VOCABULARY
            rows = [row + [5, 6] for row in rows]
        elif how == 1 and held.tokens > 1:
            rows = [row[:-1] for row in rows]
        self.refuses(
            lambda: self.model.generate(
                torch.tensor(rows), past_key_values=cache, max_new_tokens=2, do_sample=False
            )
        )

    CALLS = (
        [read] * 8
        + [be_refused, freeze_in_vain, read_and_be_interrupted, freeze, session, record, crop]
        + [crop, reset, reorder, repeat, select, generate, generate_another]
    )

    def check(self):
        for cache, held in self.pool:
            tokens = held.tokens
            of_layers = {x.get_seq_length() for x in cache.layers if hasattr(x, "get_seq_length")}
            assert of_layers == {tokens}
            assert cache.get_seq_length() == tokens
            assert (cache.context is None) == (held.text is None)
            if held.text is not None:
                assert cache.context.tokens == held.text
            for session in cache.sessions:
                assert session.own_tokens == tokens - held.text
            if tokens:
                cache._engine.state.ids.check_begin(torch.tensor(held.rows), tokens)

    def check_logits(self):
        """The next token of every cache sees the tokens that it should hold."""
        for cache, held in self.pool:
            if held.tokens - (held.text or 0) >= CAPACITY:
                continue
            rows = self.ids(len(held.rows), 1)
            found = self.call(cache, rows).logits[:, -1]
            whole = torch.tensor([a + b for a, b in zip(held.rows, rows, strict=True)])
            dense = DynamicCache(config=self.model.config)
            expected = self.call(dense, whole.tolist()).logits[:, -1]
            assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()


def run(model, seed):
    chance = random.Random(seed)
    sequence = Sequence(model, chance)
    done = []
    try:
        for _ in range(chance.randint(4, 14)):
            cache, held = chance.choice(sequence.pool)
            call = chance.choice(Sequence.CALLS)
            done.append(f"{call.__name__} of {held.tokens} tokens, text {held.text}")
            call(sequence, cache, held)
            sequence.check()
        sequence.check_logits()
    except BaseException as error:
        error.add_note(f"sequence {seed}: {'; '.join(done)}")
        raise


@pytest.mark.parametrize("part", range(PARTS))
def test_random_calls_leave_what_they_should(part, models):
    for seed in range(part, SEQUENCES, PARTS):
        run(models[seed // PARTS % len(models)], seed)
