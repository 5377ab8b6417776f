#!/usr/bin/env python3
"""Writes tests/fixtures/tokenizer: small tokenizers in the styles of known models, trained on words
made up here, and what the `tokenizers` library makes of nasty texts with them.

cases.json holds the texts once, and per tokenizer the number of ids and their 64-bit FNV-1a hash.
Needs the tokenizers package. Run from the root of the repository.
"""

import json
import pathlib
import random

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, processors, trainers

OUT = pathlib.Path("tests/fixtures/tokenizer")
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")
CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SYMBOLS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
IDEOGRAPHS = "[一-龥\u3040-ゟ゠-ヿ]+"


def training_text() -> list[str]:
    rng = random.Random(7)
    syllables = "ka to mi ren sol va the ing er un pre tion st qu Zor Él ça ñu 東京 語 привет سلام 한국".split()
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(400)]
    lines = []
    for _ in range(3000):
        line = " ".join(rng.choices(words, k=rng.randint(3, 12)))
        line += rng.choice([".", "!", "?\n", "\r\n\r\n", " 😀", "'s it's I'll", f" {rng.randint(0, 99999)}", "    x", "\t"])
        lines.append(line)
    return lines


def special(content: str, **flags: bool) -> AddedToken:
    return AddedToken(content, special=True, normalized=False, **flags)


def trained(pre_tokenizer, size: int, normalizer=None, ignore_merges=False) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(training_text(), trainer)
    return tokenizer


def with_split(*patterns) -> pre_tokenizers.PreTokenizer:
    splits = [pre_tokenizers.Split(pattern, "isolated") for pattern in patterns]
    return pre_tokenizers.Sequence(splits + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def gpt2() -> str:
    tokenizer = trained(pre_tokenizers.ByteLevel(add_prefix_space=True), 700)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", special=True, normalized=True)])
    tokenizer.add_tokens([AddedToken("<mask>", lstrip=True), AddedToken("<sep>", rstrip=True), "<mask><", "ka to"])
    # In the manner of the first files: merges as one string, no type, empty affixes.
    data = json.loads(tokenizer.to_str())
    data["model"]["merges"] = ["#version: 0.2"] + [" ".join(pair) for pair in data["model"]["merges"]]
    data["model"].update(continuing_subword_prefix="", end_of_word_suffix="")
    del data["model"]["type"]
    return json.dumps(data)


def llama3() -> str:
    tokenizer = trained(with_split(Regex(LLAMA3)), 700, ignore_merges=True)
    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"]
    tokenizer.add_special_tokens([special(name) for name in names])
    begin = tokenizer.token_to_id(names[0])
    template = processors.TemplateProcessing(
        single="<|begin_of_text|> $A", pair="$A $B", special_tokens=[(names[0], begin)]
    )
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    # Words that the merges do not lead to: only ignore_merges finds them.
    data = json.loads(tokenizer.to_str())
    data["model"]["merges"] = [pair for i, pair in enumerate(data["model"]["merges"]) if i % 5]
    return json.dumps(data)


def qwen2() -> str:
    tokenizer = trained(with_split(Regex(QWEN2)), 700, normalizers.NFC())
    tokenizer.add_special_tokens([special("<|endoftext|>"), special("<|im_start|>"), special("<|im_end|>")])
    tokenizer.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("é\u0301-", normalized=True)])
    tokenizer.add_tokens([AddedToken("A\u030a-e", normalized=True), AddedToken("A\u030a-e", normalized=False)])
    return tokenizer.to_str()


def symbols() -> str:
    pre_tokenizer = with_split(Regex(r"\p{N}{1,3}"), Regex(IDEOGRAPHS), Regex(SYMBOLS))
    tokenizer = trained(pre_tokenizer, 500)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<b> $A <e>", special_tokens=[("<b>", 500), ("<e>", 501)]
    )
    tokenizer.add_special_tokens([special("<b>"), special("<e>")])
    return tokenizer.to_str()


def cased() -> str:
    digits = pre_tokenizers.Digits(individual_digits=True)
    split = pre_tokenizers.Split(Regex(CASED), "removed", invert=True)
    literal = pre_tokenizers.Split("to", "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return trained(pre_tokenizers.Sequence([digits, split, literal, byte_level]), 500).to_str()


def pieces() -> str:
    """As Llama 2's: SentencePiece's BPE, with a token for each byte."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("(?=▁)"), "isolated")  # for training alone
    tokenizer.train_from_iterator(training_text(), trainers.BpeTrainer(vocab_size=500, show_progress=False))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    data = json.loads(tokenizer.to_str())
    data["pre_tokenizer"] = None
    learnt = sorted(data["model"]["vocab"], key=data["model"]["vocab"].get)
    contents = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    contents += [content for content in learnt if content not in contents and content not in "kZ語"]
    known = set(contents[259:])
    data["model"]["vocab"] = {content: i for i, content in enumerate(contents)}
    # SentencePiece has scores, here the less the later a piece was learnt: any two pieces merge that
    # make another.
    cuts = [(content[:at], content[at:]) for content in contents[259:] for at in range(1, len(content))]
    data["model"]["merges"] = [pair for pair in cuts if known.issuperset(pair)]
    tokenizer = Tokenizer.from_str(json.dumps(data))
    tokenizer.add_special_tokens([special("<unk>"), special("<s>"), special("</s>")])
    tokenizer.add_tokens([AddedToken("<tool_call>", normalized=False)])
    return tokenizer.to_str()


def texts() -> list:
    spaces = "\t\n\v\f\r \u0085\u00a0\u1680\u180e\u2000\u2003\u200a\u200b\u2028\u2029\u202f\u205f\u2060\u3000\ufeff"
    rng = random.Random(11)
    result = [
        "", " ", "  ", "a", "\n", "\0", "Hello world", " Hello  world ", "hello\n\n  world\r\n\r\n\r\n x\n \n",
        "it's IT'S It'S I'LL i'll we'Ve you'RE 'tis '\u017f '\u212a 'D'd'M'm' ''s",
        "0 12 123 1234 12345 1234567890 ٠١٢٣ ½ Ⅷ ²³ 1,234.56 a1b22c333d4444", "    def f(x):\n\t\treturn x  # ok\n",
        "👨‍👩‍👧‍👦 👩🏽‍🚀 🇫🇷 ❤️ 😀😀😀 \U0001fae8 \U0001f6dc", "e\u0301 é A\u030a Å \u212b ﬁ ｆｕｌｌ 각 각 a\u0323\u0301 a\u0301\u0323 \u0344 \u0958",
        "é\u0301-é\u0301- e\u0301\u0301- A\u030a-e Å-e \u212b-e", "東京は日本の首都です。中文，没有空格！한국어 텍스트 ไทย हिन्दी தமிழ்",
        "مرحبا بالعالم سلام שלום עולם Привет, мир! Ελληνικά", "\x01\x02\x7f\x1b[31m\u0080\u009f\uffff\ufffe\U0010ffff\ufffd",
        "".join(c + "x" for c in spaces), "".join(c * 3 + "x" for c in spaces), spaces, spaces[::-1] + "!", "a" + spaces,
        "<|endoftext|>a<|endoftext|> <|endoftext|>\n<|endoftext|", "x  <mask>  y \u3000<mask><mask> <sep> \t z<sep><sep>  <mask><",
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|eot_id", "<|im_start|>a\n<|im_end|>\n<tool_call>{}</tool_call>",
        "<b>x<e> <b", "kato ka to kakato ka  to", "http://example.org/a/b?c=d&e=%20#f $x->y[0] == {1:'2'}; /* */ //\n\\\\",
        "CamelCaseWords snake_case_words SHOUTING McDonald's ǅungla ʰa \u0345", "\u0300\u0301abc \u0300 x\u0300\u0301\u0302",
        "\u0903\u093e \u17b4 \u200d\u200c \u2ebf0 \U0002ebf0\U00031350 \U000105c0 \U00016d40 \U0001e030",
    ]
    result += [{"repeat": unit, "times": times} for unit, times in [
        (" ", 1000), ("\n", 999), (" \n", 500), ("a", 100000), ("katomi", 20000), ("é", 3000), ("7", 1001), ("😀", 700),
        ("!", 1000), ("e\u0301", 2000), ("<|endoftext|>", 50), ("\r\n", 301), ("  x", 300), ("東", 999), (" 'll", 99)]]
    planes = [(0, 0x7F)] * 3 + [(0, 0x2FF), (0x300, 0x36F), (0x370, 0x1FFF), (0x2000, 0x2FFF), (0x3000, 0xD7FF), (0xE000, 0xFFFF),
              (0x10000, 0x1FFFF), (0x20000, 0x3FFFF), (0, 0x10FFFF)]
    for length in [3, 10, 30, 100, 300, 1000, 1000]:
        chosen = [rng.randint(*rng.choice(planes)) for _ in range(length)]
        result.append("".join(chr(c) for c in chosen if not 0xD800 <= c < 0xE000))
    pieces = [text for text in result if isinstance(text, str) and text]
    for _ in range(12):  # parts of the above in new company
        parts = []
        for text in rng.choices(pieces, k=12):
            begin = rng.randrange(len(text))
            parts.append(text[begin : begin + rng.randint(1, 8)])
        result.append("".join(parts))
    return result + [{"all_code_points_before": " x"}, {"all_code_points_before": "\u0323\u0301"}]


def expanded(text) -> str:
    if isinstance(text, str):
        return text
    if "repeat" in text:
        return text["repeat"] * text["times"]
    code_points = (c for c in range(0x110000) if not 0xD800 <= c < 0xE000)
    return "".join(chr(c) + text["all_code_points_before"] for c in code_points)


def fnv1a(ids: list[int]) -> str:
    value = 0xCBF29CE484222325
    for i in ids:
        value = ((value ^ i) * 0x100000001B3) % 2**64
    return f"{value:016x}"


def cases(file: str, all_texts: list) -> dict:
    tokenizer = Tokenizer.from_file(file)
    encoded = []
    for text in all_texts:
        ids = tokenizer.encode(expanded(text), add_special_tokens=False).ids
        encoded.append([len(ids), fnv1a(ids)])
    rng = random.Random(13)
    decoded = []
    for length in [0, 1, 1, 1, 2, 2, 5, 10, 40]:
        # Runs of bytes that are no characters become other numbers of U+FFFD here.
        first = 259 if "pieces" in file else 0
        ids = [rng.randrange(first, tokenizer.get_vocab_size()) for _ in range(length)]
        decoded.append({"ids": ids, "text": tokenizer.decode(ids)})
    return {"file": file, "encoded": encoded, "hello_with_special": tokenizer.encode("Hello").ids, "decoded": decoded}


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    files = []
    for make in [gpt2, llama3, qwen2, symbols, cased, pieces]:
        file = OUT / f"{make.__name__}.json"
        file.write_text(json.dumps(json.loads(make()), ensure_ascii=False, separators=(",", ":")) + "\n")
        files.append(str(file))
    all_texts = texts()
    content = {
        "tokenizers_version": tokenizers.__version__,
        "texts": all_texts,
        "tokenizers": [cases(file, all_texts) for file in files + ["models/needle-14m/tokenizer.json"]],
    }
    (OUT / "cases.json").write_text(json.dumps(content, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
