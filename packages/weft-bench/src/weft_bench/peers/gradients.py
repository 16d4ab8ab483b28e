"""Forward and backward pass of one call: weft, torch, and torch compiled. Ways are called as run(a, b, c, g).

`g` is the gradient of D. The result is the tuple of all gradients. Peak memory, beyond the tensors given, is measured
once where the way is prepared, on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from weft_bench.cases import FUNCTIONS, Case
from weft_bench.cases.fused import CAUSAL
from weft_bench.peers.pytorch import exact_products, peak_bytes
from weft_bench.peers.registry import Call, Prepared, Tensors, Way, first_line
from weft_bench.peers.views import einsum_text

PAIRS_AT_ONCE = 1 << 28  # of a broadcast, where the whole would not fit: rows of A in blocks

Forward = Callable[..., torch.Tensor]  # of a, b, c


class WeftGradients:
    """`weft.contract`, and torch's engine."""

    name = "weft"

    def prepare(self, case: Case, tensors: Tensors) -> Prepared | str:
        from weft.api.contract import contract

        def forward(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None) -> torch.Tensor:
            given = case.with_operand(c) if case.c_as and c is not None else case.options()
            if CAUSAL in case.tags:
                given |= {"epilogue": _causal, "indices": {"i": "i", "j": "j"}}
            found: torch.Tensor = contract(case.equation, a, b, specialize="now", **given)
            return found

        return _prepared(forward, tensors)

    def settings(self, case: Case) -> AbstractContextManager[Any]:
        return nullcontext()


class TorchGradients:
    """torch's operations one by one; another algebra as a broadcast of all pairs, in blocks where they are many."""

    name = "torch"

    def prepare(self, case: Case, tensors: Tensors) -> Prepared | str:
        return _prepared(self.compiled(torchs(case)), tensors, case.dtypes[2])

    def compiled(self, forward: Forward) -> Forward:
        return forward

    def settings(self, case: Case) -> AbstractContextManager[Any]:
        return exact_products(tf32=False)


class CompiledGradients(TorchGradients):
    """torch's gradients through `torch.compile`, backward pass included."""

    name = "compile"

    def compiled(self, forward: Forward) -> Forward:
        torch.compiler.reset()
        found: Forward = torch.compile(forward, dynamic=False)
        return found


def torchs(case: Case, at_once: int = PAIRS_AT_ONCE) -> Forward:
    """A case in torch's operations."""
    functions = [FUNCTIONS[name] if name else None for name in (case.a_fn, case.b_fn, case.epilogue)]
    if case.algebra != "plus_times":
        return _broadcast(case, at_once)
    a_fn, b_fn, epilogue = functions
    text = einsum_text(case)

    def forward(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None) -> torch.Tensor:
        value = torch.einsum(text, a_fn(a) if a_fn else a, b_fn(b) if b_fn else b)
        if c is not None:
            value = value + c
        if CAUSAL in case.tags:
            at = torch.arange(value.shape[-1], device=value.device)
            return torch.where(at[:, None] >= at, value * _SCALE, -torch.inf)
        return epilogue(value) if epilogue else value

    return forward


def _broadcast(case: Case, at_once: int) -> Forward:
    """Rows of A with all of B, as many at a time as make so many pairs."""

    def rows(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        pairs = a[:, :, None] + b[None]
        return pairs.max(1).values if case.algebra == "max_plus" else pairs.logsumexp(1)

    def forward(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None) -> torch.Tensor:
        step = max(1, at_once // b.numel())
        if step >= a.shape[0]:
            return rows(a, b)
        parts = [checkpoint(rows, part, b, use_reentrant=False) for part in a.split(step)]
        return torch.cat(parts)

    return forward


_SCALE = 0.125  # of scores, of 64 values each


def _causal(s: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
    return torch.where(i >= j, s * _SCALE, -torch.inf)


def gradients(forward: Forward) -> Call:
    """Forward and backward pass on the tensors of a set."""

    def run(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, g: torch.Tensor) -> Any:
        leaves = [each.detach().requires_grad_() for each in (a, b, c) if each is not None]
        return torch.autograd.grad(forward(*leaves[:2], leaves[2] if c is not None else None), leaves, g)

    return run


def _prepared(forward: Forward, tensors: Tensors, stored: torch.dtype | None = None) -> Prepared | str:
    run = gradients(forward)
    try:
        about = peak_bytes(run, tensors)
    except (RuntimeError, torch.OutOfMemoryError) as error:
        return first_line(error)
    return Prepared([Way("", run, about)], stored=stored)
