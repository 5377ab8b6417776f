#!/usr/bin/env python3
"""Writes src/model/weights/gguf_grids.cc: the points that blocks of ggml's iq1, iq2 and iq3 types
name by number. They are taken from the `gguf` package, in which they are part of the format.

Needs tools/requirements.txt. Run from anywhere: python tools/make_gguf_grids.py
"""

from pathlib import Path

import numpy as np
from gguf import quants

OUT = Path(__file__).resolve().parent.parent / "src/model/weights/gguf_grids.cc"
GRIDS = {"iq2_xxs": quants.IQ2_XXS, "iq2_xs": quants.IQ2_XS, "iq2_s": quants.IQ2_S,
         "iq3_xxs": quants.IQ3_XXS, "iq3_s": quants.IQ3_S, "iq1": quants.IQ1_S}
PER_LINE = 14


def words(kind):
    """Each point as one number: which of the type's values an element has, the first lowest."""
    kind.init_grid()
    grid = kind.grid.reshape(kind.grid_shape)
    index = (grid[..., None] == np.array(kind.grid_map, dtype=np.float32)).argmax(-1)
    bits = 16 // kind.grid_shape[1] if len(kind.grid_map) <= 4 else 3
    return (index << (bits * np.arange(kind.grid_shape[1]))).sum(-1)


def main():
    lines = ["// Made by tools/make_gguf_grids.py from the gguf package 0.19 (MIT).",
             '#include "src/model/weights/gguf_grids.h"', "", "namespace topkv {", "",
             "// clang-format off"]
    for name, kind in GRIDS.items():
        points = words(kind)
        lines.append(f"const std::array<std::uint16_t, {len(points)}> gguf_grid_{name} = {{")
        for at in range(0, len(points), PER_LINE):
            lines.append("".join(f"{point:#06x}," for point in points[at:at + PER_LINE]))
        lines.append("};")
        lines.append("")
    lines += ["// clang-format on", "}  // namespace topkv", ""]
    OUT.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
