"""Fixtures: devices to run on, and small random models of every family."""

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


@pytest.fixture(scope="session")
def needle_14m():
    directory = REPOSITORY / "models" / "needle-14m"
    if not (directory / "model.safetensors").exists():
        pytest.skip("models/needle-14m is not there")
    return directory
