#!/usr/bin/env python3
"""Compares the GGUF files that make_gguf_fixtures.py writes with those of llama.cpp's own converter.

    python tools/compare_gguf_converter.py LLAMA_CPP VARIANT...

LLAMA_CPP is a folder of llama.cpp's sources, such as vendor/llama.cpp in the source package of llama-cpp-python
(pip download --no-deps --no-binary llama-cpp-python llama-cpp-python==0.3.36). Both write the random checkpoint of a
variant with weights in float32. Prints each tensor and each key of the architecture that differs, and ends with status
1 if a tensor does. Values of a block that drafts tokens are not compared: fixtures have no checkpoint of it.
"""

import copy
import json
import sys
import tempfile
from pathlib import Path

sources = Path(sys.argv[1])
sys.path[:0] = [str(sources), str(sources / "gguf-py")]  # with the gguf package of the same version

import gguf
import numpy as np
import torch
from safetensors.torch import load_file, save_file

import conversion
import make_gguf_fixtures as fixtures
from conversion.base import ModelBase

SEED = 70000


def read(path):
    reader = gguf.GGUFReader(path)
    prefix = reader.fields["general.architecture"].contents() + "."
    return ({tensor.name: tensor for tensor in reader.tensors},
            {key: field.contents() for key, field in reader.fields.items() if key.startswith(prefix)})


def write_ours(name, spec, folder):
    fixtures.OUT = folder
    fixtures.make_variant(name, spec, {"": gguf.GGMLQuantizationType.F32}, SEED)
    return folder / name / "model.gguf"


def add_drafts(folder):
    """A block that drafts tokens, as Qwen3.5's checkpoints have it: the layer of attention again."""
    config = json.loads((folder / "config.json").read_text()) | {"mtp_num_hidden_layers": 1}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = load_file(folder / "model.safetensors")
    layer = f"model.layers.{config['layer_types'].index('full_attention')}."
    tensors |= {f"mtp.layers.0.{key.removeprefix(layer)}": value.clone()
                for key, value in tensors.items() if key.startswith(layer)}
    hidden = config["hidden_size"]
    tensors["mtp.fc.weight"] = torch.zeros(hidden, 2 * hidden)
    tensors |= {f"mtp.{norm}.weight": torch.zeros(hidden)
                for norm in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def write_theirs(name, spec, folder):
    fixtures.write_checkpoint(folder / "checkpoint", copy.deepcopy(spec), SEED)
    drafts = name in fixtures.DRAFTING
    if drafts:
        add_drafts(folder / "checkpoint")
    architecture = ModelBase.load_hparams(folder / "checkpoint", False)["architectures"][0]
    converter = conversion.get_model_class(architecture)
    converter.set_vocab = lambda self: None  # the checkpoint has no tokenizer
    converter.no_mtp = not drafts
    with torch.inference_mode():
        converter(folder / "checkpoint", gguf.LlamaFileType.ALL_F32, folder / "theirs.gguf", eager=True).write()
    return folder / "theirs.gguf"


def compare(name, spec, folder):
    ours, our_keys = read(write_ours(name, spec, folder))
    theirs, their_keys = read(write_theirs(name, spec, folder))
    last = max(int(key.split(".")[1]) for key in ours if key.startswith("blk."))
    differ = sorted(set(ours) ^ set(theirs))
    for key in set(ours) & set(theirs):
        one, other = ours[key], theirs[key]
        is_draft = name in fixtures.DRAFTING and key.startswith(f"blk.{last}.")
        if list(one.shape) != list(other.shape) or not is_draft and not np.allclose(
                one.data.view(np.float32), other.data.view(np.float32), rtol=1e-6, atol=1e-7):
            differ.append(key)
    print(f"{name}: {len(set(ours) & set(theirs))} tensors in both files, {len(differ)} differ: {differ}")
    for key in sorted(set(our_keys) | set(their_keys)):
        if our_keys.get(key) != their_keys.get(key):
            print(f"   {key} is {our_keys.get(key)}; the converter writes {their_keys.get(key)}")
    return not differ


def main():
    names = sys.argv[2:]
    alike = True
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            alike = compare(name, fixtures.VARIANTS[name][0], Path(folder)) and alike
    sys.exit(0 if names and alike else 1)


if __name__ == "__main__":
    main()
