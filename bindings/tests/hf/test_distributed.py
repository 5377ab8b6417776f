"""Several processes: a context sharded by sequence, and transformers' own tensor parallelism.

On the CPU over gloo; with as many CUDA devices, over NCCL on those.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")


HERE = Path(__file__).parent
CHILD = HERE / "distributed_child.py"


def run_ranks(ranks: int, task: str, device: str, argument: str, directory: Path) -> None:
    """The child, once per rank; it fails when what it finds is not what one process gives.

    They meet by a file in the directory, not at a port: another program may take that.
    """
    environment = os.environ | {
        "WORLD_SIZE": str(ranks),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }
    children = [
        subprocess.Popen(
            [sys.executable, str(CHILD), task, device, argument, str(directory / "meeting")],
            env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        outputs = [child.communicate(timeout=300)[0] for child in children]
    finally:
        for child in children:
            child.kill()
    for child, output in zip(children, outputs, strict=True):
        assert child.returncode == 0, output[-4000:]


def need_gpus(device, ranks) -> None:
    if device.type == "cuda" and torch.cuda.device_count() < ranks:
        pytest.skip(f"{torch.cuda.device_count()} CUDA devices; {ranks} are needed")


def test_a_context_sharded_by_sequence_gives_the_tokens_of_one_process(device, tmp_path):
    need_gpus(device, 3)
    run_ranks(3, "sequence", device.type, "llama,gpt_oss", tmp_path)


def test_tensor_parallel_ranks_hold_their_own_heads(device, needle_14m, tmp_path):
    pytest.importorskip("accelerate", reason="transformers' tensor parallelism needs accelerate")
    need_gpus(device, 2)
    run_ranks(2, "tensor", device.type, str(needle_14m), tmp_path)
