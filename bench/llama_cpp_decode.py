#!/usr/bin/env python3
"""Decode rate and memory of llama.cpp (llama-cpp-python of PyPI, built for this machine) on a GGUF
file, behind contexts of random tokens, for comparison with `rates_bench FILE.gguf TOKENS`.

    CMAKE_ARGS=-DGGML_NATIVE=ON pip install llama-cpp-python
    python bench/llama_cpp_decode.py FILE.gguf 8192 --threads 2

Prints a line of JSON for each context.
"""

import argparse
import json
import resource
import statistics
import time

import llama_cpp
import numpy


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("contexts", type=int, nargs="+")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=32, help="decoded, each timed; the median counts")
    arguments = parser.parse_args()
    for context in arguments.contexts:
        model = llama_cpp.Llama(
            arguments.file, n_ctx=context + arguments.tokens + 8, n_threads=arguments.threads,
            n_threads_batch=arguments.threads, flash_attn=True, verbose=False)
        tokens = numpy.random.default_rng(0).integers(1000, model.n_vocab() - 1000, context)
        start = time.perf_counter()
        model.eval(tokens.tolist())
        prefill = time.perf_counter() - start
        times = []
        for token in range(arguments.tokens):
            start = time.perf_counter()
            model.eval([2000 + token])
            times.append(time.perf_counter() - start)
        seconds = statistics.median(times)
        print(json.dumps({
            "context": context, "prefill_tokens_per_second": context / prefill,
            "decode_tokens_per_second": 1 / seconds, "ms_per_token": 1e3 * seconds,
            "host_peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20),
        }), flush=True)
        del model


if __name__ == "__main__":
    main()
