"""examples/python/sequence_shards.py under torchrun: two nodes of one process, on this machine."""

import os
import re
import socket
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def test_two_nodes_answer_as_one_process(repository, needle_14m, run_script):
    script = repository / "examples" / "python" / "sequence_shards.py"
    flags = ("--device", "cpu", "--tokens", "1024", "--window", "128", "--chunk", "512")
    meeting = f"127.0.0.1:{free_port()}"
    node = ("-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1")
    node += ("--rdzv-id", "text", "--rdzv-backend", "c10d", "--rdzv-endpoint", meeting)
    node += ("--local-addr", "127.0.0.1")
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }
    processes = [
        subprocess.Popen(
            [sys.executable, *node, script, *flags],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    try:
        alone = run_script(script, *flags)
        outputs = [process.communicate(timeout=900) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, errors) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, errors[-4000:]

    texts = [alone, *(out for out, _ in outputs)]
    single, *nodes = ((out, dict(re.findall(r"depth +(\d+)%: (.*)", out))) for out in texts)
    assert len(single[1]) == 10
    assert all(answers == single[1] for _, answers in nodes)
    # Each node has its share of the rows.
    held = [int(re.search(r"has (\d+) of", out)[1]) for out, _ in (single, *nodes)]
    assert held[0] == held[1] + held[2] and abs(held[1] - held[2]) <= 3
