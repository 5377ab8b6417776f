#!/usr/bin/env python3
"""Prefill and decode rates of llama.cpp (xllamacpp of PyPI) on a GGUF file, behind contexts of random
tokens, for comparison with `rates_bench FILE.gguf TOKENS`.

    pip install xllamacpp
    python bench/llama_cpp_decode.py FILE.gguf 8192 --threads 2

Prints a line of JSON for each context. The rates are llama.cpp's own.
"""

import argparse
import json
import resource

import numpy
import xllamacpp


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("contexts", type=int, nargs="+")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=32, help="decoded")
    parser.add_argument("--vocabulary", type=int, default=32000, help="tokens to draw from")
    arguments = parser.parse_args()
    for context in arguments.contexts:
        params = xllamacpp.CommonParams()
        params.model.path = arguments.file
        params.n_ctx = context + arguments.tokens + 64
        params.n_parallel = 1
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = arguments.threads
        params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
        params.warmup = False
        server = xllamacpp.Server(params)
        tokens = numpy.random.default_rng(0).integers(1000, arguments.vocabulary, context)
        answer = server.handle_completions({
            "prompt": tokens.tolist(), "n_predict": arguments.tokens, "ignore_eos": True,
            "temperature": 0, "cache_prompt": False})
        timings = answer["timings"]
        print(json.dumps({
            "context": timings["prompt_n"], "prefill_tokens_per_second": timings["prompt_per_second"],
            "decode_tokens_per_second": timings["predicted_per_second"],
            "ms_per_token": timings["predicted_per_token_ms"],
            "host_peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20),
        }), flush=True)
        del server


if __name__ == "__main__":
    main()
