"""The examples that need NumPy alone run and print what they promise."""

import re
import subprocess
import sys

import pytest


@pytest.fixture
def run(repository):
    def run(script, *arguments):
        path = repository / "examples" / "python" / script
        result = subprocess.run([sys.executable, path, *arguments], capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        return result.stdout

    return run


def test_search_keys_finds_ten_keys_best_first(run):
    scores = [float(score) for score in re.findall(r"q·k = (.*)", run("search_keys.py"))]
    assert len(scores) == 10
    assert scores == sorted(scores, reverse=True)


def test_search_keys_takes_another_index(run):
    assert run("search_keys.py", "faiss:IVF64,SQ8").startswith("faiss:IVF64,SQ8")


def test_own_network_comes_closer_to_dense_attention_with_more_rows(run):
    errors = [float(error) for error in re.findall(r"error (\S+)", run("own_network.py"))]
    assert len(errors) == 4
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-3
