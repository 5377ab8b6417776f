"""Mixtures of experts in the fixtures' models: routers whose choices are clear, and what can go wrong.

A router that nearly chose other experts makes logits jump where arithmetic differs by a rounding, so
routers are drawn many times and those are taken that decide every token's experts by a margin which
bf16 arithmetic does not reach.
"""

import copy

import torch

CANDIDATES = 4000
LEAD = 0.04  # least lead of the experts chosen over the others, in standard deviations of scores


def routers(model):
    """(name, module) of each, first layers first."""
    found = []
    for name, module in model.named_modules():
        kind = type(module).__name__
        if kind.endswith("TopKRouter") and kind != "Lfm2MoeTopKRouter":  # of parity_latent.py
            found.append((name, module))
        elif kind == "Gemma4TextRouter":  # a projection of what it normalises
            module.proj.top_k = module.config.top_k_experts
            found.append((name + ".proj", module.proj))
    return found


def has_experts(model):
    return bool(routers(model))


def lead_of(scores, k):
    """Least lead of the k-th over the next, for scores [..., tokens, experts]."""
    best = scores.topk(k + 1, dim=-1).values
    return ((best[..., k - 1] - best[..., k]) / scores.std(dim=(-1, -2), keepdim=True)[..., 0]).amin(-1)


@torch.no_grad()
def separate_routers(model, tokens, generator):
    """Draws weights (and biases) of routers that decide about these tokens clearly: values of bf16."""
    for name, _ in routers(model):
        reader = copy.deepcopy(model).float()
        seen = []
        reader.get_submodule(name).register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        reader(torch.tensor([tokens]), use_cache=False)
        inputs = seen[0].reshape(-1, seen[0].shape[-1])
        router = model.get_submodule(name)
        size = router.weight.shape
        weights = (1.2 * torch.randn(CANDIDATES, *size, generator=generator) / size[1] ** 0.5).to(
            torch.bfloat16)
        scores = torch.einsum("th,ceh->cte", inputs, weights.float())
        if getattr(router, "bias", None) is not None:
            biases = (0.5 * torch.randn(CANDIDATES, size[0], generator=generator)).to(
                torch.bfloat16)
            scores = scores + biases.float()[:, None]
        leads = lead_of(scores, router.top_k)
        best = int(leads.argmax())
        router.weight.data = weights[best].to(router.weight.dtype)
        if getattr(router, "bias", None) is not None:
            router.bias.data = biases[best].to(router.bias.dtype)


@torch.no_grad()
def router_lead(model, tokens):
    """The least lead over all routers, for these tokens."""
    leads, handles = [], []
    for _, router in routers(model):
        handles.append(router.register_forward_hook(
            lambda module, _, out: leads.append(float(lead_of(
                out[0] if isinstance(out, tuple) else out.reshape(-1, out.shape[-1]),
                module.top_k)))))
    model(torch.tensor([tokens]), use_cache=False)
    for handle in handles:
        handle.remove()
    return min(leads)


def with_routers(change):
    """change(router, scores): weights and numbers of experts instead."""
    def deed(model):
        for _, router in routers(model):
            forward = router.forward

            def changed(hidden, router=router, forward=forward):
                scores = forward(hidden)[0]
                return (scores, *change(router, scores))
            router.forward = changed
    return deed


def softmax_of_all(router, scores):
    return scores.softmax(-1).topk(router.top_k, dim=-1)


def softmax_of_chosen(router, scores):
    values, chosen = scores.topk(router.top_k, dim=-1)
    return values.softmax(-1), chosen


def alike(router, scores):
    values, chosen = scores.topk(router.top_k, dim=-1)
    return torch.full_like(values, 1 / router.top_k), chosen


def one_less(router, scores):
    values, chosen = scores.topk(router.top_k - 1, dim=-1)
    return values.softmax(-1), chosen


def with_experts(change):
    """change(experts) of every layer that has some."""
    def deed(model):
        for module in model.modules():
            if type(module).__name__.endswith("Experts"):
                change(module)
    return deed


def swap_gate_and_up(experts):
    weight = experts.gate_up_proj.data
    if hasattr(experts, "alpha"):  # in turns, along the last dimension
        experts.gate_up_proj.data = weight.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
        bias = experts.gate_up_proj_bias.data
        experts.gate_up_proj_bias.data = bias.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    else:
        experts.gate_up_proj.data = torch.cat(weight.chunk(2, dim=1)[::-1], dim=1)


def halves_for_turns(experts):
    """Gate and up as if they were halves."""
    for name in ("gate_up_proj", "gate_up_proj_bias"):
        parameter = getattr(experts, name)
        parameter.data = torch.stack(parameter.data.chunk(2, dim=-1), dim=-1).flatten(-2)


def next_expert(experts):
    for parameter in experts.parameters():
        parameter.data = parameter.data.roll(1, dims=0)


def zero(name):
    return with_experts(lambda experts: getattr(experts, name).data.zero_())


def without_one_of_up(experts):
    def gate(gate_up):
        gate, up = gate_up[..., ::2].clamp(max=experts.limit), gate_up[..., 1::2]
        return up.clamp(-experts.limit, experts.limit) * gate * torch.sigmoid(gate * experts.alpha)
    experts._apply_gate = gate


def clamped_above(experts):
    """Both from above alone. (That the gate is not clamped below is no mistake that could be seen.)"""
    def gate(gate_up):
        gate, up = gate_up.clamp(max=experts.limit).unflatten(-1, (-1, 2)).unbind(-1)
        return (up + 1) * gate * torch.sigmoid(gate * experts.alpha)
    experts._apply_gate = gate


def mistakes(model):
    """Name and deed of what can go wrong with experts and sinks."""
    for layer in model.model.layers:
        if hasattr(getattr(layer, "self_attn", None), "sinks"):
            yield "no sinks", lambda x: [layer.self_attn.sinks.data.fill_(-1e9)
                                         for layer in x.model.layers]
            break
    if not has_experts(model):
        return
    over_all = getattr(routers(model)[0][1], "norm_topk_prob", True) is False
    yield "other softmax", with_routers(softmax_of_chosen if over_all else softmax_of_all)
    yield "experts' weights alike", with_routers(alike)
    yield "an expert less", with_routers(one_less)
    yield "next expert", with_experts(next_expert)
    yield "gate and up swapped", with_experts(swap_gate_and_up)
    experts = next(x for x in model.modules() if type(x).__name__.endswith("Experts"))
    if not hasattr(experts, "alpha"):
        return
    yield "gate and up as halves", with_experts(halves_for_turns)
    yield "no router bias", lambda x: [router.bias.data.zero_() for _, router in routers(x)]
    for name in ("gate_up_proj_bias", "down_proj_bias"):
        yield f"no {name}", zero(name)
    yield "not clamped", with_experts(lambda experts: setattr(experts, "limit", 1e9))
    yield "silu", with_experts(lambda experts: setattr(experts, "alpha", 1.0))
    yield "up without 1", with_experts(without_one_of_up)
    yield "up clamped above", with_experts(clamped_above)
