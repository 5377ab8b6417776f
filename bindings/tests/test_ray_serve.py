"""examples/python/ray_serve.py on a cluster of one machine, as its demonstration runs it."""

import os
import re
import socket
import subprocess
import sys

import pytest

pytest.importorskip("ray", reason="the example of Ray Serve needs ray: pip install '.[ray]'")


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def test_replicas_answer_take_over_and_refuse(repository, tmp_path):
    environment = os.environ | {
        "HOME": str(tmp_path),  # Ray writes a token there
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    done = subprocess.run(
        [
            sys.executable,
            repository / "examples" / "python" / "ray_serve_demo.py",
            *("--tokens", "2048", "--port", str(free_port())),
        ],
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]

    before, after = done.stdout.split("kill replica ")
    killed = int(after.split()[0])
    pattern = r"^(lake|mountain): '(.*)', expected (\d+), replica (\d+)"
    asked, taken_over = re.findall(pattern, before, re.M), re.findall(pattern, after, re.M)
    assert len(asked) == 6 and len(taken_over) == 2
    assert all(value in answer for _, answer, value, _ in asked + taken_over)
    # Requests go to the replica that has their context.
    pids = {name: {int(pid) for of, *_, pid in asked if of == name} for name in ("lake", "mountain")}
    assert pids["lake"] == {killed} and len(pids["mountain"]) == 1
    assert killed not in {int(pid) for *_, pid in taken_over}

    refused = re.findall(r"^'(\w*)', \{.*\}: (\d+), (.*)$", after, re.M)
    assert [(name, int(status)) for name, status, _ in refused] == [
        ("", 400), ("sea", 404), ("other", 409), ("damaged", 500),
        ("lake", 400), ("lake", 400), ("lake", 400),
    ]  # fmt: skip
    for (*_, reason), part in zip(
        refused,
        ("serve_multiplexed_model_id", "'sea'", "'another-model'", "damaged.tkv", "JSON", "1", "0"),
        strict=True,
    ):
        assert part in reason
