"""The tensors that a plan of a cascade takes, the results that it gives, and its text for `explain`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from weft.base.figures import share, si
from weft.cascades.notation import CascadeNotation
from weft.errors import DTypeError, ShapeError
from weft.spec import Label
from weft.spec.dtypes import dtype_name


@dataclass(frozen=True, slots=True)
class Described:
    """The tensors that a plan is for: shapes, types and labels of A, B, C and of operands by name, and coordinates."""

    notation: CascadeNotation
    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype
    device: torch.device
    operands: Mapping[str, tuple[tuple[Label, ...], tuple[int, ...], torch.dtype]]
    indices: Mapping[str, Label]
    extents: Mapping[Label, int]

    def place_type(self, label: Label) -> torch.dtype:
        """The type of a coordinate along a label."""
        return torch.int32 if self.extents[label] < 2**31 else torch.int64

    @property
    def given(self) -> dict[str, tuple[torch.dtype, frozenset[Label]]]:
        """The type and the labels of what the function takes beside its value, by name."""
        found = {name: (dtype, frozenset(terms)) for name, (terms, _, dtype) in self.operands.items()}
        return found | {name: (self.place_type(label), frozenset((label,))) for name, label in self.indices.items()}

    def own(self, term: Sequence[Label], shape: Sequence[int]) -> tuple[Label, ...]:
        """The labels of an operand along which it does not broadcast."""
        pairs = zip(term, shape, strict=True)
        return tuple(dict.fromkeys(label for label, extent in pairs if extent == self.extents[label]))

    def check(self, tensors: Sequence[Tensor], operands: Mapping[str, Tensor]) -> None:
        """`ShapeError` or `DTypeError` for tensors of a call that are others than planned."""
        shapes = tuple(tuple(tensor.shape) for tensor in tensors)
        if shapes != self.shapes:
            raise ShapeError(f"the plan is for operands of shapes {self.shapes}, not {shapes}")
        if set(operands) != set(self.operands):
            raise ShapeError(f"the plan is for operands named {sorted(self.operands)}, not {sorted(operands)}")
        for name, (_, shape, dtype) in self.operands.items():
            if tuple(operands[name].shape) != shape or operands[name].dtype != dtype:
                raise ShapeError(f"operand '{name}' was planned with shape {shape} and type {dtype_name(dtype)}")
        for tensor in tensors:
            if tensor.dtype != self.dtype or tensor.device != self.device:
                raise DTypeError(f"the plan is for {dtype_name(self.dtype)} tensors on {self.device}")


Labels = tuple[Label, ...]


class Results:
    """The labels of a plan's results in both orders: D with those that were asked for, others with theirs in S's.

    `described` are the labels and types that the caller has.
    """

    def __init__(self, plan: Any) -> None:
        frame, between = plan.frame, plan.between
        self._frame, self._meets = frame, plan.meets
        self._own: list[Labels] = [frame.second.result] if plan.meets else []
        self.described: list[tuple[Labels, torch.dtype]] = [(plan.notation.d, plan.result_type)] if plan.meets else []
        for node in between.outputs[plan.meets :]:
            dtype, modes = node.meta["dtype"], between.modes[node]
            self._own.append(_kept(frame.order, modes))
            stored = frame.stored_as(dtype) if node in between.elementwise else dtype
            self.described.append((_kept(plan.notation.s, modes), stored))

    def laid_out(self, found: Sequence[Tensor]) -> list[Tensor]:
        """Results as the caller has them."""
        results = []
        for value, own, (asked, _) in zip(found, self._own, self.described, strict=True):
            value = value.reshape([self._frame.extents[label] for label in own])
            results.append(value.permute([own.index(label) for label in asked]))
        return results

    def along_s(self, grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Gradients of results, or the first results, as `laid_out` was given them."""
        found: list[Tensor | None] = []
        for at, (grad, own, (asked, _)) in enumerate(zip(grads, self._own, self.described, strict=False)):
            if grad is not None:
                grad = grad.permute([asked.index(label) for label in own])
                grad = grad if self._meets and at == 0 else grad.reshape(self._frame.shape(frozenset(own)))
            found.append(grad)
        return found


def _kept(order: Labels, modes: frozenset[Label]) -> Labels:
    return tuple(label for label in order if label in modes)


def explained(plan: Any) -> str:
    """Several lines of text on a `CascadePlan`."""
    elements = math.prod(plan.extents[label] for label in plan.notation.s)
    block = math.prod(max(plan.blocks.extents[label], 1) for label in plan.frame.order)
    size = plan.types.accumulate.itemsize
    cut = ", ".join(f"{label}={plan.blocks.extents[label]}" for label in plan.frame.order)
    every = math.prod(-(-plan.extents[label] // max(plan.blocks.extents[label], 1)) or 1 for label in plan.frame.order)
    lines = [
        f"cascade     {plan.notation}",
        "modes       " + ", ".join(f"{label}={extent}" for label, extent in plan.extents.items()),
        f"types       {dtype_name(plan.said.dtype)}, sums in {dtype_name(plan.types.accumulate)}",
        f"form        {plan.program.form}: {plan.program.why}",
        f"passes      {len(plan.program.stages)}",
        f"blocks      {cut}: {block} elements, {every} blocks",
    ]
    for at, stage in enumerate(plan.program.stages):
        left = sum(math.prod(extent for _, extent in box.values()) for box in plan.blocks.cut(stage, {}))
        if left < elements:
            lines.append(f"masks       pass {at + 1} computes {share(left / elements)} of S")
    if plan.few is not None:
        lines.append("serves      torch's operations, on all of S at once: it has few elements")
    elif plan.said.device.type == "cpu":
        why = dict.fromkeys(each for each in plan.loops.rows.values() if isinstance(each, str))
        how = f"in torch's operations: {', '.join(why)}" if why else "in loops that are compiled for this function"
        lines.append(f"loops       {how}")
    held, all_of_it = si(block * size, "B"), si(elements * size, "B")
    if plan.kernel is None:
        lines.append(f"memory      {held} of S at a time; all of it would be {all_of_it}")
    else:
        waits = plan.arriving is not None and not plan.arriving.serves
        since = f", from call {plan.arriving.due} on" if waits else ""
        lines.append(f"kernel      {plan.kernel.tile}{since}")
        lines.append(f"memory      S stays on the chip; all of it would be {all_of_it}")
    return "\n".join(lines)
