"""Another process, for test_saved_texts.py: python saved_child.py FILE OUT. Goes on from a saved text, in
memory and mapped, and writes ids and the logits of both."""

import sys

import torch
from small_models import make_model
from test_saved_texts import questions_of
from topkv.hf import TopkCache


def main() -> None:
    path, out = sys.argv[1:]
    torch.set_num_threads(1)
    model = make_model("llama", torch.device("cpu"))
    with torch.inference_mode():
        caches = [TopkCache.from_file(path, model, mapped=mapped) for mapped in (False, True)]
        torch.save((caches[1].text_ids, *(questions_of(model, cache) for cache in caches)), out)


if __name__ == "__main__":
    main()
