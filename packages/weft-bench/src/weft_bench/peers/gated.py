"""A gated layer, forward and backward: `weft.nn`'s formulas as they are and under `torch.compile`, and torch's.

Ways are called as run(x, gate, up, g); the result is the tuple of the gradients of x, gate and up.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from weft_bench.cases import Case
from weft_bench.peers.pytorch import exact_products, peak_bytes
from weft_bench.peers.registry import Call, Prepared, Way, first_line

Forward = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]  # of x, gate, up


class GatedTensors(NamedTuple):
    """The tensors of one forward and backward pass."""

    x: torch.Tensor  # (m, k)
    gate: torch.Tensor  # (n, k)
    up: torch.Tensor  # (n, k)
    g: torch.Tensor  # (m, n), the gradient of the result


def torchs_gate(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """The layer in torch's operations."""
    return functional.silu(functional.linear(x, gate)) * functional.linear(x, up)


def gated_gradients(forward: Forward) -> Call:
    """Forward and backward pass on the tensors of a set."""

    def run(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, g: torch.Tensor) -> Any:
        leaves = [each.detach().requires_grad_() for each in (x, gate, up)]
        return torch.autograd.grad(forward(*leaves), leaves, g)

    return run


class TorchGate:
    """torch's operations one by one."""

    name = "torch"

    def forward(self, case: Case) -> Forward:
        return torchs_gate

    def prepare(self, case: Case, tensors: Any) -> Prepared | str:
        run = gated_gradients(self.forward(case))
        try:
            about = peak_bytes(run, tensors)
        except RuntimeError as error:
            return first_line(error)
        return Prepared([Way("", run, about)])

    def settings(self, case: Case) -> AbstractContextManager[Any]:
        return exact_products(tf32=False)


class CompiledGate(TorchGate):
    """torch's gated layer through `torch.compile`."""

    name = "compile"

    def forward(self, case: Case) -> Forward:
        torch.compiler.reset()
        found: Forward = torch.compile(super().forward(case), dynamic=False, fullgraph=True)
        return found


class WeftGate(TorchGate):
    """`weft.nn.GatedLinear`, called on the weights of the set, with kernels made to measure."""

    name = "weft"

    def forward(self, case: Case) -> Forward:
        from weft.nn import GatedLinear

        n, k = case.shapes[1]
        layer = GatedLinear(k, n, device="meta")

        def forward(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
            return layer.product(x, gate, up, specialize="now")

        return forward


class CompiledWeftGate(WeftGate):
    """weft's gated layer through `torch.compile`."""

    name = "weft-compiled"

    def forward(self, case: Case) -> Forward:
        torch.compiler.reset()
        found: Forward = torch.compile(super().forward(case), dynamic=False, fullgraph=True)
        return found
