#!/usr/bin/env python3
"""Writes a copy of a GGUF file whose RoPE is stretched by YaRN (Peng et al. 2023, arXiv 2309.00071).

    pip install gguf==0.19.0
    python bench/yarn_gguf.py IN.gguf OUT.gguf 4        # four times the tokens

All tensors and all other metadata stay as they are. OUT is replaced.
"""

import argparse

import gguf
from gguf.scripts.gguf_new_metadata import MetadataDetails, copy_with_new_metadata


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("to")
    parser.add_argument("factor", type=float, help="context length in units of the source's")
    options = parser.parse_args()
    reader = gguf.GGUFReader(options.source)
    architecture = reader.get_field(gguf.Keys.General.ARCHITECTURE).contents()
    if reader.get_field(f"{architecture}.rope.scaling.type") is not None:
        parser.error(f"{options.source} has a scaling of RoPE already; give the file of the unscaled model")
    length = int(reader.get_field(f"{architecture}.context_length").contents())
    writer = gguf.GGUFWriter(options.to, arch=architecture, endianess=reader.endianess)
    alignment = reader.get_field(gguf.Keys.General.ALIGNMENT)
    if alignment is not None:
        writer.data_alignment = alignment.contents()
    number, real, text = gguf.GGUFValueType.UINT32, gguf.GGUFValueType.FLOAT32, gguf.GGUFValueType.STRING
    changed = {
        "context_length": MetadataDetails(number, int(length * options.factor)),
        "rope.scaling.type": MetadataDetails(text, "yarn"),
        "rope.scaling.factor": MetadataDetails(real, options.factor),
        "rope.scaling.original_context_length": MetadataDetails(number, length),
    }
    copy_with_new_metadata(reader, writer, {f"{architecture}.{name}": to for name, to in changed.items()}, [])


if __name__ == "__main__":
    main()
