"""What this version of transformers saves of the tokenizers of every family, made by its own classes and converters: topkv takes
each tokenizer.json and gives the library's ids and text."""

import base64
import codecs
import json
import warnings

import pytest

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")
from conftest import REPOSITORY
from nasty_text import nasty_text
from transformers.convert_slow_tokenizer import TikTokenConverter, bytes_to_unicode

import topkv

FIXTURES = REPOSITORY / "tests" / "fixtures" / "tokenizer"
CHATS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
PLAIN, UNKNOWN, CONTROL, USER, BYTE = 1, 2, 3, 4, 6  # kinds of tokens in a GGUF file


def model(name):
    """The vocabulary by ids, and merges, of a fixture."""
    read = json.loads((FIXTURES / f"{name}.json").read_text())["model"]
    merges = [tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge) for merge in read["merges"]]
    return read["vocab"], merges


def letters(without=()):
    """Byte-level, with three special tokens behind. without: letters that no token has."""
    vocab, merges = model("llama3")
    kept = [content for content in sorted(vocab, key=vocab.get) if not set(content) & set(without)] + CHATS
    vocab = {content: i for i, content in enumerate(kept)}
    merges = [(a, b) for a, b in merges if {a, b, a + b} <= vocab.keys()]
    return vocab, merges


def ranks():
    """Tokens of tiktoken's: bytes to ids. Single bytes come first."""
    byte_of = {letter: byte for byte, letter in bytes_to_unicode().items()}
    vocab, _ = model("llama3")
    contents = sorted(vocab, key=lambda content: (len(content) > 1, vocab[content]))
    return {bytes(byte_of[letter] for letter in content): i for i, content in enumerate(contents)}


def pieces(first):
    """SentencePiece's BPE: `first`, bytes, then pieces that are merged."""
    vocab, merges = model("pieces")
    rest = [content for content in sorted(vocab, key=vocab.get) if content not in ("<unk>", "<s>", "</s>", *first)]
    return {content: i for i, content in enumerate([*first, *rest])}, merges


def scored(first):
    vocab, _ = pieces(first)
    return [(content, -float(i) if i >= len(first) else 0.0) for content, i in vocab.items() if not content.startswith("<0x")]


def of_class(name, vocab, merges=None, **options):
    made = getattr(transformers, name, None)
    if made is None:
        pytest.skip(f"this version has no {name}")
    return made(vocab=vocab, **({} if merges is None else {"merges": merges}), **options)


def backend(tokenizer, **options):
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **options)


def tiktoken(monkeypatch):
    """As Llama 3, GLM-4 and gpt-oss publish theirs."""
    monkeypatch.setattr(TikTokenConverter, "load_tiktoken_bpe", staticmethod(lambda _: ranks()))
    converter = TikTokenConverter(vocab_file="tokenizer.model", extra_special_tokens=CHATS)
    return backend(converter.converted(), eos_token=CHATS[0])


def tekken(folder):
    from transformers.integrations.mistral.tokenizer import MistralConverter

    special = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]
    description = {
        "config": {
            "pattern": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s+",
            "default_vocab_size": len(ranks()) + len(special), "default_num_special_tokens": len(special), "version": "v3",
        },
        "vocab": [{"rank": i, "token_bytes": base64.b64encode(token).decode(), "token_str": None} for token, i in ranks().items()],
        "special_tokens": [{"rank": i, "token_str": token, "is_control": True} for i, token in enumerate(special)],
    }  # fmt: skip
    (folder / "tekken.json").write_text(json.dumps(description))
    return backend(MistralConverter(str(folder / "tekken.json")).converted(), bos_token="<s>", eos_token="</s>")


def of_gguf(architecture, kind, vocab, merges=None, pre="default", types=None):
    """As AutoTokenizer makes one of a GGUF file's metadata."""
    try:
        from transformers.integrations.ggml import convert_gguf_tokenizer
    except ImportError:  # newer than 5.17
        from transformers.integrations.gguf import convert_gguf_tokenizer
    tokens = list(vocab)
    described = {
        "tokenizer_type": kind, "pre_tokenizer_type": pre, "tokens": tokens, "scores": [-float(i) for i in range(len(tokens))],
        "token_type": [types.get(token, BYTE if token.startswith("<0x") else PLAIN) for token in tokens],
        "bos_token_id": 1, "eos_token_id": 2, "unk_token_id": 0, "unknown_token_id": 0, "pad_token_id": 0,
    }  # fmt: skip
    if merges is not None:
        described["merges"] = [" ".join(merge) for merge in merges]
    tokenizer, _ = convert_gguf_tokenizer(architecture, described)
    return backend(tokenizer)


def gguf_of_bytes(architecture, pre, without=()):
    vocab, merges = letters(without)
    vocab = {content: i for i, content in enumerate(CHATS + [content for content in vocab if content not in CHATS])}
    return of_gguf(architecture, "gpt2", vocab, merges, pre, dict.fromkeys(CHATS, CONTROL))


def gguf_of_pieces(architecture, first):
    vocab, _ = pieces(first)
    if architecture.startswith("gemma"):
        vocab = {**vocab, "\t": len(vocab)}
    return of_gguf(architecture, "llama", vocab, types={first[0]: UNKNOWN, first[1]: CONTROL, first[2]: CONTROL})


LLAMA = ["<unk>", "<s>", "</s>"]
GEMMA = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
T5 = ["<pad>", "</s>", "<unk>"]
XLM = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]

CLASSES = {
    "llama": lambda: of_class("LlamaTokenizer", *pieces(LLAMA)),
    "llama-legacy": lambda: of_class("LlamaTokenizer", *pieces(LLAMA), legacy=True),
    "llama-without-prefix": lambda: of_class("LlamaTokenizer", *pieces(LLAMA), add_prefix_space=False),
    "llama-with-end": lambda: of_class("LlamaTokenizer", *pieces(LLAMA), add_bos_token=True, add_eos_token=True),
    "code-llama": lambda: of_class("CodeLlamaTokenizer", *pieces(LLAMA)),
    "gemma": lambda: of_class("GemmaTokenizer", *pieces(GEMMA)),
    "qwen2": lambda: of_class("Qwen2Tokenizer", *letters()),
    "qwen3_5": lambda: of_class("Qwen3_5Tokenizer", *letters()),
    "gpt2": lambda: of_class("GPT2Tokenizer", *letters()),
    "gpt2-with-prefix": lambda: of_class("GPT2Tokenizer", *letters(), add_prefix_space=True),
    "smollm": lambda: of_class("GPT2Tokenizer", *letters(without="ĄĆĵñò")),  # no tokens for some bytes
    "cohere": lambda: of_class("CohereTokenizer", *letters()),
    "neox": lambda: of_class("GPTNeoXTokenizer", *letters()),
    "t5": lambda: of_class("T5Tokenizer", scored(T5)),
    "xlm-roberta": lambda: of_class("XLMRobertaTokenizer", scored(XLM)),
    "gguf-llama": lambda: gguf_of_pieces("llama", LLAMA),
    "gguf-gemma3": lambda: gguf_of_pieces("gemma3_text", ["<pad>", "<eos>", "<bos>"]),
    "gguf-phi3": lambda: gguf_of_pieces("phi3", LLAMA),
    "gguf-llama3": lambda: gguf_of_bytes("llama", "llama-bpe"),
    "gguf-smollm": lambda: gguf_of_bytes("llama", "smollm", without="ĄĆĵñò"),
    "gguf-qwen2": lambda: gguf_of_bytes("qwen2", "qwen2"),
    "gguf-qwen3": lambda: gguf_of_bytes("qwen3", "qwen2"),
    "gguf-gpt2": lambda: gguf_of_bytes("gpt2", "gpt-2"),
}

# By model_type, which decides what AutoTokenizer makes of a published tokenizer.json: fixtures of such a kind.
AGAIN = {
    "pieces": ["llama", "mistral", "mixtral", "phi3", "gemma2", "gemma3_text"],
    "llama3": ["llama", "mistral", "gpt_oss", "glm", "glm4", "smollm3", "olmo2"],
    "qwen2": ["qwen2", "qwen3", "qwen3_moe"],
    "gpt2": ["llama", "phi3", "olmo2"],
}


@pytest.fixture(scope="module")
def texts():
    text = nasty_text(20_000, seed=3).replace("<0x", "<1x")  # "<0xE9>" becomes a byte, which is no character
    return [text[at : at + 2000] for at in range(0, len(text), 2000)] + [
        "", " ", "\n", "a", "  a  b ", "\u00a0", "\x04", "\x04\x06 é\U00040000x", "<s>x</s> y <|im_start|>user<pad>", "\t\ta",
    ]  # fmt: skip


def check_equal(file, texts):
    theirs = tokenizers.Tokenizer.from_file(str(file))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what is left out
        ours = topkv.Tokenizer.load(file)
        added = theirs.get_added_tokens_decoder()
        apart = {token for token, one in added.items() if one.special or one.normalized}
        for text in texts:
            ids = theirs.encode(text, add_special_tokens=False).ids
            assert ours.encode(text) == ids, text
            assert ours.encode(text, True) == theirs.encode(text).ids, text
            plain = [token for token in ids if token not in apart]
            decoded = ours.decode(plain)
            assert decoded == theirs.decode(plain), text
            stream = codecs.getincrementaldecoder("utf-8")("replace")
            streamed = "".join(stream.decode(ours.bytes_of_token(token)) for token in plain) + stream.decode(b"", final=True)
            assert streamed.strip(" ") == decoded.strip(" "), text


@pytest.mark.parametrize("name", CLASSES)
def test_what_a_class_saves_is_read_as_the_library_reads_it(name, tmp_path, texts):
    CLASSES[name]().save_pretrained(str(tmp_path))
    check_equal(tmp_path / "tokenizer.json", texts)


def test_what_is_converted_from_tiktoken_is_read_as_the_library_reads_it(tmp_path, texts, monkeypatch):
    tiktoken(monkeypatch).save_pretrained(str(tmp_path))
    check_equal(tmp_path / "tokenizer.json", texts)


def test_what_is_converted_from_tekken_is_read_as_the_library_reads_it(tmp_path, texts):
    tekken(tmp_path).save_pretrained(str(tmp_path))
    check_equal(tmp_path / "tokenizer.json", texts)


@pytest.mark.parametrize("fixture, model_type", [(fixture, one) for fixture, types in AGAIN.items() for one in types])
def test_what_is_saved_again_is_read_as_the_library_reads_it(fixture, model_type, tmp_path, texts):
    published = tmp_path / "published"
    published.mkdir()
    (published / "tokenizer.json").write_text((FIXTURES / f"{fixture}.json").read_text())
    (published / "config.json").write_text(json.dumps({"model_type": model_type}))
    (published / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    transformers.AutoTokenizer.from_pretrained(str(published)).save_pretrained(str(tmp_path / "again"))
    check_equal(tmp_path / "again" / "tokenizer.json", texts)
