"""Fixtures: devices to run on, and small random models of every family."""

import runpy
import sys
from pathlib import Path

import pytest

try:
    import torch
except ImportError:  # the test files say that they are skipped
    torch = None

REPOSITORY = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(REPOSITORY / "examples" / "python"))

CUDA = pytest.param(
    "cuda",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(
            torch is None or not torch.cuda.is_available(), reason="no CUDA device"
        ),
    ],
)


@pytest.fixture(params=["cpu", CUDA])
def device(request):
    return torch.device(request.param)


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.inference_mode():
        yield


@pytest.fixture
def run_script(monkeypatch, capsys):
    """run_script(path, *arguments) runs a Python file as a program and returns what it prints. It runs in this process,
    because a new one would spend most of its time on importing PyTorch and transformers."""

    def run(path, *arguments):
        monkeypatch.setattr(sys, "argv", [str(path), *map(str, arguments)])
        monkeypatch.syspath_prepend(Path(path).parent)
        capsys.readouterr()
        try:
            runpy.run_path(str(path), run_name="__main__")
        except SystemExit as end:
            assert end.code in (None, 0), capsys.readouterr().err
        return capsys.readouterr().out

    return run


@pytest.fixture(scope="session")
def needle_14m():
    directory = REPOSITORY / "models" / "needle-14m"
    if not (directory / "model.safetensors").exists():
        pytest.skip("models/needle-14m is not there")
    return directory
