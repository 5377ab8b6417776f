"""How far the logits of a parity fixture move when operands of products are rounded to bf16."""

import torch
from torch.overrides import TorchFunctionMode

DRAWS = 32
PRODUCTS = {torch.matmul, torch.Tensor.matmul, torch.bmm, torch.mm, torch.nn.functional.linear}


class RoundingNoise(TorchFunctionMode):
    """Changes both operands of each product by what rounding to bf16 may: up to half a unit in the
    last of 8 bits, evenly. Numbers that have 8 bits, as weights and masked attention, stay."""

    def __init__(self, generator):
        super().__init__()
        self.generator = generator

    def rounded(self, x):
        half_units = torch.rand(x.shape, generator=self.generator) - 0.5
        noise = torch.ldexp(half_units, torch.frexp(x).exponent - 8)
        return torch.where(x == x.to(torch.bfloat16), x, x + noise)

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in PRODUCTS:
            args = (self.rounded(args[0]), self.rounded(args[1]), *args[2:])
        return function(*args, **(kwargs or {}))


def error_of(got, want):
    off, want = (got - want).double(), want.double()
    return (float((off.square().mean() / want.square().mean()).sqrt()),
            float(off.abs().max() / want.abs().max()))


@torch.no_grad()
def rounding(model, tokens, logits, last):
    """Returns the largest errors of DRAWS draws, of "all" tokens and of the "last": the "typical", the
    root mean square relative to that of the logits, and the "worst", relative to the largest logit."""
    generator = torch.Generator().manual_seed(0)
    errors = {"all": [], "last": []}
    for _ in range(DRAWS):
        with RoundingNoise(generator):
            got = model(torch.tensor([tokens]), use_cache=False).logits[0]
        errors["all"].append(error_of(got, logits))
        errors["last"].append(error_of(got[-last:], logits[-last:]))
    return {span: {what: round(max(sizes), 4) for what, sizes in zip(("typical", "worst"), zip(*of))}
            for span, of in errors.items()}
