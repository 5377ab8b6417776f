#!/usr/bin/env python3
"""Makes tests/fixtures/gguf_blocks.gguf: blocks of each of ggml's quantised types, random bytes with
scales of the usual size, and the values that the `gguf` package reads from them.

    q4_K        blocks, uint8 as the type has them
    q4_K.values float32

Needs tools/requirements.txt. Run from anywhere: python tools/make_gguf_blocks.py
"""

from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

OUT = Path(__file__).resolve().parent.parent / "tests/fixtures/gguf_blocks.gguf"
# Where a block has float16 numbers. IQ1_M has one in four pieces.
HALVES = {Type.Q4_0: [0], Type.Q4_1: [0, 2], Type.Q5_0: [0], Type.Q5_1: [0, 2], Type.Q8_0: [0],
          Type.Q2_K: [80, 82], Type.Q3_K: [108], Type.Q4_K: [0, 2], Type.Q5_K: [0, 2],
          Type.Q6_K: [208], Type.IQ4_NL: [0], Type.IQ4_XS: [0], Type.IQ2_XXS: [0],
          Type.IQ2_XS: [0], Type.IQ2_S: [0], Type.IQ3_XXS: [0], Type.IQ3_S: [0], Type.IQ1_S: [0],
          Type.IQ1_M: [], Type.TQ1_0: [52], Type.TQ2_0: [64], Type.MXFP4: [], Type.NVFP4: []}
GRIDS = ("IQ1", "IQ2", "IQ3")  # more points than a block can name


def make(kind, generator):
    inputs, size = gguf.GGML_QUANT_SIZES[kind]
    count = (1024 if kind.name.startswith(GRIDS) else 256) // inputs
    raw = generator.integers(0, 256, (count, size), dtype=np.uint8)
    for at in HALVES[kind]:
        numbers = (2.0 ** -8 * generator.uniform(0.5, 2, count)).astype(np.float16)
        raw[:, at:at + 2] = numbers[:, None].view(np.uint8)
    if kind == Type.IQ1_M:
        words = raw[:, 48:].copy().view(np.uint16)
        bits = (2.0 ** -8 * generator.uniform(0.5, 2, count)).astype(np.float16).view(np.uint16)
        for word in range(4):
            words[:, word] = words[:, word] & 0x0FFF | (bits >> (4 * word) & 15) << 12
        raw[:, 48:] = words.view(np.uint8)
    if kind == Type.MXFP4:
        raw[:, 0] = generator.integers(100, 150, count)
        raw[:2, 0] = 0, 1  # numbers below the least normal one
    if kind == Type.NVFP4:
        raw[:, :4] &= 0x7F  # scales have no sign
        raw[0, :4] = 0, 1, 0x7F, 0x7E
    return raw, gguf.quants.dequantize(raw.reshape(1, -1), kind)


def main():
    generator = np.random.default_rng(4)
    writer = gguf.GGUFWriter(OUT, "blocks")
    for kind in HALVES:
        raw, values = make(kind, generator)
        name = kind.name.lower().replace("_k", "_K")
        writer.add_tensor(name, raw.reshape(1, -1), raw_dtype=kind)
        writer.add_tensor(f"{name}.values", values.reshape(-1))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
