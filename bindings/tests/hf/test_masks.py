"""No tensor [queries, keys] is ever made."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from small_models import HYBRID, make_ids, make_model
from topkv import InvalidArgument
from topkv.hf import TopkCache
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM, Gemma3TextConfig


class LargestTensor(TorchDispatchMode):
    """Elements of the largest tensor any operation returns."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **kwargs or {})
        for x in tree_leaves(out):
            if isinstance(x, torch.Tensor):
                # A broadcast view has no memory of its own.
                own = x.untyped_storage().nbytes() // x.element_size()
                self.elements = max(self.elements, own)
        return out


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_sixteen_thousand_tokens_at_once_make_no_square_tensor(implementation, device):
    tokens = 16384
    torch.manual_seed(1)
    config = Gemma3TextConfig(
        vocab_size=97,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=4,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=64,
        layer_types=HYBRID,
        sliding_window=512,
        max_position_embeddings=32768,
    )
    model = AutoModelForCausalLM.from_config(config, attn_implementation=implementation)
    model = model.to(device).eval()
    cache = TopkCache(model.config, k=16, window=64, prefill="window")
    ids = make_ids(tokens, device)
    with LargestTensor() as largest:
        model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
    # The largest are K or V of the layer, in blocks the mask of 2048 x 2560.
    assert largest.elements <= 8_000_000
    assert largest.elements < tokens * tokens // 32


@pytest.mark.parametrize("shape", [(10,), (2, 10), (1, 1, 10)])
def test_a_mask_of_another_shape_is_refused(shape, device):
    model = make_model("llama", device)
    cache = TopkCache(model.config, k=16)
    mask = torch.ones(shape, dtype=torch.long, device=device)
    with pytest.raises(InvalidArgument, match="attention_mask has shape"):
        model(make_ids(10, device), attention_mask=mask, past_key_values=cache, use_cache=True)
    assert cache.get_seq_length() == 0
