"""Small tokenizers of every kind and option that topkv runs, trained here; the structure of their tokenizer.json is that of
known models."""

import collections
import itertools
import json
import random
import struct
import unicodedata

from nasty_text import nasty_text
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def charsmap(rules: dict[str, str]) -> bytes:
    """A precompiled_charsmap that replaces the keys by the values: a double array as darts-clone lays it out."""
    tree: dict = {}
    texts = b""
    for key, value in rules.items():
        node = tree
        for byte in key.encode():
            node = node.setdefault(byte, {})
        node[None] = len(texts)
        texts += value.encode() + b"\0"
    units, taken, bases = [0] * 256, {0}, set()
    first_free = 1
    open_nodes = [(tree, 0)]
    while open_nodes:
        node, place = open_nodes.pop()
        labels = [byte or 0 for byte in node]
        while first_free in taken:
            first_free += 1
        for slot in itertools.count(first_free):  # where the first of the node's children would be
            base = slot ^ labels[0]
            offset = base ^ place
            if base not in bases and base > 0 and offset < 1 << 21 and taken.isdisjoint(base ^ label for label in labels):
                break
        bases.add(base)
        taken.update(base ^ label for label in labels)
        units.extend([0] * ((base | 0xFF) + 1 - len(units)))
        units[place] |= offset << 10 | (256 if None in node else 0)
        for byte, child in node.items():
            if byte is None:
                units[base] = child | 1 << 31
            else:
                units[base ^ byte] = byte
                open_nodes.append((child, base ^ byte))
    return struct.pack(f"<{len(units) + 1}I", 4 * len(units), *units) + texts


def nfkc_rules(seed: int = 5) -> dict[str, str]:
    """Some of what NFKC does, sequences of marks too, white space to a space, some characters to nothing."""
    rng = random.Random(seed)
    rules = {}
    for point in itertools.chain(range(0x80, 0x3400), range(0xF900, 0x10000), range(0x1D400, 0x1D500), range(0x1F100, 0x1F1FF)):
        c = chr(point)
        normal = unicodedata.normalize("NFKC", c)
        if normal != c and rng.random() < 0.4:
            rules[c] = normal
        parts = unicodedata.normalize("NFD", c)
        if len(parts) > 1 and unicodedata.normalize("NFC", parts) == c and rng.random() < 0.4:
            rules[parts] = c
    for c in "\t\n\r\u00a0\u2003\u3000\u200b":
        rules[c] = " "
    for c in "\x01\x7f\u00ad\ufeff\u061c":
        rules[c] = ""
    rules.update({"~": "～", "ab": "BA", "ſ": "s"})
    return rules


def special(content: str, **flags: bool) -> AddedToken:
    return AddedToken(content, special=True, normalized=False, **flags)


def training_text() -> list[str]:
    return nasty_text(400_000, seed=1).splitlines()


def common_characters(lines: list[str], count: int) -> list[str]:
    """The lines without characters that are not among the commonest: those shall be unknown."""
    kept = {c for c, _ in collections.Counter(itertools.chain(*lines)).most_common(count)}
    return ["".join(c for c in line if c in kept) for line in lines]


def _trained(model, pre_tokenizer, trainer, lines: list[str]) -> dict:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.train_from_iterator(lines, trainer)
    return json.loads(tokenizer.to_str())["model"]


class Models:
    """What is trained once."""

    def __init__(self) -> None:
        llama3 = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(LLAMA3), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
        )
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        self.bytes = _trained(
            models.BPE(), llama3, trainers.BpeTrainer(vocab_size=4000, max_token_length=48, initial_alphabet=alphabet, show_progress=False), training_text()
        )
        lines = common_characters(training_text(), 700)
        marked = pre_tokenizers.Metaspace(prepend_scheme="always")
        learnt = _trained(models.BPE(), marked, trainers.BpeTrainer(vocab_size=4000, max_token_length=48, show_progress=False), lines)
        contents = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
        contents += [content for content in learnt["vocab"] if content not in contents]
        self.pieces = dict(learnt, vocab={content: i for i, content in enumerate(contents)}, unk_token="<unk>")
        unigram = trainers.UnigramTrainer(
            vocab_size=3000, unk_token="<unk>", special_tokens=["<pad>", "</s>", "<unk>"], show_progress=False
        )
        self.unigram = _trained(models.Unigram(), marked, unigram, lines)
        once = {piece: score for piece, score in reversed(self.unigram["vocab"])}  # the text has special tokens, too
        self.unigram["vocab"] = [[piece, once[piece]] for piece in reversed(once)]
        rounded = [[piece, struct.unpack("f", struct.pack("f", score))[0]] for piece, score in self.unigram["vocab"]]
        self.rounded = dict(self.unigram, vocab=rounded)  # as SentencePiece's scores are
        byte_pieces = {f"<0x{byte:02X}>": 0.0 for byte in range(256)}
        in_bytes = [entry for entry in self.unigram["vocab"] if entry[0] not in byte_pieces] + list(map(list, byte_pieces.items()))
        self.unigram_in_bytes = dict(self.unigram, vocab=in_bytes, byte_fallback=True)


def _json(component) -> dict | None:
    return None if component is None else json.loads(component.__getstate__())


def _composed(model: dict, normalizer=None, pre_tokenizer=None, decoder=None, around=None, added=()) -> Tokenizer:
    description = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": _json(normalizer),
        "pre_tokenizer": _json(pre_tokenizer), "post_processor": _json(around), "decoder": _json(decoder), "model": model,
    }  # fmt: skip
    tokenizer = Tokenizer.from_str(json.dumps(description))
    for token in added:
        (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
    return tokenizer


def _byte_level(trained: Models):
    byte_level = pre_tokenizers.ByteLevel(False, use_regex=False)
    tokens = [special("<|endoftext|>"), special("<|eot_id|>"), special("<|im_start|>"), AddedToken("<tool_call>", normalized=False)]
    common = {"decoder": decoders.ByteLevel(), "added": tokens}
    split = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"), byte_level])
    yield "gpt2", _composed(trained.bytes, None, pre_tokenizers.ByteLevel(add_prefix_space=True), **common)
    yield "llama3", _composed(dict(trained.bytes, ignore_merges=True), None, split, **common)
    yield "qwen2", _composed(trained.bytes, normalizers.NFC(), split, **common)
    # As SmolLM's, which has no token for some bytes; and as transformers 5.17 saves it of a GGUF file.
    kept = {content: i for content, i in trained.bytes["vocab"].items() if not set(content) & set("ĄĆĵñò")}
    merges = [[a, b] for a, b in trained.bytes["merges"] if {a, b, a + b} <= kept.keys()]
    few = dict(trained.bytes, vocab={content: i for i, content in enumerate(kept)}, merges=merges)
    yield "few", _composed(few, None, pre_tokenizers.ByteLevel(add_prefix_space=False), **common)
    unknown = dict(few, vocab={**few["vocab"], "<|endoftext|>": len(kept)}, unk_token="<|endoftext|>", fuse_unk=True, byte_fallback=True)
    chain = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), decoders.Replace("▁", " "), decoders.ByteLevel()])
    yield "few-gguf", _composed(unknown, None, pre_tokenizers.ByteLevel(add_prefix_space=False), **dict(common, decoder=chain))
    for behavior in ["removed", "merged_with_previous", "merged_with_next", "contiguous"]:
        for invert in [False, True]:
            cut = pre_tokenizers.Split(Regex(r"\s|\p{Lu}"), behavior, invert=invert)
            yield f"{behavior}-{invert}", _composed(trained.bytes, None, pre_tokenizers.Sequence([cut, byte_level]), **common)


def _sentencepiece_bpe(trained: Models):
    tokens = [special("<unk>"), special("<s>"), special("</s>"), AddedToken("<tool_call>", normalized=False)]
    fallback = dict(trained.pieces, byte_fallback=True, fuse_unk=True)
    replace = decoders.Replace("▁", " ")
    chain = [replace, decoders.ByteFallback(), decoders.Fuse()]
    stripped = decoders.Sequence(chain + [decoders.Strip(" ", 1, 0)])
    prefix = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    around = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    yield "llama2", _composed(fallback, prefix, None, stripped, around, tokens)
    normalized = [AddedToken("<s>", special=True, normalized=True), AddedToken("<mask>", lstrip=True, normalized=True)]
    yield "llama2-normalized", _composed(fallback, prefix, None, stripped, around, normalized)
    first = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    yield "mistral", _composed(fallback, None, first, stripped, around, tokens)
    gemma = pre_tokenizers.Split(" ", "merged_with_previous")
    yield "gemma", _composed(fallback, normalizers.Replace(" ", "▁"), gemma, decoders.Sequence(chain), around, tokens)
    for fuse in [False, True]:
        unknown = dict(trained.pieces, byte_fallback=False, fuse_unk=fuse)
        always = pre_tokenizers.Metaspace(prepend_scheme="always")
        yield f"unknown-{fuse}", _composed(unknown, None, always, decoders.Metaspace(), around, tokens)
        some = {content: i for content, i in trained.pieces["vocab"].items() if content != "<0xE2>"}
        partly = dict(trained.pieces, vocab=some, byte_fallback=True, fuse_unk=fuse)
        yield f"partly-{fuse}", _composed(partly, None, always, decoders.Sequence(chain), None, tokens)
    whole = dict(fallback, ignore_merges=True, merges=fallback["merges"][::3])
    digits = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.Metaspace(prepend_scheme="never")])
    yield "ignore-merges", _composed(whole, normalizers.NFC(), digits, decoders.Metaspace(prepend_scheme="never"), around, tokens)


def _unigram(trained: Models, precompiled: bytes):
    tokens = [special("<pad>"), special("</s>"), special("<unk>"), special("<extra_id_0>"), special("<mask>", lstrip=True)]
    around = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    words = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")])
    mapped = normalizers.Precompiled(precompiled)
    yield "t5", _composed(trained.rounded, mapped, words, decoders.Metaspace(), around, tokens)
    spaces = normalizers.Sequence([mapped, normalizers.Strip(False, True), normalizers.Replace(Regex(" {2,}"), "▁")])
    first = pre_tokenizers.Metaspace(prepend_scheme="first")
    yield "t5-first", _composed(trained.unigram, spaces, first, decoders.Metaspace(prepend_scheme="first"), around, tokens)
    replaced = normalizers.Sequence([normalizers.Replace(Regex("[\\t ]{2,}"), " "), normalizers.Strip(True, True)])
    yield "first-stripped", _composed(trained.unigram, replaced, first, decoders.Metaspace(prepend_scheme="first"), around, tokens)
    always = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    chain = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    yield "bytes", _composed(trained.unigram_in_bytes, None, always, chain, around, tokens)
    never = pre_tokenizers.Metaspace(replacement="_", prepend_scheme="never")
    yield "never", _composed(trained.unigram, normalizers.NFC(), never, decoders.Metaspace("_", "never"), around, tokens)
    fused = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 2, 1)])
    yield "whole-text", _composed(trained.rounded, normalizers.Replace(" ", "▁"), None, fused, around, tokens)


# Of all_tokenizers, for those who need them before any is trained.
NAMES = [
    "byte-level/gpt2", "byte-level/llama3", "byte-level/qwen2", "byte-level/few", "byte-level/few-gguf", "byte-level/removed-False", "byte-level/removed-True",
    "byte-level/merged_with_previous-False", "byte-level/merged_with_previous-True", "byte-level/merged_with_next-False",
    "byte-level/merged_with_next-True", "byte-level/contiguous-False", "byte-level/contiguous-True", "sentencepiece-bpe/llama2",
    "sentencepiece-bpe/llama2-normalized", "sentencepiece-bpe/mistral", "sentencepiece-bpe/gemma", "sentencepiece-bpe/unknown-False",
    "sentencepiece-bpe/unknown-True", "sentencepiece-bpe/partly-False", "sentencepiece-bpe/partly-True",
    "sentencepiece-bpe/ignore-merges", "unigram/t5", "unigram/t5-first", "unigram/first-stripped", "unigram/bytes", "unigram/never",
    "unigram/whole-text",
]  # fmt: skip


def all_tokenizers(precompiled: bytes | None = None) -> dict[str, Tokenizer]:
    """By name: the kind, a slash, and what is particular."""
    trained = Models()
    if precompiled is None:
        precompiled = charsmap(nfkc_rules())
    kinds = {
        "byte-level": _byte_level(trained),
        "sentencepiece-bpe": _sentencepiece_bpe(trained),
        "unigram": _unigram(trained, precompiled),
    }
    return {f"{kind}/{name}": tokenizer for kind, made in kinds.items() for name, tokenizer in made}
