"""Fixtures shared by all tests of the package."""

from pathlib import Path

import numpy as np
import pytest


@pytest.fixture
def random():
    """normal(*shape): float32, the same numbers in every run."""
    generator = np.random.default_rng(20)

    def normal(*shape):
        return generator.standard_normal(shape, dtype=np.float32)

    return normal


@pytest.fixture(scope="session")
def repository():
    return Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def needle_14m(repository):
    return repository / "models" / "needle-14m"
