"""Text that tokenizers stumble over, the same for the same seed."""

import random
import unicodedata

SPACES = " \t\n\v\f\r\u001c\u0085\u00a0\u1680\u180e\u2000\u2003\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
NEWLINES = ["\n", "\r\n", "\r", "\n\r", "\u2028", "\u2029", "\u0085", "\v", "\f", "\n\n\n"]
JOINERS = "\u200b\u200c\u200d\u2060\ufeff\u00ad\u034f\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2069"
MARKS = "\u0300\u0301\u0308\u0323\u0327\u0345\u0489\u05b0\u064b\u0651\u093c\u094d\u09bc\u0e31\u0f39\u1ab0\u20dd\u3099\ufe0f\ufe20"
EMOJI = [
    "👨‍👩‍👧‍👦", "👩🏽‍🚀", "🇫🇷", "🇫", "❤️", "❤", "🏴\U000e0067\U000e0062\U000e0065\U000e007f", "1️⃣", "©️", "©\u200d", "😀", "🫨", "🏽",
]
WORDS = (
    "the of and a to in is you that it he was for on are as with his they I at be this have from or one had by word but not what "
    "all were we when your can said there use an each which she do how their if will up other about out many then them these so "
    "some her would make like him into time has look two more write go see number no way could people my than first water been "
    "Übergröße naïve façade Ærø smörgåsbord ÅNGSTRÖM Ελλάδα ΑΘΗΝΑ Москва ПРИВЕТ мир שלום עולם مرحبا سلام हिन्दी தமிழ் ไทย "
    "東京 日本語 中文 没有 한국어 텍스트 각각 kato ꙮ"
).split()
CODE = [
    "    def f(x):\n        return x  # ok\n", "if (a[i]->b != c::d) { ++e; }\r\n", '{"key": [1, 2.5e-3, null], "z": "\\u00e9\\n"}',
    "<div class=\"x\">&nbsp;&#x1F600;</div>", "https://example.org/a/b?c=d&e=%20#f", "SELECT * FROM t WHERE x='it''s';", "\t\t}\n\t}\n}",
    "$$\\int_0^1 x^2\\,dx$$", "a--b==c!==d...e,,,,f", "~/.cache/../x", "0xDEADbeef", "'s't're've'm'll'd 'S'T'RE", "e\u0301-é-e\u0301\u0301",
]
# What tokens look like, as text.
TOKENS = [
    "<s>", "</s>", "<unk>", "<pad>", "<|endoftext|>", "<|im_start|>", "<|eot_id|>", "<extra_id_0>", "<mask>", "<0x41>", "<0xE9>", "<0x", "▁",
    "▁▁", "▁the", "Ġthe", "Ċ", "##ing", "<s", "s>", "<<s>>", "[UNK]", "<tool_call>", " <mask> ", "\u3000<mask>\t", "�",
]
RANGES = [
    (0x00, 0x7F), (0x80, 0xFF), (0x100, 0x2FF), (0x300, 0x36F), (0x370, 0x5FF), (0x600, 0x8FF), (0x900, 0xDFF), (0xE00, 0x11FF),
    (0x1200, 0x1FFF), (0x2000, 0x2BFF), (0x2C00, 0x2FFF), (0x3000, 0x33FF), (0x3400, 0x9FFF), (0xA000, 0xABFF), (0xAC00, 0xD7FF),
    (0xE000, 0xF8FF), (0xF900, 0xFDFF), (0xFE00, 0xFFFF), (0x10000, 0x10FFF), (0x11000, 0x11FFF), (0x12000, 0x16FFF),
    (0x17000, 0x1CFFF), (0x1D000, 0x1DFFF), (0x1E000, 0x1EFFF), (0x1F000, 0x1FFFF), (0x20000, 0x3FFFF), (0xE0000, 0xE0FFF), (0, 0x10FFFF),
]  # fmt: skip


def _points(rng: random.Random, count: int) -> str:
    low, high = rng.choice(RANGES)
    return "".join(chr(c) for c in (rng.randint(low, high) for _ in range(count)) if not 0xD800 <= c < 0xE000)


def _point(rng: random.Random) -> str:
    return _points(rng, 1) or "x"


def _words(rng: random.Random) -> str:
    words = rng.choices(WORDS, k=rng.randint(1, 40))
    shape = rng.choice([str, str, str, str.upper, str.title, str.swapcase])
    return rng.choice([" ", " ", " ", "  ", "_", "-", "", "\u00a0", "▁"]).join(shape(word) for word in words)


def _marks(rng: random.Random) -> str:
    return "".join(_point(rng) + "".join(rng.choices(MARKS, k=rng.randint(0, 4))) for _ in range(rng.randint(1, 12)))


def _forms(rng: random.Random) -> str:
    return unicodedata.normalize(rng.choice(["NFC", "NFD", "NFKC", "NFKD"]), _words(rng) + _points(rng, 20))


def _run(rng: random.Random) -> str:
    unit = rng.choice(["a", "A", " ", "\n", "7", "!", "é", "東", "😀", "e\u0301", " a", "ab", "▁", "\u0301", "-", "=", "x ", _point(rng)])
    return unit * rng.choice([2, 3, 5, 17, 63, 64, 65, 200, 200, 1000, 5000])


PARTS = [
    (8, _words), (3, lambda rng: _points(rng, rng.randint(1, 60))), (2, _marks), (2, _forms), (1, _run),
    (2, lambda rng: "".join(rng.choices(SPACES, k=rng.randint(1, 12)))),
    (2, lambda rng: "".join(rng.choices(NEWLINES, k=rng.randint(1, 4)))),
    (2, lambda rng: "".join(rng.choice(EMOJI) for _ in range(rng.randint(1, 6)))),
    (1, lambda rng: "".join(_point(rng) + rng.choice(JOINERS) for _ in range(rng.randint(1, 8)))),
    (2, lambda rng: rng.choice(["{}", "{:,}", "{:.3f}", "{:e}", "{:x}", "-{}"]).format(rng.randrange(10 ** rng.randint(1, 18)))),
    (3, lambda rng: rng.choice(CODE)), (3, lambda rng: rng.choice(TOKENS) * rng.choice([1, 1, 1, 2, 5])),
    (2, lambda rng: rng.choice([" ", "  ", "\t", "", "x", ".", ", "])),
]  # fmt: skip


def nasty_text(size: int, seed: int) -> str:
    """Text of about so many bytes of UTF-8."""
    rng = random.Random(seed)
    weights, makers = zip(*PARTS)
    parts, length = [], 0
    while length < size:
        part = rng.choices(makers, weights)[0](rng)
        parts.append(part)
        length += len(part.encode())
    return "".join(parts)
