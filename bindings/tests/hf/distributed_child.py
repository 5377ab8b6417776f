"""One rank of test_distributed.py: python distributed_child.py TASK DEVICE ARGUMENT MEETING.

MEETING is the file by which the ranks find each other.
"""

import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from small_models import assert_greedy, assert_logits_agree, dtype_of, make_ids, make_model
from topkv.hf import TopkCache
from transformers import AutoModelForCausalLM

ALL = {"k": 10_000, "window": 8, "sinks": 2}


def same_on_all_ranks(x: torch.Tensor) -> bool:
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.contiguous())
    return all(torch.equal(part, parts[0]) for part in parts)


def sent_bytes(call) -> int:
    """The bytes that this rank gives to all-gathers during a call."""
    gather, sent = dist.all_gather_into_tensor, []

    def counted(parts, mine, **options):
        sent.append(mine.nbytes)
        return gather(parts, mine, **options)

    dist.all_gather_into_tensor = counted
    try:
        call()
    finally:
        dist.all_gather_into_tensor = gather
    return sum(sent)


def sequence(device: torch.device, families: str) -> None:
    for family in families.split(","):
        sequence_of(device, family)


def sequence_of(device: torch.device, family: str) -> None:
    model = make_model(family, device, dtype_of(device))
    ranks = dist.get_world_size()
    # Prompts of one token and of fewer tokens than ranks leave ranks without rows.
    for prompt, chunk in ((61, None), (61, 17), (2, None), (1, None)):
        ids = make_ids(prompt, device)
        cache = TopkCache(model.config, **ALL, shard="sequence")
        out = model.generate(
            ids,
            past_key_values=cache,
            max_new_tokens=12,
            do_sample=False,
            prefill_chunk_size=chunk,
        )
        assert same_on_all_ranks(out)
        assert_greedy(model, out, prompt)
    # Rows are spread: no rank holds much more than its share.
    ids = make_ids(90, device)
    cache = TopkCache(model.config, **ALL, shard="sequence")
    model(ids[:, :60], past_key_values=cache, use_cache=True)
    cache.freeze()
    assert cache.context.tokens == 60 // ranks
    assert cache.get_seq_length() == 60
    # A question of several tokens, wrong ones taken back, and tokens.
    session = cache.session()
    model(ids[:, 60:70], past_key_values=session, use_cache=True)
    session.activate_past_recording()
    model(make_ids(3, device, seed=4), past_key_values=session, use_cache=True)
    session.crop(-3)
    logits = model(ids[:, 70:], past_key_values=session, use_cache=True).logits
    assert_logits_agree(logits, model, ids, first=70)
    # A token sends out and lse of every layer and query head once: docs/howto-several-machines.md.
    shape = cache.context.shape
    sent = sent_bytes(lambda: model(ids[:, :1], past_key_values=session, use_cache=True))
    assert sent == shape.layers * shape.q_heads * (shape.head_dim + 1) * 4


def tensor(device: torch.device, directory: str) -> None:
    """Logits under tensor parallelism against those of DynamicCache under the same."""
    from transformers import DynamicCache
    from transformers.distributed import DistributedConfig

    model = AutoModelForCausalLM.from_pretrained(
        Path(directory),
        dtype=dtype_of(device),
        distributed_config=DistributedConfig(tp_plan="auto"),
    ).eval()
    ids = torch.randint(2, 4000, (1, 120), generator=torch.Generator().manual_seed(1))
    ids = ids.to(model.device)

    def last_logits(cache):
        for part in torch.split(ids, [60, 40, 1, 19], dim=1):
            logits = model(part, past_key_values=cache, use_cache=True).logits
        return logits.float()

    cache = TopkCache(model.config, **ALL)
    found, expected = last_logits(cache), last_logits(DynamicCache(config=model.config))
    assert cache.context.shape.q_heads == 3 and cache.context.shape.kv_heads == 1
    if model.dtype == torch.float32:
        assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()
    else:  # as in small_models.tolerance: twice what bf16 does to the model itself
        exact_model = AutoModelForCausalLM.from_pretrained(Path(directory), dtype=torch.float32)
        exact_model = exact_model.to(device).eval()
        exact = exact_model(ids).logits[:, -19:]
        tolerance = 2 * (expected - exact).abs().max()
        assert (found - exact).abs().max() <= tolerance
    out = model.generate(
        ids, past_key_values=TopkCache(model.config, **ALL), max_new_tokens=8, do_sample=False
    )
    assert same_on_all_ranks(out)


if __name__ == "__main__":
    task, kind, argument, meeting = sys.argv[1:]
    if kind == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(
        "nccl" if kind == "cuda" else "gloo",
        init_method=f"file://{meeting}",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=timedelta(seconds=120),
    )
    where = torch.device(kind, int(os.environ["LOCAL_RANK"]) if kind == "cuda" else None)
    with torch.inference_mode():
        {"sequence": sequence, "tensor": tensor}[task](where, argument)
    dist.destroy_process_group()
