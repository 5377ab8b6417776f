"""Fixtures: devices to run on, and small random models of every family."""

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="tests of topkv.hf need torch")
pytest.importorskip("transformers", reason="tests of topkv.hf need transformers")

REPOSITORY = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(REPOSITORY / "examples" / "python"))

CUDA = pytest.param(
    "cuda",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
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
