"""Models of experts in 16 bits. A router that takes another expert turns a rounding into a jump, so
they are compared where it has no choice, and where it has one by what was chosen.

In float32 test_families.py compares them as they are.
"""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from small_models import (
    EAGER,
    assert_logits_agree,
    dtype_of,
    dynamic_logits,
    exact_logits,
    logits_by_pieces,
    make_config,
    make_ids,
    make_model,
    tolerance,
)
from topkv import Unsupported, hf
from topkv.hf import TopkCache
from transformers import AutoModelForCausalLM

CPU = torch.device("cpu")
ALL = {"k": 10_000, "window": 8, "sinks": 2}
PIECES = [25, 25, 10] + [1] * 12
FAMILIES = ["mixtral", "qwen3_moe", "gpt_oss", "qwen2_moe", "granitemoe", "olmoe"]


def with_all_experts(family, device, dtype):
    """Every expert has a part in every token: the router only weighs them."""
    config = make_config(family)
    config.num_experts_per_tok = getattr(config, "num_local_experts", None) or config.num_experts
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config, **EAGER)
    return model.to(device=device, dtype=dtype).eval()


class Chosen:
    """Which experts the routers of a model choose, by the indices that their calls return."""

    def __init__(self, model):
        self.calls = []
        self._hooks = [
            x.register_forward_hook(self._note)
            for name, x in model.named_modules()
            if name.endswith((".gate", ".router")) and not isinstance(x, torch.nn.Linear)
        ]
        assert len(self._hooks) == model.config.num_hidden_layers

    def _note(self, module, args, outputs):
        indices = [x for x in outputs if isinstance(x, torch.Tensor) and not x.is_floating_point()]
        self.calls.append(indices[0].reshape(-1, indices[0].shape[-1]).sort(-1).values)

    def by_token(self, model):
        """[tokens, layers * experts], and forgets them."""
        layers = len(self._hooks)
        per_layer = [torch.cat(self.calls[i::layers]) for i in range(layers)]
        self.calls = []
        return torch.cat(per_layer, dim=-1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_where_every_expert_is_taken(family, dtype, device):
    model = with_all_experts(family, device, dtype)
    ids = make_ids(sum(PIECES), device)
    found = logits_by_pieces(model, TopkCache(model.config, **ALL), ids, PIECES)
    # Rows on a CUDA device are bf16.
    rounds = model if device.type == "cpu" else with_all_experts(family, device, torch.bfloat16)
    assert_logits_agree(found, rounds, ids)


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe"])
def test_logits_agree_up_to_the_first_token_of_other_experts(family):
    """As they are loaded: with the same experts chosen in every layer, topkv is as near to float32
    as rounding allows."""
    model = make_model(family, CPU, torch.float16)
    ids = make_ids(sum(PIECES), CPU)
    chosen = Chosen(model)
    found = logits_by_pieces(model, TopkCache(model.config, **ALL), ids, PIECES)
    by_topkv = chosen.by_token(model)
    dynamic = dynamic_logits(model, ids, PIECES)
    by_dynamic = chosen.by_token(model)
    other = (by_topkv != by_dynamic).any(-1)
    same = int(other.int().argmax()) if other.any() else len(other)
    assert same >= 8  # else this compared little
    error = (found - dynamic).abs()[:, :same].max()
    assert error <= 0.02 * dynamic.abs().max()  # some ten roundings of 2^-11 in each of 3 layers
    assert exact_logits(model, ids).isfinite().all() and tolerance(model, ids) > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_retrieval_runs_with_experts(family, device):
    model = make_model(family, device, dtype_of(device))
    cache = TopkCache(model.config, k=4, window=8, sinks=2)
    ids = make_ids(69, device)
    out = model.generate(ids, past_key_values=cache, max_new_tokens=8, do_sample=False)
    assert out.shape == (1, 77)
    assert cache.stats()[0].rows_retrieved > 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_self_check_takes_what_a_router_makes_of_rounding(family, dtype):
    assert hf.self_check(make_model(family, CPU, dtype), tokens=96).difference < 0.25


def test_self_check_refuses_another_attention_of_a_model_with_experts():
    model = make_model("granitemoe", CPU, torch.bfloat16)
    with pytest.raises(Unsupported, match="and 0.[0-2][0-9]* is allowed"):
        hf.self_check(model, prefill="window", window=4, sinks=0)
    assert model.config._attn_implementation == "eager"
