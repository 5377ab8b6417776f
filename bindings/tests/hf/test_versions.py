"""Versions of transformers: which are taken, tried and refused."""

import re
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from conftest import REPOSITORY
from small_models import make_ids, make_model
from topkv import InvalidArgument, Unsupported
from topkv.hf import TopkCache, compat, plain, selfcheck
from transformers import cache_utils, masking_utils

NEWER = "{}.{}.0".format(*compat.UNKNOWN)


def test_the_bounds_are_those_of_the_package():
    bounds = re.search(r'"(transformers>=[^"]*)"', (REPOSITORY / "pyproject.toml").read_text())[1]
    assert compat.INSTALL == f'pip install "{bounds}"'


def test_this_version_is_one_that_was_tested():
    assert compat.LOWEST <= compat.version() < compat.UNKNOWN
    assert compat.missing() == []


def test_calls_are_seen_by_either_name_of_the_argument_for_a_cache():
    """5.24 renamed it. The ids are known only if the call was seen."""
    device = torch.device("cpu")
    model, ids = make_model("llama", device), make_ids(40, device)
    for name in {"past_key_values", compat.cache_argument()}:
        cache = TopkCache(model.config, window=8, sinks=2)
        model(ids, **{name: cache}, use_cache=True)
        assert torch.equal(cache.freeze().text_ids, ids)
        with pytest.raises(InvalidArgument, match="another text"):
            model.generate(make_ids(50, device, seed=1), **{name: cache}, max_new_tokens=1)


@pytest.mark.parametrize("found", ["5.16.4", "4.57.1"])
def test_an_older_version_is_refused_with_what_to_install(found, monkeypatch):
    monkeypatch.setattr(compat, "installed", lambda: found)
    with pytest.raises(Unsupported, match=f"5.17 and newer; {found} is installed: pip") as e:
        compat.require()
    assert "topkv[" not in str(e.value)


def test_a_version_without_what_is_read_is_refused_with_its_name(monkeypatch):
    monkeypatch.setattr(compat, "installed", lambda: NEWER)
    monkeypatch.delattr(masking_utils, "causal_mask_function")
    monkeypatch.setattr(cache_utils, "get_layer_types_and_kwargs", lambda text: None)
    with pytest.raises(Unsupported, match=f"{NEWER} does not have") as e:
        compat.require()
    assert "masking_utils.causal_mask_function" in str(e.value)
    assert "cache_utils.get_layer_types_and_kwargs(config)" in str(e.value)


def test_a_newer_version_is_used_with_a_warning():
    code = f"import transformers; transformers.__version__ = {NEWER!r}; import topkv.hf"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"{NEWER} is newer" in done.stderr


def test_trying_a_newer_version_leaves_the_random_numbers_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with pytest.warns(UserWarning, match="self_check"):
        selfcheck.try_unknown_version()
    assert torch.equal(torch.rand(3), expected)


def test_a_newer_version_that_gives_other_logits_is_refused(monkeypatch):
    monkeypatch.setattr(compat, "installed", lambda: NEWER)
    right = plain.formula
    monkeypatch.setattr(plain, "formula", lambda *args, **how: 1.01 * right(*args, **how))
    with pytest.raises(Unsupported, match=f"does not work with transformers {NEWER}.*pip install"):
        selfcheck.try_unknown_version()
