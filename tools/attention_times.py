#!/usr/bin/env python3
"""Plain attention by `weft.cascade` beside torch's, on a GPU: first calls, known calls, and how far results differ.

    PYTHONPATH=src python tools/attention_times.py
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import weft

EQUATION = "bhqd,bhkd->bhqk, bhqk,bhke->bhqe"
SIZES = ((4, 16, 4096, 128), (1, 4, 16384, 128), (8, 16, 1024, 64), (64, 8, 128, 64))  # batch, heads, positions, width


def full(s: Tensor) -> Tensor:
    return weft.softmax(s, "k")


def causal(s: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return weft.softmax(torch.where(j <= i, s, -math.inf), "k")


def milliseconds(call: Callable[[], Any], times: int = 12) -> float:
    """The median time of a call, after three."""
    found = []
    for number in range(times + 3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        if number > 2:
            found.append(start.elapsed_time(end))
    return statistics.median(found)


def first(call: Callable[[], Any]) -> tuple[Any, float]:
    """The result of a call, and its milliseconds by the host's clock."""
    torch.cuda.synchronize()
    begun = time.perf_counter()
    found = call()
    torch.cuda.synchronize()
    return found, 1e3 * (time.perf_counter() - begun)


def compared(size: tuple[int, ...], fn: Callable[..., Tensor]) -> str:
    """The times of one size, forward and with gradients."""
    tensors = [torch.randn(size, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    leaves, grad = [each.clone().requires_grad_() for each in tensors], torch.randn_like(tensors[0])
    words: dict[str, Any] = {"between": fn, "alpha": size[-1] ** -0.5}
    if fn is causal:
        words["indices"] = {"i": "q", "j": "k"}

    def ours(given: list[Tensor]) -> Tensor:
        found: Tensor = weft.cascade(EQUATION, *given, **words)
        return found

    def torchs(given: list[Tensor]) -> Tensor:
        q, k, v = given
        return scaled_dot_product_attention(q, k, v, is_causal=fn is causal)

    def both(call: Callable[[list[Tensor]], Tensor]) -> Any:
        return torch.autograd.grad(call(leaves), leaves, grad)

    found, once = first(lambda: ours(tensors))
    _, once_both = first(lambda: both(ours))
    off = (found - torchs(tensors)).abs().max().item()
    own, other = milliseconds(lambda: ours(tensors)), milliseconds(lambda: torchs(tensors))
    own_both, other_both = milliseconds(lambda: both(ours)), milliseconds(lambda: both(torchs))
    return (
        f"{size} {fn.__name__:6}  first {once:.0f}, with gradients {once_both:.0f}   forward {own:.3f} / {other:.3f}"
        f"   with gradients {own_both:.3f} / {other_both:.3f}   differ by {off:.1e}"
    )


def main() -> None:
    print(torch.cuda.get_device_name(), "bfloat16; milliseconds of weft / torch")
    for size in SIZES:
        for fn in (full, causal):
            print(compared(size, fn))


if __name__ == "__main__":
    main()
