"""Runs ray_serve.py on this machine: two replicas, two texts, a replica that dies, bad requests.

    pip install '.[ray]'
    python examples/python/ray_serve_demo.py
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import ray
import topkv
from needles import NEEDLE_14M, Needle, make_needles, text_with
from ray import serve
from ray_serve import build, save_tokens


class Client:
    def __init__(self, port: int):
        self.url = f"http://127.0.0.1:{port}/"

    def post(self, context: str, body: dict) -> tuple[int, dict]:
        """The HTTP status and the response to one request. Ray's own errors are plain text."""
        headers = {"serve_multiplexed_model_id": context}
        request = urllib.request.Request(self.url, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=300) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            text = error.read().decode()
            return error.code, json.loads(text) if text.startswith("{") else {"error": text}

    def ask(self, context: str, needle: Needle) -> int:
        """Asks until a replica answers, for at most two minutes; the replica's process."""
        body = {"prompt": needle.question, "max_tokens": 12}
        start = time.perf_counter()
        while time.perf_counter() < start + 120:
            status, response = self.post(context, body)
            if status == 200:
                answer = response["text"].strip().splitlines()[0]
                pid = response["replica"]["pid"]
                end = f"replica {pid}, {time.perf_counter() - start:.2f} s"
                print(f"{context}: {answer!r}, expected {needle.value}, {end}", flush=True)
                return pid
            print(f"  {status}: {response['error']}", flush=True)
            time.sleep(1)
        raise SystemExit(f"no replica answered about {context} within two minutes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=NEEDLE_14M, help="directory of a checkpoint")
    parser.add_argument("--tokens", type=int, default=4096, help="length of each text")
    parser.add_argument("--port", type=int, default=8000)
    args = parser.parse_args()

    needles = {name: make_needles(3, seed) for seed, name in enumerate(("lake", "mountain"))}
    with tempfile.TemporaryDirectory() as folder:
        model = topkv.Model.load(args.model, "cpu")
        files = {name: Path(folder, f"{name}.tkv") for name in (*needles, "other", "damaged")}
        for name in needles:
            start = time.perf_counter()
            tokens = text_with(needles[name], args.tokens, model.tokenizer())
            save_tokens(model, args.model.name, tokens, files[name])
            print(f"{name}: {len(tokens)} tokens read in {time.perf_counter() - start:.1f} s")
        save_tokens(model, "another-model", tokens[:100], files["other"])
        files["damaged"].write_bytes(files["lake"].read_bytes()[:10_000])

        ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
        serve.start(http_options={"port": args.port})
        serve.run(build({"model": str(args.model), "contexts": folder, "min_replicas": "2"}))
        client = Client(args.port)

        for i in range(3):
            pids = [client.ask(name, needles[name][i]) for name in needles]
            time.sleep(0 if i else 5)  # Ray's router hears of loaded contexts after a moment
        print(f"kill replica {pids[0]}")
        os.kill(pids[0], signal.SIGKILL)
        for name in needles:
            client.ask(name, needles[name][0])

        prompt = {"prompt": "Where is it?"}
        for context, body in (
            ("", prompt), ("sea", prompt), ("other", prompt), ("damaged", prompt),
            ("lake", {}), ("lake", {"prompt": 1}), ("lake", prompt | {"max_tokens": 0}),
        ):
            status, response = client.post(context, body)
            print(f"{context!r}, {body}: {status}, {response['error']}")
        serve.shutdown()
        ray.shutdown()


if __name__ == "__main__":
    main()
