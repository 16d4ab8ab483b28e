"""Random cascades against all of S in float64: modes in any order, masks, extents of 0 and 1, small blocks."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

import weft

INF = math.inf


def drawn(seed: int) -> tuple[str, list[Tensor], dict[str, Any]]:
    """An equation, its tensors and keywords."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    extents = {label: draw.choice([1, 2, 3, 5, 9]) for label in "bhgde"}
    extents |= {label: draw.choice([0, 1, 7, 20, 33]) for label in "qk"}
    terms = {"a": "bhgqd", "b": "bhkd", "c": "bhke", "s": "bhgqk"}
    lacking = [label for label in "bhg" if draw.random() < 0.4]
    terms = {name: "".join(label for label in term if label not in lacking) for name, term in terms.items()}
    terms["d"] = "".join(label for label in "bhgqe" if label not in lacking and draw.random() < 0.8)
    if "e" not in terms["d"]:
        terms["c"] = terms["c"].replace("e", "")
    shuffled = {name: "".join(draw.sample(term, len(term))) for name, term in terms.items()}
    equation = "{a},{b}->{s}, {s},{c}->{d}".format(**shuffled)
    tensors = [torch.randn([extents[label] for label in shuffled[name]], dtype=torch.float64) for name in "abc"]
    bias = torch.randn(extents["q"], extents["k"], dtype=torch.float64)
    bias[::3] = draw.choice([0.0, -INF])  # whole rows
    keywords = {"indices": {"i": "q", "j": "k"}, "operands": {"bias": ("qk", bias)}, "between": between(draw)}
    return equation, tensors, {**keywords, "alpha": draw.choice([1.0, 0.3, -2.0])}


def between(draw: random.Random) -> Any:
    """A mask, a function of scores, and what is reduced."""
    window, capped = draw.choice([1, 4, 100]), draw.random() < 0.3
    masked, ending = draw.choice(["causal", "window", "none"]), draw.choice(["softmax", "sigmoid", "norm", "kernel"])

    def function(s: Tensor, i: Tensor, j: Tensor, bias: Tensor) -> Tensor | tuple[Tensor, ...]:
        s = 3 * torch.tanh(s / 3) if capped else s
        rest = -INF if ending == "softmax" else 0.0
        if masked == "causal":
            s = torch.where(j <= i, s, rest)
        elif masked == "window":
            s = torch.where((j <= i) & (j > i - window), s, rest)
        if ending == "softmax":
            return weft.softmax(s + bias, "k"), weft.logsumexp(s + bias, "k")
        if ending == "norm":
            return s * torch.rsqrt(weft.mean(s * s, "k") + 0.1), weft.sum(s, "k")
        if ending == "kernel":
            return torch.where(j <= i, torch.exp(-s * s), 0.0), weft.amax(s, "k")
        return torch.sigmoid(s), weft.sum(s > 0, "qk")

    return function


def results(found: Any) -> list[Tensor]:
    return list(found) if isinstance(found, tuple) else [found]


@pytest.mark.one_of(3)
@pytest.mark.parametrize("seed", range(60))
def test_values_and_gradients(seed: int) -> None:
    equation, tensors, keywords = drawn(seed)
    found, limit = [], 1 << random.Random(seed).choice([13, 14, 20])
    by_blocks = {"workspace_limit": limit, "specialize": "never" if seed % 5 else "now"}
    for more in (by_blocks, {"backend": "reference"}):
        inputs = [tensor.clone().requires_grad_() for tensor in tensors]
        values = results(weft.cascade(equation, *inputs, **keywords, **more))
        total = torch.zeros((), dtype=torch.float64)
        for value in values:
            if value.requires_grad:
                weights = torch.cos(torch.arange(value.numel(), dtype=torch.float64)).view(value.shape)
                total = total + (value.nan_to_num(0.0, 0.0, 0.0) * weights).sum()
        grads = torch.autograd.grad(total, inputs, allow_unused=True) if total.requires_grad else ()
        found.append((values, [torch.zeros(()) if each is None else each for each in grads]))
    (values, grads), (exact, others) = found
    torch.testing.assert_close(values, exact, rtol=1e-9, atol=1e-10, equal_nan=True)
    for one, other in zip(grads, others, strict=True):
        torch.testing.assert_close(one, other.expand_as(one), rtol=1e-7, atol=1e-9, equal_nan=True)


MEMORY = """
import resource, torch, weft
q, k, v = (torch.randn(8192, 16, requires_grad=True) for _ in range(3))
small = [t[:64].detach().requires_grad_() for t in (q, k, v)]
def run(*t):
    d = weft.cascade("id,jd->ij, ij,je->ie", *t, between=lambda s: weft.softmax(s, "j"), specialize="SPECIALIZE")
    torch.autograd.grad(d.sum(), t)
run(*small)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
run(q, k, v)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.slow
@pytest.mark.parametrize("specialize", ["never", "now"])
def test_no_more_than_blocks_is_in_memory(specialize: str) -> None:
    """All scores of 8192 points are 256 MB; a block is 4 MB, and its gradient takes a few of them."""
    program = MEMORY.replace("SPECIALIZE", specialize)
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert float(ran.stdout) < 100
