"""Another process, for test_saved_texts.py: python saved_child.py FILE OUT mapped|memory. Goes on from
a saved text and writes ids and logits."""

import sys

import torch
from small_models import make_model
from test_saved_texts import questions_of
from topkv.hf import TopkCache


def main() -> None:
    path, out, how = sys.argv[1:]
    torch.set_num_threads(1)
    model = make_model("llama", torch.device("cpu"))
    with torch.inference_mode():
        cache = TopkCache.from_file(path, model, mapped=how == "mapped")
        torch.save((cache.text_ids, questions_of(model, cache)), out)


if __name__ == "__main__":
    main()
