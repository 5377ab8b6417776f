#!/usr/bin/env python3
"""Makes tests/fixtures/tokenizer/gguf_pre.json: how each name of tokenizer.ggml.pre cuts text.

The ids are those of the `tokenizers` library with the patterns that models of these names have in
their tokenizer.json, or that llama.cpp has for them. The vocabulary is trained on the texts without
any cut, so that its tokens reach over every place where a pattern may cut.

Needs tools/requirements.txt. Run from anywhere: python tools/make_gguf_pre_fixture.py
"""

import json
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

OUT = Path(__file__).resolve().parent.parent / "tests/fixtures/tokenizer/gguf_pre.json"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
SUFFIXES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
END = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
LLAMA3 = rf"{SUFFIXES}|{WORD}|\p{{N}}{{1,3}}|{END}"
QWEN2 = rf"{SUFFIXES}|{WORD}|\p{{N}}|{END}"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*%s"
SLASHED = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
DEEPSEEK3 = [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
             r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
             r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]
BLOOM = " ?[^(\\s|.,!?…。，、।۔،)]+"

# Names, patterns, whether text is normalised to NFC, whether a piece may be a token as a whole.
STYLES = [
    (["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "smaug-bpe"],
     [LLAMA3], False, True),
    (["dbrx", "glm4", "chatglm-bpe"], [LLAMA3], False, False),
    (["qwen2", "deepseek-r1-qwen"], [QWEN2], True, False),
    (["megrez", "kormo", "hunyuan", "solar-open", "stablelm2", "grok-2"], [QWEN2], False, False),
    (["qwen35"], [rf"{SUFFIXES}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
                  r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"], True, False),
    (["tekken"], [CASED % ("", "") + rf"|\p{{N}}|{SLASHED}"], False, True),
    (["gpt-4o", "llama4", "kanana2", "minimax-m2"],
     [CASED % (SUFFIXES + "?", SUFFIXES + "?") + rf"|\p{{N}}{{1,3}}|{SLASHED}"], False, False),
    (["gpt-2", "phi-2", "olmo", "mpt", "jais", "exaone4", "gigachat", "a.x-4.0", "mellum", "trillion",
      "granite-docling"], [GPT2], False, False),
    (["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"],
     [r"\p{N}", GPT2], False, False),
    (["default"], [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"], False, False),
    (["falcon"], [r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"], False, False),
    (["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"], DEEPSEEK3, False, False),
    (["deepseek-coder"], [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"], False, False),
    (["bloom", "poro-chat", "gpt3-finnish"], [BLOOM], False, False),
    (["viking"], [BLOOM, r"\p{N}"], False, False),
    (["bailingmoe", "bailingmoe2", "llada-moe"],
     [r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]"
      r"|\s+(?!\S)|\s+"], False, False),
    (["seed-coder"], [rf"{SUFFIXES}|{WORD}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|\s*[\r\n]+"
                      r"|\s+(?!\S)|\s+"], False, False),
    (["minicpm5"], [r"\p{N}{1,3}", rf"{SUFFIXES}|{WORD}|\p{{N}}+|{END}"], False, True),
]
TEXTS = [
    "Don't you'LL they'Re I'm WE'VE it's  'tis 'll's",
    "camelCase HTTPServer snake_case XMLs' ABCdef iPhone 'Tis McD",
    "1 12 123 1234 12345 1234567 3.14159 1,000,000 0x1F ４５６",
    "a.b/c//d foo.bar()\n\n  if (x != y) {\r\n\treturn `z`; }\r\n/ end",
    "   three  two one   \n \n\n\t\ttabs \u00a0nbsp\u3000wide ",
    "東京タワー、大阪。한국어 번역 ひらがなカタカナ 漢字kanji",
    "cafe\u0301 café ⅯⅯ Straße ÀÉî हिन्दी में। ไทย Ελληνικά",
    "!!! ... ?! $5.00 + <tag> ^~|=> \"quoted\" (paren) [x] {y} #hash @at %",
    "🙂👍🏽 emoji🙂text ©®™ … – — ‘single’ “double” ؟ ۔ ،",
]


def train():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(vocab_size=900, min_frequency=1, show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator(TEXTS, trainer)
    return json.loads(tokenizer.to_str())["model"]


def main():
    model = train()
    styles = []
    for names, patterns, nfc, ignore_merges in STYLES:
        merges = [tuple(pair) for pair in model["merges"]]
        tokenizer = Tokenizer(models.BPE(model["vocab"], merges, ignore_merges=ignore_merges))
        if nfc:
            tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
            + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        tokenizer.decoder = decoders.ByteLevel()
        styles.append({"names": names, "ids": [tokenizer.encode(text).ids for text in TEXTS]})
    alike = [(a["names"][0], b["names"][0]) for i, a in enumerate(styles) for b in styles[:i]
             if a["ids"] == b["ids"]]
    print("cut alike:", alike)
    lines = [json.dumps({"names": style["names"], "ids": style["ids"]}, separators=(",", ":"))
             for style in styles]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    out = {"tokens": tokens, "merges": [" ".join(pair) for pair in model["merges"]], "texts": TEXTS}
    text = json.dumps(out, separators=(",", ":"))[:-1] + ',"styles":[\n' + ",\n".join(lines) + "\n]}\n"
    OUT.write_text(text)


if __name__ == "__main__":
    main()
