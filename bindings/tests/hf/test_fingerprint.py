"""What tells one model from another, beside a text in a file."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from small_models import make_config, make_model, other_llamas
from topkv import InvalidArgument, Unsupported
from topkv.hf import TopkCache
from topkv.hf.fingerprint import fingerprint
from transformers import AutoModelForCausalLM


def make_llama():
    return make_model("llama", torch.device("cpu"))


def test_a_fingerprint_tells_what_differs():
    device = torch.device("cpu")
    parts = fingerprint(make_llama()).split(", ")
    assert parts[:2] == ["LlamaForCausalLM of transformers", "float32"]
    place = {"class": [0], "dtype": [1, 3], "config": [2], "weights": [3]}
    for what, other in other_llamas(device):
        theirs = fingerprint(other).split(", ")
        assert [i for i in range(4) if theirs[i] != parts[i]] == place[what], what


def test_a_fingerprint_is_of_what_a_model_computes_alone():
    """And so the same on every device, however the model is found, called and wrapped."""
    model = make_llama()
    mine = fingerprint(model)
    TopkCache(model.config)  # another attention implementation
    model.config.use_cache = not model.config.use_cache
    model.config.eos_token_id, model.config._name_or_path = 7, "elsewhere"
    model.config.attention_dropout = 0.5
    assert fingerprint(model.train()) == mine
    assert fingerprint(torch.compile(model.eval())) == mine
    model.requires_grad_(True)
    assert fingerprint(model) == mine
    with pytest.raises(InvalidArgument, match="model is a LlamaConfig; expected the model whose config"):
        fingerprint(model.config)


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma2", "gpt_oss", "gpt2", "qwen3_moe"])
def test_a_fingerprint_outlives_saving_and_loading_the_model(family, tmp_path):
    model = make_model(family, torch.device("cpu"))
    mine = fingerprint(model)
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert fingerprint(again) == mine
    half = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert fingerprint(half).split(", ")[2] == mine.split(", ")[2]


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_fingerprint_is_the_same_on_a_gpu(device):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    model = make_model("llama", torch.device("cpu"), torch.bfloat16)
    mine = fingerprint(model)
    assert fingerprint(model.to(device)) == mine


def test_weights_that_are_not_in_memory_have_no_fingerprint():
    model = make_llama()
    model.model.layers[0].mlp.to("meta")
    with pytest.raises(Unsupported, match="model.layers.0.mlp.*not in memory"):
        fingerprint(model)


def test_quantised_weights_have_a_fingerprint_of_their_codes():
    torchao = pytest.importorskip("torchao.quantization")

    def quantised(seed):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(make_config("llama")).eval()
        with torch.inference_mode(False), torch.no_grad():
            torchao.quantize_(model, torchao.Int8WeightOnlyConfig())
        return fingerprint(model)

    assert quantised(1) == quantised(1)
    assert quantised(1) != quantised(2)
    torch.manual_seed(1)
    plain = AutoModelForCausalLM.from_config(make_config("llama"))
    assert quantised(1) != fingerprint(plain)
