"""Multi-head latent attention, and routers like those of its families: clear choices, and what can go wrong.

Routers score experts by sigmoids with a bias for the choice, or by a softmax, within groups.
"""

import copy

import torch
from torch import nn

import parity_experts

CANDIDATES = 2000


def is_latent(model):
    return hasattr(model.config, "kv_lora_rank")


def routers(model):
    found = []
    for name, module in model.named_modules():
        kind = type(module).__name__
        if kind == "Lfm2MoeSparseMoeBlock" and module.use_expert_bias:  # which has its router's bias
            object.__setattr__(module.gate, "e_score_correction_bias", module.expert_bias)
        if kind.endswith("TopkRouter") or kind == "Lfm2MoeTopKRouter":
            found.append((name, module))
    return found


def choice_scores(router, scores, bias):
    """What experts are chosen by, [..., tokens, experts], and how far groups lead over others."""
    if hasattr(router, "e_score_correction_bias"):
        values, best = scores.sigmoid() + bias, 2
    else:
        values, best = scores.softmax(-1), 1
    groups = getattr(router, "num_group", None) or 1
    if getattr(router, "topk_method", "") == "greedy":
        groups = 1
    if groups == 1:
        return values, torch.full(values.shape[:-1], torch.inf)
    shaped = values.unflatten(-1, (groups, -1))
    of_groups = shaped.topk(best, dim=-1).values.sum(-1)
    order = of_groups.topk(router.topk_group + 1, dim=-1)
    lead = order.values[..., -2] - order.values[..., -1]
    mask = torch.zeros_like(of_groups).scatter(-1, order.indices[..., :-1], 1.0).bool()
    return shaped.masked_fill(~mask[..., None], -torch.inf).flatten(-2), lead


def lead_of(router, scores, bias):
    """Least lead of experts and groups that are chosen, in standard deviations of scores."""
    values, groups = choice_scores(router, scores, bias)
    best = values.topk(router.top_k + 1, dim=-1).values
    experts = best[..., router.top_k - 1] - best[..., router.top_k]
    spread = (scores.sigmoid() if hasattr(router, "e_score_correction_bias") else
              scores.softmax(-1)).std(dim=(-1, -2))
    return (torch.minimum(experts, groups) / spread[..., None]).amin(-1)


@torch.no_grad()
def separate_routers(model, tokens, generator):
    """Draws weights and biases of routers that decide about these tokens clearly: values of bf16."""
    for name, _ in routers(model):
        reader = copy.deepcopy(model).float()
        seen = []
        reader.get_submodule(name).register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        reader(torch.tensor([tokens]), use_cache=False)
        inputs = seen[0].reshape(-1, seen[0].shape[-1])
        router = model.get_submodule(name)
        size = router.weight.shape
        draw = torch.randn(CANDIDATES, *size, generator=generator)
        weights = (1.2 * draw / size[1] ** 0.5).to(torch.bfloat16).float()
        biases = (0.3 * torch.randn(CANDIDATES, 1, size[0], generator=generator)).to(
            torch.bfloat16).float()
        leads = lead_of(router, torch.einsum("th,ceh->cte", inputs, weights), biases)
        best = int(leads.argmax())
        router.weight.data = weights[best].to(model.dtype)  # as published files have it
        if hasattr(router, "e_score_correction_bias"):
            router.e_score_correction_bias.data = biases[best, 0]


@torch.no_grad()
def router_lead(model, tokens):
    """The least lead over all routers, for these tokens."""
    leads, handles = [], []
    for _, router in routers(model):
        handles.append(router.register_forward_hook(lambda module, _, out: leads.append(float(
            lead_of(module, out[0], getattr(module, "e_score_correction_bias", None))))))
    model(torch.tensor([tokens]), use_cache=False)
    for handle in handles:
        handle.remove()
    return min(leads)


def with_routers(change):
    def deed(model):
        for _, router in routers(model):
            change(router)
    return deed


def without_bias(router):
    router.e_score_correction_bias.data.zero_()


def without_groups(router):
    router.num_group = router.topk_group = 1
    if hasattr(router, "topk_method"):
        router.topk_method = "greedy"


def with_weights(change):
    """change(router, scores, chosen): weights instead."""
    def change_router(router):
        forward = router.forward

        def changed(*given):
            scores, weights, chosen = forward(*given)
            return scores, change(router, scores, weights, chosen), chosen
        router.forward = changed
    return with_routers(change_router)


def softmax_of_chosen(router, scores, weights, chosen):
    return router.routed_scaling_factor * scores.gather(1, chosen).softmax(-1)


def not_normalised(router, scores, weights, chosen):
    return router.routed_scaling_factor * scores.sigmoid().gather(1, chosen)


def biased_weights(router, scores, weights, chosen):
    raw = (scores.sigmoid() + router.e_score_correction_bias).gather(1, chosen)
    return router.routed_scaling_factor * raw / raw.sum(-1, keepdim=True)


def not_scaled(router, scores, weights, chosen):
    return weights / router.routed_scaling_factor


def with_attention(change):
    def deed(model):
        for layer in model.model.layers:
            change(layer.self_attn)
    return deed


def set_scaling(of):
    return with_attention(lambda x: setattr(x, "scaling", of(x)))


def swap_keys_and_values(attention):
    """Rows of values before those of keys, in each head."""
    weight = attention.kv_b_proj.weight
    shaped = weight.data.unflatten(0, (attention.num_heads, -1))
    weight.data = shaped.roll(attention.v_head_dim, dims=1).flatten(0, 1)


def turn_first(attention):
    """The first elements of a query are those that RoPE turns."""
    linear = attention.q_proj if attention.q_lora_rank is None else attention.q_b_proj
    shaped = linear.weight.data.unflatten(0, (attention.num_heads, -1))
    linear.weight.data = shaped.roll(attention.qk_nope_head_dim, dims=1).flatten(0, 1)


def mistakes(model):
    """Name and deed of what can go wrong with latent attention and its routers."""
    config, attention = model.config, model.model.layers[0].self_attn
    yield "latents not normalised", with_attention(
        lambda x: setattr(x, "kv_a_layernorm", nn.Identity()))
    if attention.q_lora_rank is not None:
        yield "queries' latents not normalised", with_attention(
            lambda x: setattr(x, "q_a_layernorm", nn.Identity()))
    plain = attention.qk_head_dim ** -0.5
    if attention.scaling != plain:
        yield "no mscale", set_scaling(lambda x: plain)
    yield "scale of rows", set_scaling(
        lambda x: (x.kv_lora_rank + x.qk_rope_head_dim) ** -0.5 * x.scaling / plain)
    yield "keys and values swapped", with_attention(swap_keys_and_values)
    yield "first part turned", with_attention(turn_first)
    if hasattr(config, "rope_interleave"):
        yield "halves turned", lambda x: setattr(x.config, "rope_interleave",
                                                 not x.config.rope_interleave)
    for part in ("q_a_proj", "kv_a_proj_with_mqa"):
        if getattr(getattr(attention, part, None), "bias", None) is not None:
            yield f"no {part} bias", with_attention(
                lambda x, part=part: getattr(x, part).bias.data.zero_())
    yield from mistakes_of_routers(model)


def mistakes_of_routers(model):
    """Name and deed of what can go wrong with routers and their experts."""
    if not routers(model):
        return
    router = routers(model)[0][1]
    if hasattr(router, "e_score_correction_bias"):
        yield "no bias of the choice", with_routers(without_bias)
        yield "biased weights", with_weights(biased_weights)
        yield "weights not normalised", with_weights(not_normalised)
    if (getattr(router, "num_group", None) or 1) > 1:
        yield "no groups", with_routers(without_groups)
    yield "softmax of the chosen", with_weights(softmax_of_chosen)
    if router.routed_scaling_factor != 1:
        yield "weights not scaled", with_weights(not_scaled)
    yield "next expert", parity_experts.with_experts(parity_experts.next_expert)
    if any(name.endswith("experts.gate_up_proj") for name, _ in model.named_parameters()):
        yield "experts' gate and up swapped", parity_experts.with_experts(parity_experts.swap_gate_and_up)
    if any("shared_experts" in name for name, _ in model.named_parameters()):
        yield "no shared experts", lambda x: [
            weight.data.zero_() for name, weight in x.named_parameters()
            if name.endswith("shared_experts.down_proj.weight")]
