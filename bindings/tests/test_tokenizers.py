"""topkv.Tokenizer against the tokenizers library, on small tokenizers of every kind that topkv runs and 300,000 bytes of
nasty text. tools/compare_tokenizers.py does the same with more."""

import codecs
import random

import pytest

tokenizers = pytest.importorskip("tokenizers")
import tokenizer_kinds  # noqa: E402
from nasty_text import nasty_text  # noqa: E402

import topkv  # noqa: E402

NAMES = tokenizer_kinds.NAMES


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """By name: the library's tokenizer and topkv's, of the same file."""
    folder = tmp_path_factory.mktemp("tokenizers")
    made = {}
    for name, tokenizer in tokenizer_kinds.all_tokenizers().items():
        file = folder / f"{name.replace('/', '-')}.json"
        tokenizer.save(str(file))
        made[name] = (tokenizer, topkv.Tokenizer.load(file))
    assert sorted(made) == sorted(NAMES)
    return made


@pytest.fixture(scope="module")
def text():
    return nasty_text(300_000, seed=2)


@pytest.mark.parametrize("name", NAMES)
def test_nasty_text_gets_the_ids_of_the_library(pairs, text, name):
    theirs, ours = pairs[name]
    for begin in range(0, len(text), 50_000):
        part = text[begin : begin + 50_000]
        assert ours.encode(part) == theirs.encode(part, add_special_tokens=False).ids
    for part in ["", " ", "  ", "\n", "a", " a", "\u0301", "<s>", " <s> a", "<mask> a", "▁", "_ _", "\u200b", "\ufeffa"]:
        assert ours.encode(part) == theirs.encode(part, add_special_tokens=False).ids, part
        assert ours.encode(part, True) == theirs.encode(part).ids, part


@pytest.mark.parametrize("name", NAMES)
def test_ids_decode_to_the_text_of_the_library(pairs, text, name):
    theirs, ours = pairs[name]
    added = theirs.get_added_tokens_decoder()
    special = {token for token, one in added.items() if one.special}
    # The library spells added tokens that are normalized in their normal form, and leaves none out.
    apart = special | {token for token, one in added.items() if one.normalized}
    ids = theirs.encode(text[:100_000], add_special_tokens=False).ids
    assert ours.decode(ids) == ours.decode([token for token in ids if token not in special])
    plain = [token for token in ids if token not in apart]
    assert ours.decode(plain) == theirs.decode(plain)
    rng = random.Random(7)
    for length in [1, 2, 3, 5, 10, 100, 1000] * 20:  # runs of bytes that are no characters among them
        low, high = rng.choice([(0, theirs.get_vocab_size() - 1), (3, 258), (240, 300)])
        ids = [token for token in (rng.randint(low, high) for _ in range(length)) if token not in apart]
        assert ours.decode(ids) == theirs.decode(ids)


@pytest.mark.parametrize("name", NAMES)
def test_bytes_of_tokens_make_the_decoded_text_but_for_spaces_at_its_ends(pairs, text, name):
    theirs, ours = pairs[name]
    # Text like "<0xE9>" becomes that byte, which is no character.
    ids = theirs.encode("x" + text[:100_000].replace("<0x", "<1x"), add_special_tokens=False).ids
    stream = codecs.getincrementaldecoder("utf-8")("replace")
    parts = [stream.decode(ours.bytes_of_token(token)) for token in ids]
    parts.append(stream.decode(b"", final=True))
    assert "".join(parts).strip(" ") == ours.decode(ids).strip(" ")


def test_characters_are_taken_together_as_the_library_does(tmp_path):
    """Unicode's clusters decide what a precompiled_charsmap replaces: code points of all planes that have some."""
    rules = {"\u00a0": "B", "a": "A", "\u0600": "P", "\u00a9": "C"}
    vocabulary = [("<unk>", 0.0)] + [(f"<0x{byte:02X}>", 0.0) for byte in range(256)]
    theirs = tokenizers.Tokenizer(tokenizers.models.Unigram(vocabulary, 0, True))
    theirs.normalizer = tokenizers.normalizers.Precompiled(tokenizer_kinds.charsmap(rules))
    theirs.decoder = tokenizers.decoders.ByteFallback()
    theirs.save(str(tmp_path / "tokenizer.json"))
    ours = topkv.Tokenizer.load(tmp_path / "tokenizer.json")
    points = [c for c in [*range(0x20000), *range(0xE0000, 0xE1000)] if not 0xD800 <= c < 0xE000]
    around = "\n\u00a0{0}\na{0}\n\u0600{0}\n{0}a\n{0}\u0301\n\u00a9\u200d{0}\n"
    for begin in range(0, len(points), 4096):
        text = "".join(around.format(chr(c)) for c in points[begin : begin + 4096])
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids
