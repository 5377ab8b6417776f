"""Exceptions: their classes, and that their texts are those of C++."""

import pytest

import topkv


@pytest.mark.parametrize(
    "error, base",
    [
        (topkv.InvalidArgument, ValueError),
        (topkv.FileError, OSError),
        (topkv.Unsupported, NotImplementedError),
        (topkv.OutOfMemory, MemoryError),
    ],
)
def test_every_exception_is_a_topkv_error_and_the_built_in_one(error, base):
    assert issubclass(error, topkv.Error)
    assert issubclass(error, base)
    assert issubclass(topkv.Error, Exception)
    assert error.__module__ == "topkv"
    assert error.__doc__
    assert str(error("as given")) == "as given"


def test_an_invalid_argument_has_the_text_of_cpp():
    with pytest.raises(topkv.InvalidArgument, match="gpu"):
        topkv.Device.open("gpu")
    with pytest.raises(ValueError) as caught:
        topkv.Device.open("cpu", memory_ceiling=-1)
    assert str(caught.value) == "a ceiling of -1 bytes of device memory; expected 0 or more"


def test_a_file_error_starts_with_the_path(tmp_path):
    with pytest.raises(topkv.FileError) as caught:
        topkv.Model.load(tmp_path / "none")
    assert str(caught.value).startswith(f"{tmp_path / 'none'}: there is no such directory; ")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(OSError, match=str(tmp_path / "config.json")):
        topkv.ModelConfig.load(tmp_path)


def test_what_is_not_implemented_is_named(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    with pytest.raises(NotImplementedError, match="mamba") as caught:
        topkv.ModelConfig.load(str(tmp_path))
    assert type(caught.value) is topkv.Unsupported


def test_memory_that_is_not_there_is_refused_with_its_amounts():
    shape = topkv.AttentionShape(layers=2, q_heads=2, kv_heads=1, head_dim=64)
    with pytest.raises(MemoryError) as caught:
        topkv.ContextBuilder(shape, 1000, memory_budget=4096)
    error = caught.value
    assert type(error) is topkv.OutOfMemory
    assert error.wanted_bytes >= 1000 * 2 * 2 * 64 * 2
    assert error.available_bytes == 4096
    assert f"({error.wanted_bytes} bytes)" in str(error)
    assert f"({error.available_bytes} bytes)" in str(error)


def test_an_unusable_cuda_device_says_why():
    try:
        device = topkv.Device.open("cuda")
    except topkv.Unsupported as error:
        assert topkv.cuda_built == ("built without CUDA" not in str(error))
        assert topkv.Device.open("auto").name == "host"
    else:
        assert device.is_cuda
        assert topkv.cuda_built


def test_arguments_of_other_types_are_type_errors():
    with pytest.raises(TypeError):
        topkv.AttentionShape("two", 2, 1, 64)
    with pytest.raises(TypeError):
        topkv.Session("context")
    with pytest.raises(topkv.InvalidArgument, match="a session needs a context; got none"):
        topkv.Session(None)


def test_a_device_may_be_given_by_name():
    shape = topkv.AttentionShape(layers=1, q_heads=1, kv_heads=1, head_dim=64)
    assert not topkv.ContextBuilder(shape, capacity=1, device="cpu").device.is_cuda
    with pytest.raises(topkv.InvalidArgument, match="'tpu' is not understood"):
        topkv.ContextBuilder(shape, capacity=1, device="tpu")
    with pytest.raises(topkv.InvalidArgument, match="expected a topkv.Device or its name"):
        topkv.ContextBuilder(shape, capacity=1, device=0)
