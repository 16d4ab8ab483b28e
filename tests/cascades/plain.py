"""A cascade's operands, and the same computed plainly on all of S."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import weft
from cascades.functions_between import FUNCTIONS, Between

F64 = torch.float64
EQUATION = "hqd,hkd->hqk, hqk,hke->hqe"
BY_NAME = {each.name: each for each in FUNCTIONS}


def operands(h: int = 2, q: int = 11, k: int = 13, d: int = 4, e: int = 3, dtype: torch.dtype = F64) -> list[Tensor]:
    draw = torch.Generator().manual_seed(h + 3 * q + 7 * k)
    return [torch.randn(shape, dtype=F64, generator=draw).to(dtype) for shape in ((h, q, d), (h, k, d), (h, k, e))]


def auxiliary(each: Between, bias: Tensor | None) -> dict[str, Any]:
    if not each.aux:
        return {}
    return {"indices": {"i": "q", "j": "k"}, "operands": {"bias": ("q", bias)}}


def plainly(
    each: Between, a: Tensor, b: Tensor, c: Tensor | None, bias: Tensor | None, alpha: float
) -> tuple[Tensor, ...]:
    s = alpha * (a @ b.mT)
    aux = ()
    if bias is not None:
        aux = (torch.arange(s.shape[-2])[:, None], torch.arange(s.shape[-1]), bias[:, None])  # type: ignore[assignment]
    found = each.plainly(s, *aux)
    found = found if isinstance(found, tuple) else (found,)
    return found if c is None else (found[0] @ c, *found[1:])


def results(found: Any) -> tuple[Tensor, ...]:
    return found if isinstance(found, tuple) else (found,)


def bias_of(each: Between, q: int) -> Tensor | None:
    return torch.linspace(0.5, 1.5, q, dtype=F64) if each.aux else None


def gradients(found: tuple[Tensor, ...], inputs: list[Tensor]) -> list[Tensor]:
    """Of a sum of all results with weights of their own."""
    total = torch.zeros((), dtype=F64)
    for at, value in enumerate(found):
        if value.requires_grad:
            draw = torch.Generator().manual_seed(at)
            weights = torch.randn(value.shape, dtype=F64, generator=draw)
            total = total + (value.nan_to_num(neginf=0.0) * weights).sum()
    grads = torch.autograd.grad(total, inputs, allow_unused=True)
    return [torch.zeros_like(each) if grad is None else grad for each, grad in zip(inputs, grads, strict=True)]




def softmax(s: Tensor) -> Tensor:
    return weft.softmax(s, "k")
