"""Calls of the vendor's library: every tensor is passed as the matrix that it is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from weft.gpu.blas import cublas
from weft.gpu.blas.schedule import BlasSchedule
from weft.planner.schedule import AuxTensors, Scalar
from weft.spec import Contraction, Mode

_SWITCHES = {  # process-wide permissions of torch for less exact products or sums
    torch.float32: ("allow_tf32",),
    torch.complex64: ("allow_tf32",),
    torch.float16: ("allow_fp16_reduced_precision_reduction",),
    torch.bfloat16: ("allow_bf16_reduced_precision_reduction",),
}


class BlasLaunch:
    """The call of the library, with every tensor as the matrix that it is."""

    def __init__(self, contraction: Contraction, schedule: BlasSchedule) -> None:
        self._conjugate = contraction.conjugate_a, contraction.conjugate_b
        outer, rows, columns, depth = schedule.form
        batch = (outer,) if outer is not None else ()
        left, right = (0, 1)
        if schedule.swap_ab:
            rows, columns, left, right = columns, rows, right, left
        self.swap_ab = schedule.swap_ab
        self._multiply: Any = torch.bmm if batch else torch.mm
        self._add: Any = torch.baddbmm if batch else torch.addmm
        if contraction.d.dtype != contraction.arithmetic.product:
            self._multiply, self._add = (
                partial(call, out_dtype=contraction.d.dtype) for call in (self._multiply, self._add)
            )
        self._switches = _SWITCHES.get(contraction.arithmetic.product, ())
        self._left = _view((*batch, rows, depth), left)
        self._right = _view((*batch, depth, columns), right)
        self._addend = _view((*batch, rows, columns), 2)
        self._result = _view((*batch, rows, columns), 3)

    def __call__(
        self, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar, aux: AuxTensors = ()
    ) -> None:
        a, b = (x.conj() if flag else x for x, flag in zip((a, b), self._conjugate, strict=True))
        left, right = (b, a) if self.swap_ab else (a, b)
        left, right, result = _seen(left, self._left), _seen(right, self._right), _seen(d, self._result)
        with _exact(self._switches):
            if c is None and alpha == 1:
                self._multiply(left, right, out=result)
            else:
                addend = _seen(c, self._addend) if c is not None else result
                self._add(addend, left, right, beta=beta if c is not None else 0, alpha=alpha, out=result)


class Tf32Launch:
    """The same in TF32, by the one call that says so itself."""

    def __init__(self, contraction: Contraction, schedule: BlasSchedule) -> None:
        outer, rows, columns, depth = schedule.form
        left, right = (0, 1)
        if schedule.swap_ab:
            rows, columns, left, right = columns, rows, right, left
        self.swap_ab = schedule.swap_ab
        self._left = _view((outer, rows, depth), left)
        self._right = _view((outer, depth, columns), right)
        self._addend, self._result = (_view((outer, rows, columns), tensor) for tensor in (2, 3))

    def __call__(
        self, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar, aux: AuxTensors = ()
    ) -> None:
        left, right = (b, a) if self.swap_ab else (a, b)
        result = _seen(d, self._result)
        if c is not None and c.data_ptr() != d.data_ptr():
            result.copy_(_seen(c, self._addend))
        added = float(beta.real) if c is not None else 0.0
        cublas.tf32(_seen(left, self._left), _seen(right, self._right), result, float(alpha.real), added)


def _seen(tensor: Tensor, view: tuple[tuple[int, ...], tuple[int, ...]]) -> Tensor:
    """The tensor as the library sees it; mostly it is that already."""
    shape, strides = view
    return tensor if tensor.shape == shape and tensor.stride() == strides else tensor.as_strided(shape, strides)


@contextmanager
def _exact(names: Sequence[str]) -> Iterator[None]:
    """Take back, for the call, whatever permission the process has given for less exact sums and products."""
    switches = torch.backends.cuda.matmul
    given = [name for name in names if getattr(switches, name)]
    for name in given:
        setattr(switches, name, False)
    try:
        yield
    finally:
        for name in given:
            setattr(switches, name, True)


def _view(modes: tuple[Mode | None, ...], tensor: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides of a tensor as the library sees it; a missing mode has extent 1."""
    shape = tuple(mode.extent if mode is not None else 1 for mode in modes)
    run = math.prod(shape)
    return shape, tuple(mode.strides[tensor] if mode is not None else run for mode in modes)
