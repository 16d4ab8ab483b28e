"""Launches of a contraction: one kernel, or a second one that adds the partial sums of the first."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from weft.gpu.common.launch import KernelLaunch
from weft.planner.schedule import AuxTensors, Make, NewTensor, Scalar
from weft.spec import Layout


class WholeLaunch:
    """One kernel, each of whose programs finishes its tile of D; with `swap_ab` it takes B for A and A for B."""

    def __init__(self, kernel: KernelLaunch, swap_ab: bool = False) -> None:
        self.kernels = (kernel,)
        self._swap_ab = swap_ab
        self._absent = (None,) * (len(kernel.layouts) - 4)  # a workspace that the kernel could take, and does not here

    def __call__(
        self, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar, aux: AuxTensors = ()
    ) -> None:
        self.kernels[0](self._tensors(a, b, c, d), alpha, beta, aux)

    def bound(
        self, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar, aux: AuxTensors = ()
    ) -> Callable[[], None]:
        """The launch on these tensors, whose addresses are taken now."""
        return self.kernels[0].bound(self._tensors(a, b, c, d), alpha, beta, aux)

    def maker(self, new: NewTensor) -> Make | None:
        """The launch on a new D; None where C is read."""
        kernel = self.kernels[0]
        return kernel.maker(new, self._tensors) if kernel.layouts[2] is None else None

    def _tensors(self, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor) -> tuple[Tensor | None, ...]:
        """The tensors in the order of the kernel's parameters."""
        return (b, a, c, d, *self._absent) if self._swap_ab else (a, b, c, d, *self._absent)


class SplitKLaunch:
    """A kernel for the split-K partials, then the kernel that adds them."""

    def __init__(self, multiply: KernelLaunch, reduce: KernelLaunch, partials: Layout) -> None:
        self.kernels = (multiply, reduce)
        self._partials = partials

    def __call__(
        self, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar, aux: AuxTensors = ()
    ) -> None:
        partials = torch.empty(self._partials.shape, dtype=self._partials.dtype, device=d.device)
        self.kernels[0]((a, b, None, None, partials), alpha, beta, aux)
        self.kernels[1]((partials, c, d), alpha, beta, aux)
