"""A deployment of Ray Serve that answers questions about saved texts.

    pip install '.[ray]'
    serve run --app-dir examples/python ray_serve:build model=/data/model contexts=/data/contexts

Every host of the cluster has the model and the contexts at these paths. save_tokens makes a
context. A request is a POST whose header serve_multiplexed_model_id names a context, NAME of
NAME.tkv, and whose body is {"prompt": "…", "max_tokens": 32}. Ray sends it to a replica that has
the context, or else to a replica that then loads it. Files stay mapped: replicas on one host share
their rows.

ray_serve_demo.py runs all of this on one machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from pathlib import Path

import topkv
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse

CAPACITY = 16384  # tokens of a prompt and its answer


class Refused(Exception):
    """A request that gets an HTTP status and the reason."""

    def __init__(self, status: int, reason: str):
        super().__init__(reason)
        self.status = status


def index_of(model: topkv.Model) -> str:
    return topkv.IndexSpec.default_for(model.config.attention.head_dim).text


def save_tokens(model: topkv.Model, name: str, tokens: list[int], path: Path) -> None:
    """Reads a text and saves its context under a name for the model: the name of its folder."""
    context = model.prefill(tokens, "auto", indices=[index_of(model)])
    context.save(path, model=name, made_with="prefill, auto", tokens=tokens)


@serve.deployment(max_ongoing_requests=32)
class Answers:
    """A replica: one model, and the contexts that its requests have named."""

    def __init__(self, model: str, contexts: str, k: int):
        self.folder = Path(contexts)
        self.device = topkv.Device.open("auto")  # Ray shows a replica the GPUs that it was given
        self.model = topkv.Model.load(model, self.device)
        self.model_name = Path(model).resolve().name
        self.tokenizer = self.model.tokenizer()
        self.index = index_of(self.model)
        self.k = k

    async def __call__(self, request: Request) -> JSONResponse:
        name = serve.get_multiplexed_model_id()
        try:
            self.file_of(name)  # before a loaded context is dropped to make place for this one
            text = await self.answer(self.checked(await request.body()))
        except Refused as error:
            return JSONResponse({"error": str(error)}, error.status)
        except topkv.OutOfMemory as error:
            return JSONResponse({"error": str(error)}, 503)
        except topkv.Error as error:
            return JSONResponse({"error": str(error)}, 500)
        replica = {"host": socket.gethostname(), "pid": os.getpid()}
        return JSONResponse({"context": name, "text": text, "replica": replica})

    def file_of(self, name: str) -> Path:
        """The file of a context. A name is looked up, and never becomes a part of a path."""
        if not name:
            raise Refused(400, "name a context in the header serve_multiplexed_model_id")
        files = {path.stem: path for path in self.folder.glob("*.tkv")}
        if name not in files:
            raise Refused(404, f"found no context {name!r} among {len(files)} in {self.folder}")
        return files[name]

    def checked(self, body: bytes) -> tuple[list[int], int]:
        """The tokens of a request's prompt, and the most tokens of its answer."""
        try:
            fields = json.loads(body)
            prompt, most = fields["prompt"], fields.get("max_tokens", 32)
        except (ValueError, TypeError, KeyError, AttributeError):
            reason = 'expected JSON with "prompt" and, if you like, "max_tokens"'
            raise Refused(400, reason) from None
        if not isinstance(prompt, str) or not prompt:
            raise Refused(400, f"prompt: found {prompt!r}, expected a text")
        if type(most) is not int or most < 1:
            raise Refused(400, f"max_tokens: found {most!r}, expected a number from 1")
        tokens = self.tokenizer.encode(prompt)
        if len(tokens) + most > CAPACITY:
            found = f"found {len(tokens)} tokens and max_tokens {most}"
            raise Refused(400, f"{found}, expected a sum of at most {CAPACITY}")
        return tokens, most

    @serve.multiplexed(max_num_models_per_replica=16)  # beyond, the least recently used is dropped
    async def context(self, name: str) -> topkv.Context:
        path = self.file_of(name)
        loaded = await asyncio.to_thread(
            topkv.load_context, path, mapped=True, indices=[self.index], device=self.device
        )
        if loaded.model != self.model_name:
            found = f"found a context of {loaded.model!r}"
            raise Refused(409, f"{path}: {found}, expected one of {self.model_name!r}")
        return loaded.context

    @serve.batch(max_batch_size=16, batch_wait_timeout_s=0.01)
    async def answer(self, requests: list[tuple[list[int], int]]) -> list[str]:
        """Answers requests about one context in joint steps. Ray splits batches by context."""
        context = await self.context(serve.get_multiplexed_model_id())
        return await asyncio.to_thread(self.generate, context, requests)

    def generate(self, context: topkv.Context, requests: list[tuple[list[int], int]]) -> list[str]:
        prompts, left = map(list, zip(*requests))
        sessions = [
            topkv.Session(context, self.device, index=self.index, k=self.k, capacity=CAPACITY)
            for _ in requests
        ]

        def on_token(number: int, token: int) -> bool:
            left[number] -= 1
            return left[number] > 0

        results = self.model.generate_together(
            sessions, prompts, max(left), temperature=0.0, on_token=on_token
        )
        return [self.tokenizer.decode(result.tokens) for result in results]


def build(args: dict[str, str]) -> serve.Application:
    """The application of `serve run` and of Serve's configuration files, from their arguments."""
    defaults = {"k": 64, "num_cpus": 1, "num_gpus": 0, "min_replicas": 1, "max_replicas": 4}
    unknown = set(args) - set(defaults) - {"model", "contexts"}
    if unknown or "model" not in args or "contexts" not in args:
        raise ValueError(
            f"found the arguments {sorted(args)}; expected model and contexts, and if you like "
            + ", ".join(defaults)
        )
    of = {name: type(value)(args.get(name, value)) for name, value in defaults.items()}
    deployment = Answers.options(
        ray_actor_options={name: of[name] for name in ("num_cpus", "num_gpus")},
        autoscaling_config={
            "min_replicas": of["min_replicas"],
            "max_replicas": of["max_replicas"],
            "target_ongoing_requests": 8,
        },
    )
    return deployment.bind(args["model"], args["contexts"], of["k"])
