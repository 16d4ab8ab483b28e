"""`strip_exponent`: every tensor is scaled by a power of two as it is read, and the powers are added up.

A step leaves the largest magnitude of its result, the *peak* (`Contraction.peak`), beside the result: kernels that can
find it as they store, others by a pass of reading. The next step's prologue makes the power of two of it and multiplies
by that: the peak is an auxiliary operand of one element. Operands of the network have a pass of reading, once where a
slice sees all of them. The powers of all nodes are added up from their peaks at the end of a slice. Nothing waits for
the device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from weft.errors import DTypeError
from weft.networks.checkpoint import Held
from weft.networks.planned import Planned
from weft.networks.program import Program
from weft.networks.slicing import part
from weft.networks.steps import Call, as_launched, prepared
from weft.networks.tree import Step
from weft.planner.peak import measure
from weft.spec.dtypes import REAL_OF, dtype_name

_APART = 16  # bytes between peaks: each is aligned as a tensor of its own is


class Scaling:
    """Sums of slices over one power of ten: the slices of a call, as a long run drives them."""

    def __init__(self, network: Planned, program: Program, operands: Sequence[torch.Tensor], place: torch.Tensor):
        self.program, self.out = program, place
        self._network, self._operands = network, operands
        self._steps: _Scaled | None = None
        place.zero_()
        self.exponent = torch.full((), -math.inf, dtype=torch.float64, device=place.device)  # to the base of two

    def begin(self) -> None:
        """Peaks of operands; all else is made anew for each slice, which has peaks of its own."""
        self._steps = self._steps or _Scaled(self.program, self._operands)

    def slice(self, number: int) -> None:
        assert self._steps is not None
        where = self.program.slices[number]
        values, exponent = self._steps.slice(where)
        into = part(self.out, self._network.graph.output, where)
        self.exponent = _added(into, self.out, values, exponent, self.exponent)

    def held(self) -> Held:
        return Held({0: self.out}, float(self.exponent))

    def absorb(self, held: Held) -> None:
        if held.exponent is None or held.exponent == -math.inf:
            return  # of no slice
        exponent = torch.full_like(self.exponent, held.exponent)
        value = held.parts[0].to(self.out.device).view(self.out.shape)
        self.exponent = _added(self.out, self.out, value, exponent, self.exponent)

    def scaled_to(self, exponent: float) -> None:
        """Let the sum stand over 2**exponent, which is no less than its own."""
        if exponent == -math.inf:
            return
        factor = torch.exp2(self.exponent - exponent)
        self.out *= factor.to(REAL_OF.get(self.out.dtype, self.out.dtype))
        self.exponent.fill_(exponent)

    @property
    def result(self) -> tuple[torch.Tensor, torch.Tensor]:
        """``(mantissa, exponent)``: `out` with the result over 10**exponent, a float64 tensor of no dimension."""
        return self.out, self.exponent * math.log10(2.0)


class _Scaled:
    """The steps of a program with a peak of each node, by which the next step scales what it reads."""

    def __init__(self, program: Program, operands: Sequence[torch.Tensor]) -> None:
        scheme = program.scheme
        self._program, self._scheme = program, scheme
        dtype = scheme.dtypes[scheme.tree.root]
        if not (dtype.is_floating_point or dtype.is_complex):
            raise DTypeError(f"strip_exponent is for floating types, the result is {dtype_name(dtype)}")
        bits = torch.int64 if REAL_OF.get(dtype, dtype) is torch.float64 else torch.int32
        step = _APART // bits.itemsize
        held = torch.zeros((scheme.tree.root + 1) * step, dtype=bits, device=program.device)
        self._peaks, self._of_steps = held[::step], held[scheme.tree.leaves * step :]
        self._peak = self._peaks.unbind()  # of each node
        self._whole = program.views(operands)
        self._values: list[Any] = program.values(operands)
        self._calls: dict[Any, Call] = {}
        for leaf, tensor in enumerate(self._whole):
            if not program.is_cut(leaf):
                self._measure(leaf, tensor)

    def slice(self, where: dict[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
        """The result of one slice before it is scaled, and its exponent to the base of two."""
        scheme, tree = self._scheme, self._scheme.tree
        tensors: list[Any] = list(self._values)
        for leaf, tensor in enumerate(self._whole):
            tensors[leaf] = part(tensor, tree.graph.terms[leaf], where)
            if self._program.is_cut(leaf):
                self._measure(leaf, tensors[leaf])
        tensors[tree.root] = torch.empty(
            scheme.shape(tree.root), dtype=scheme.dtypes[tree.root], device=self._program.device
        )
        self._of_steps.zero_()
        for step in tree.steps:
            call = self._call(step, tensors)
            a, b = as_launched(tensors[step.left]), as_launched(tensors[step.right])
            call.launch(a, b, None, tensors[step.node], call.one, call.zero, call.aux)
        # The result is scaled by its own power of two where it is added; all others were as they were read.
        scales = scale_of(self._peaks)
        exponent = (1 - torch.frexp(scales).exponent).sum(dtype=torch.float64)
        return tensors[tree.root] * scales[tree.root].to(tensors[tree.root].dtype), exponent

    def _measure(self, node: int, tensor: torch.Tensor) -> None:
        if tensor.numel():
            measure(tensor, self._peak[node])

    def _call(self, step: Step, tensors: Sequence[Any]) -> Call:
        scheme = self._scheme
        key = (step.node, *(tensors[node].data_ptr() & 15 for node in (step.left, step.right)))
        known = self._calls.get(key)
        if known is None:
            asked = scheme.asked.having(a_fn=_by_left, b_fn=_by_right)
            terms = (scheme.orders[step.left], scheme.orders[step.right], scheme.orders[step.node])
            sides = (tensors[step.left], tensors[step.right], None, tensors[step.node])
            beside = {"left": ("", self._peak[step.left]), "right": ("", self._peak[step.right])}
            nodes = (step.left, step.right, step.node)
            known = self._calls[key] = prepared(nodes, terms, sides, asked, beside, self._peak[step.node])
        return known


def scale_of(peak: Any) -> Any:
    """The power of two that brings a peak, given by its bits, under one and at least to a half; pointwise.

    It is one for zero, infinity and NaN, which nothing brings there. It stays a normal number, whose product with a
    value is exact: peaks beyond 2**126 (2**1022 of float64) come under four, subnormal ones come under one.
    """
    digits, bias, real = _FORMATS[peak.dtype]
    exponent = peak >> digits  # biased
    power = torch.clamp(2 * bias - 1 - exponent, min=1)
    scales = (peak > 0) & (exponent <= 2 * bias)
    return (torch.where(scales, power, bias) << digits).view(real)


_FORMATS = {torch.int32: (23, 127, torch.float32), torch.int64: (52, 1023, torch.float64)}


def _by_left(value: Any, left: Any) -> Any:
    return value * scale_of(left)


def _by_right(value: Any, right: Any) -> Any:
    return value * scale_of(right)


def _added(
    into: torch.Tensor, whole: torch.Tensor, values: torch.Tensor, exponent: torch.Tensor, shared: torch.Tensor
) -> torch.Tensor:
    """Add values times 2**exponent to a part of the result, which has one exponent for all; returns the new one."""
    found = torch.maximum(shared, exponent)
    whole *= torch.exp2(shared - found).to(REAL_OF.get(whole.dtype, whole.dtype))
    into += (values * torch.exp2(exponent - found).to(REAL_OF.get(values.dtype, values.dtype))).to(into.dtype)
    return found
