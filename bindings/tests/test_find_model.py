"""Models by name: what takes the directory of a model finds one in Hugging Face's cache folder, too."""

import os

import pytest

import topkv

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path, monkeypatch, needle_14m):
    """With Needle-14M in it, as org/needle."""
    model = tmp_path / "models--org--needle"
    snapshot = model / "snapshots" / COMMIT
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text(COMMIT)
    snapshot.mkdir(parents=True)
    for file in needle_14m.iterdir():
        os.symlink(file, snapshot / file.name)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    return snapshot


def test_name_is_taken_wherever_a_directory_is(cache):
    assert topkv.find_model("org/needle") == cache
    config = topkv.ModelConfig.load("org/needle")
    assert topkv.Model.load("org/needle").config.hidden_size == config.hidden_size == 384
    assert topkv.Model.plan("org/needle").fits
    assert topkv.memory_plans("org/needle", 4096)


def test_path_is_given_back_as_it_is(cache, needle_14m):
    assert topkv.find_model(needle_14m) == needle_14m
    assert str(topkv.find_model("../nowhere")) == "../nowhere"


def test_error_is_the_line_that_downloads(cache):
    with pytest.raises(topkv.FileError, match="`hf download org/other` downloads it"):
        topkv.Model.load("org/other")
    with pytest.raises(topkv.FileError, match="`hf download org/other --revision v1`"):
        topkv.ChatTemplate.load("org/other@v1")


def test_plan_needs_no_weights(cache):
    (cache / "model.safetensors").unlink()
    assert topkv.find_model("org/needle", weights=False) == cache
    assert topkv.ModelConfig.load("org/needle").hidden_size == 384
    with pytest.raises(topkv.FileError, match="lacks model.safetensors; .*`hf download org/needle` completes it"):
        topkv.Model.load("org/needle")
