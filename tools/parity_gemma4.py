"""What can go wrong with Gemma 4, done on purpose; see parity_mistakes.py."""

import torch

import parity_experts


def is_gemma4(model):
    return model.config.model_type.startswith("gemma4")


def attentions(model):
    return [layer.self_attn for layer in model.model.layers]


def with_attentions(change, wanted=lambda attention: True):
    def deed(model):
        for attention in attentions(model):
            if wanted(attention):
                change(attention)
    return deed


def has_keys(attention):
    return not attention.is_kv_shared_layer


def takes_keys_as_values(attention):
    return has_keys(attention) and attention.v_proj is None


def with_values_of(make):
    """make(attention, hidden): the values before their norm."""
    def change(attention):
        attention.v_proj = torch.nn.Module()
        attention.v_proj.forward = lambda hidden: make(attention, hidden)
    return with_attentions(change, takes_keys_as_values)


def normed_keys(attention, hidden):
    keys = attention.k_proj(hidden)
    return attention.k_norm(keys.unflatten(-1, (-1, attention.head_dim))).flatten(-2)


def with_own_rows(model):
    """Layers that share rows take them from the first layer of their kind instead of the last."""
    first = {}
    for attention in attentions(model):
        attention.store_full_length_kv = has_keys(attention) and attention.layer_type not in first
        first.setdefault(attention.layer_type, attention)


def with_quarter_of_pairs(model):
    """The first quarter of a head turned, as elsewhere: pairs within it, and its frequencies."""
    rotary = model.model.rotary_emb
    size = 2 * rotary.full_attention_inv_freq.numel()
    rope = model.config.rope_parameters["full_attention"]
    turned = int(size * rope["partial_rotary_factor"])
    plain = rope["rope_theta"] ** -(torch.arange(0, turned, 2) / turned)
    rotary.full_attention_inv_freq[:turned // 2] = plain


def with_whole_rope(model):
    rotary = model.model.rotary_emb
    pairs = rotary.full_attention_inv_freq.numel()
    theta = model.config.rope_parameters["full_attention"]["rope_theta"]
    rotary.full_attention_inv_freq = theta ** -(torch.arange(pairs) / pairs)


def of_layers(change):
    return lambda model: [change(layer) for layer in model.model.layers]


def identity():
    return torch.nn.Identity()


def with_next_inputs(model):
    """Each layer gets the input of the next."""
    project = model.model.project_per_layer_inputs
    model.model.project_per_layer_inputs = lambda *given: project(*given).roll(-1, dims=2)


def with_router(change):
    """change(router, probabilities, weights, chosen) gives weights and chosen instead."""
    def deed(model):
        for layer in model.model.layers:
            forward = layer.router.forward

            def changed(hidden, router=layer.router, forward=forward):
                found = forward(hidden)
                return (found[0], *change(router, *found))
            layer.router.forward = changed
    return deed


def experts_after_mlp(layer):
    """The router sees what the MLP sees."""
    router = layer.router.forward
    layer.router.forward = lambda hidden: router(layer.pre_feedforward_layernorm(hidden))


def mistakes(model):
    """Name and deed of everything that can go wrong with this model but with any other, too."""
    config = model.config
    yield "q and k norm 1", lambda x: [norm.weight.data.fill_(0.2) for a in attentions(x)
                                       for norm in (a.q_norm, getattr(a, "k_norm", a.q_norm))]
    yield "no norm of v", with_attentions(lambda a: setattr(a, "v_norm", identity()), has_keys)
    yield "no norms of outputs", of_layers(lambda layer: [
        setattr(layer, name, identity())
        for name in ("post_attention_layernorm", "post_feedforward_layernorm")])
    yield "embedding as it is", lambda x: x.model.embed_tokens.embed_scale.fill_(1)
    yield "silu", of_layers(lambda layer: setattr(layer.mlp, "act_fn", torch.nn.SiLU()))
    yield "scores scaled", with_attentions(lambda a: setattr(a, "scaling", 0.5))
    yield "quarter of pairs", with_quarter_of_pairs
    yield "whole rope", with_whole_rope
    yield "no scale of layers", of_layers(lambda layer: layer.layer_scalar.fill_(1))
    if config.final_logit_softcapping:
        yield "logits not capped", lambda x: setattr(x.config, "final_logit_softcapping", None)
    if any(map(takes_keys_as_values, attentions(model))):
        yield "values are normed keys", with_values_of(normed_keys)
        yield "no values", with_values_of(lambda a, hidden: torch.zeros_like(a.k_proj(hidden)))
    if config.num_kv_shared_layers:
        yield "rows of another layer", with_own_rows
    if config.model_type == "gemma4_unified_text":
        return
    if config.hidden_size_per_layer_input:
        yield "no inputs of layers", of_layers(
            lambda layer: layer.per_layer_projection.weight.data.zero_())
        yield "inputs of the next layer", with_next_inputs
        yield "inputs without tokens", lambda x: x.model.embed_tokens_per_layer.weight.data.zero_()
        yield "inputs as they are", lambda x: x.model.embed_tokens_per_layer.embed_scale.fill_(1)
        yield "inputs of tokens alone", lambda x: (
            x.model.per_layer_model_projection.weight.data.zero_())
        yield "norm of inputs 1", lambda x: x.model.per_layer_projection_norm.weight.data.fill_(1)
        yield "gate without gelu", of_layers(lambda layer: setattr(layer, "act_fn", identity()))
        yield "no norm of what inputs give", of_layers(
            lambda layer: setattr(layer, "post_per_layer_input_norm", identity()))
    if config.enable_moe_block:
        yield "router's scale 1", of_layers(lambda layer: layer.router.scale.data.fill_(1))
        yield "router without norm", of_layers(lambda layer: setattr(layer.router, "norm", identity()))
        yield "experts' scales 1", of_layers(
            lambda layer: layer.router.per_expert_scale.data.fill_(1))
        yield "experts' weights alike", with_router(
            lambda router, all_of, weights, chosen: (weights * 0 + 0.5, chosen))
        yield "router reads the MLP's input", of_layers(experts_after_mlp)
        yield "no MLP", of_layers(lambda layer: layer.mlp.down_proj.weight.data.zero_())
        yield "no experts", of_layers(lambda layer: layer.experts.down_proj.data.zero_())
        for name in ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2",
                     "pre_feedforward_layernorm_2"):
            yield f"no {name}", of_layers(lambda layer, name=name: setattr(layer, name, identity()))
        yield "gate and up swapped", parity_experts.with_experts(parity_experts.swap_gate_and_up)
        yield "next expert", parity_experts.with_experts(parity_experts.next_expert)
