"""`strip_exponent`: every tensor is scaled by a power of two as it is read, and the powers are added up.

A step leaves the largest magnitude of its result, the *peak* (`Contraction.peak`), alongside the result: kernels that
can find it as they store, others by a pass of reading. The next step's prologue makes the power of two of it and
multiplies by that: the peak is an auxiliary operand of one element. Operands of the network have a pass of reading,
once where a slice sees all of them. The powers of all nodes are added up from their peaks at the end of a slice.
Nothing waits for the device.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from weft.errors import DTypeError
from weft.networks.checkpoint import HeldSums
from weft.networks.program import NetworkProgram
from weft.networks.slicing import part
from weft.networks.steps import ContractionCall, as_launched, prepared
from weft.networks.tree import TreeStep
from weft.planner.peak import measure_each
from weft.plans.contraction import Plan
from weft.spec.contraction import peak_type
from weft.spec.dtypes import REAL_OF, dtype_name

_APART = 16  # bytes between peaks: each is aligned as a tensor of its own is


class Scaling:
    """Sums of slices over one power of ten: the slices of a call, as a long run drives them."""

    def __init__(self, program: NetworkProgram, operands: Sequence[torch.Tensor], place: torch.Tensor) -> None:
        self.program, self._out, self._operands = program, place, operands
        self._steps: _Scaled | None = None
        self._result = program.plan.tree.graph.result
        kind = program.plan.result_memory.sum_type(program.plan.tree)
        self.sums = place if kind == place.dtype else torch.empty(place.shape, dtype=kind, device=place.device)
        self.sums.zero_()
        self._seen = self._result.view(self.sums)
        self.exponent = torch.full((), -math.inf, dtype=torch.float64, device=place.device)  # to the base of two

    def begin(self) -> None:
        """Peaks of operands; all else is made anew for each slice, which has peaks of its own."""
        self._steps = self._steps or _Scaled(self.program, self._operands)

    def slice(self, number: int) -> None:
        assert self._steps is not None
        where = self.program.slices[number]
        values, exponent = self._steps.slice(where)
        into = part(self._seen, self._result.term, where)
        self.exponent = _added(into, self.sums, values, exponent, self.exponent)

    def held(self) -> HeldSums:
        return HeldSums({0: self.sums}, float(self.exponent))

    def absorb(self, held: HeldSums) -> None:
        if held.exponent is None or held.exponent == -math.inf:
            return  # of no slice
        exponent = torch.full_like(self.exponent, held.exponent)
        value = held.parts[0].to(self.sums.device).view(self.sums.shape)
        self.exponent = _added(self.sums, self.sums, value, exponent, self.exponent)

    def scaled_to(self, exponent: float) -> None:
        """Let the sum stand over 2**exponent, which is no less than its own."""
        if exponent == -math.inf:
            return
        factor = torch.exp2(self.exponent - exponent)
        self.sums *= factor.to(REAL_OF.get(self.sums.dtype, self.sums.dtype))
        self.exponent.fill_(exponent)

    @property
    def result(self) -> tuple[torch.Tensor, torch.Tensor]:
        """``(mantissa, exponent)``: the result over 10**exponent in its place, a float64 tensor of no dimension."""
        if self.sums is not self._out:
            self._out.copy_(self.sums)
        return self._out, self.exponent * math.log10(2.0)


class _Scaled:
    """The steps of a program with a peak of each node, by which the next step scales what it reads."""

    def __init__(self, program: NetworkProgram, operands: Sequence[torch.Tensor]) -> None:
        plan = program.plan
        self._program, self._plan = program, plan
        dtype = plan.dtypes[plan.tree.root]
        if not (dtype.is_floating_point or dtype.is_complex):
            raise DTypeError(f"strip_exponent is for floating types, the result is {dtype_name(dtype)}")
        whole = program.views(operands)
        types = [tensor.dtype for tensor in whole]
        types += [plan.dtypes[node] for node in range(len(whole), plan.tree.root + 1)]
        self._peaks = _Peaks(types, len(whole), program.device)
        self._values: list[Any] = [*whole, *program.values(operands)[len(whole) :]]
        self._calls: dict[Any, ContractionCall] = {}
        self._cut = program.cut(whole)
        self._measure({leaf: tensor for leaf, tensor in enumerate(whole) if leaf not in self._cut})

    def slice(self, where: dict[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
        """The result of one slice before it is scaled, and its exponent to the base of two."""
        plan, tree = self._plan, self._plan.tree
        tensors: list[Any] = list(self._values)
        if self._cut:
            terms = tree.graph.terms
            parts = {leaf: part(tensor, terms[leaf], where) for leaf, tensor in self._cut.items()}
            for leaf, tensor in parts.items():
                tensors[leaf] = tensor
            self._measure(parts)
        tensors[tree.root] = torch.empty(
            plan.shape(tree.root), dtype=plan.dtypes[tree.root], device=self._program.device
        )
        self._peaks.begin()
        for step in tree.steps:
            call = self._call(step, tensors)
            a, b = as_launched(tensors[step.left]), as_launched(tensors[step.right])
            call.launch(a, b, None, tensors[step.node], call.one, call.zero, call.aux)
        # The result is scaled by its own power of two where it is added; all others were as they were read.
        scale, exponent = self._peaks.scale_and_exponent
        return tensors[tree.root] * scale.to(tensors[tree.root].dtype), exponent

    def _measure(self, leaves: Mapping[int, torch.Tensor]) -> None:
        measure_each(list(leaves.values()), [self._peaks.of[leaf] for leaf in leaves])

    def _call(self, step: TreeStep, tensors: Sequence[Any]) -> ContractionCall:
        """A step with this call's peaks; the program keeps what was prepared for it."""
        key = (step.node, *(tensors[node].data_ptr() & 15 for node in (step.left, step.right)))
        known = self._calls.get(key)
        if known is None:
            peaks = {"left": self._peaks.of[step.left], "right": self._peaks.of[step.right]}
            kept = self._program.scaled
            if key not in kept:
                kept[key] = self._prepared(step, tensors, peaks)._replace(aux=())
            call = kept[key]
            known = self._calls[key] = call._replace(aux=Plan.aux_of(call.variant, peaks, self._peaks.of[step.node]))
        return known

    def _prepared(self, step: TreeStep, tensors: Sequence[Any], peaks: Mapping[str, torch.Tensor]) -> ContractionCall:
        plan, nodes = self._plan, (step.left, step.right, step.node)
        asked = plan.asked.having(a_fn=_by_left, b_fn=_by_right)
        left, right, node = (plan.orders[each] for each in nodes)
        sides = (tensors[step.left], tensors[step.right], None, tensors[step.node])
        operands = {name: ("", peak) for name, peak in peaks.items()}
        return prepared(nodes, (left, right, node), sides, asked, operands, self._peaks.of[step.node])


class _Peaks:
    """Places for the peaks of nodes of these types, the result's last; zeros at first."""

    def __init__(self, types: Sequence[torch.dtype], leaves: int, device: torch.device) -> None:
        bits = [peak_type(dtype) for dtype in types]
        # Every node has a place in each type: that of another than its own stays zero, which counts nothing.
        held = [torch.zeros(len(bits), _APART // kind.itemsize, dtype=kind, device=device) for kind in set(bits)]
        self._every = [places[:, 0] for places in held]
        self._of_steps = [places[leaves:] for places in held]
        by_type = {every.dtype: every.unbind() for every in self._every}
        self.of = [by_type[kind][node] for node, kind in enumerate(bits)]

    def begin(self) -> None:
        """Reset the peaks of steps, whose maxima kernels find."""
        for places in self._of_steps:
            places.zero_()

    @property
    def scale_and_exponent(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The scale of the result, and the sum of the exponents (to the base of two) of all nodes."""
        scales = [scale_of(every) for every in self._every]
        exponents = [(1 - torch.frexp(each).exponent).sum(dtype=torch.float64) for each in scales]
        (result,) = [scale[-1] for scale, every in zip(scales, self._every, strict=True)
                     if every.dtype is self.of[-1].dtype]  # fmt: skip
        return result, sum(exponents[1:], exponents[0])


def scale_of(peak: Any) -> Any:
    """The power of two that brings a peak, given by its bits, under one and at least to a half; pointwise.

    It is one for zero, infinity and NaN, which nothing brings there. It stays a normal number, whose product with a
    value is exact: peaks beyond 2**126 (2**1022 of float64) come under four, subnormal ones come under one.
    """
    if peak.dtype == torch.int32:
        digits, bias, real = 23, 127, torch.float32
    else:
        digits, bias, real = 52, 1023, torch.float64
    exponent = peak >> digits  # biased
    power = torch.clamp(2 * bias - 1 - exponent, min=1)
    scales = (peak > 0) & (exponent <= 2 * bias)
    return (torch.where(scales, power, bias) << digits).view(real)


def _by_left(value: Any, left: Any) -> Any:
    return value * scale_of(left)


def _by_right(value: Any, right: Any) -> Any:
    return value * scale_of(right)


def _added(
    into: torch.Tensor, whole: torch.Tensor, values: torch.Tensor, exponent: torch.Tensor, shared: torch.Tensor
) -> torch.Tensor:
    """Add values times 2**exponent to a part of the sums, which have one exponent for all; returns the new one."""
    found, real = torch.maximum(shared, exponent), REAL_OF.get(whole.dtype, whole.dtype)
    whole *= torch.exp2(shared - found).to(real)
    into += values.to(into.dtype) * torch.exp2(exponent - found).to(real)
    return found


def scaled(operand: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The operand over 10**exponent, its largest magnitude at most one, and the exponent: float64, of no dimension.

    `DTypeError` for whole numbers.
    """
    dtype = operand.dtype
    if not (dtype.is_floating_point or dtype.is_complex):
        raise DTypeError(f"strip_exponent is for floating types, the operand is {dtype_name(dtype)}")
    largest = operand.abs().amax().double() if operand.numel() else torch.zeros((), dtype=torch.float64, device="cpu")
    real = REAL_OF.get(dtype, dtype)
    most = int(math.log2(torch.finfo(real).max))  # of a power of two that the type holds, and the inverse too
    exponent = torch.frexp(largest)[1].clamp(-most, most - 1).to(operand.device)
    factor = torch.exp2(-exponent.double()).to(real)
    return operand * factor, exponent.double() * math.log10(2.0)
