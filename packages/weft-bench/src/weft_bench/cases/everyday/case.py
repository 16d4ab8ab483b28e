"""A case of the everyday set: one call as a user writes it, by weft and by torch, at a GPU's and a CPU's size."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

CPU_WORK = 1 << 26  # multiply-adds of a case on a CPU, at most
CPU_ELEMENTS = 1 << 21  # of its largest tensor there

Value = Any  # a tensor, or a traced value in its place
Plain = Callable[..., Any]  # torch's way, of all tensors of a case


@dataclass(frozen=True)
class Fused:
    """A function of each result: as weft takes it, and the modes of its operands and indices by name."""

    epilogue: Callable[..., Value]
    operands: Mapping[str, str] = field(default_factory=dict)
    indices: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class EverydayCase:
    """One call.

    `task`:

    contract   two operands by `equation`
    move       one operand whose modes are all kept, perhaps with a function or a cast
    einsum     one operand that is summed, or more than two operands
    steps      one contraction after the other: each takes the last result and the next operand
    group      a list of products, whose extents are `ragged`
    """

    name: str
    domain: str
    equation: str
    extents: Mapping[str, int]
    task: str = "contract"
    dtype: torch.dtype = torch.float32
    fused: Fused | None = None
    plain: Plain | None = None  # None: `torch.einsum`, then the function
    options: Mapping[str, Any] = field(default_factory=dict)  # further keywords of the weft call
    layouts: tuple[str, ...] = ()  # of the operands, see weft.testing.LAYOUTS; none: contiguous
    steps: tuple[str, ...] = ()
    ragged: tuple[Mapping[str, int], ...] = ()
    regret: bool = False  # among the workloads whose first calls are measured

    def __str__(self) -> str:
        return self.name

    @property
    def terms(self) -> tuple[str, ...]:
        """The labels of each operand, those of the fused function last."""
        given = tuple(self.equation.partition("->")[0].split(","))
        return (*given, *self.fused.operands.values()) if self.fused else given

    @property
    def output(self) -> str:
        return self.equation.partition("->")[2]

    @property
    def count(self) -> int:
        """Operands of the equation."""
        return self.equation.partition("->")[0].count(",") + 1

    @property
    def work(self) -> int:
        """Multiply-adds, or elements that are moved; of several steps those of the largest."""
        if self.ragged:
            return sum(map(math.prod, (each.values() for each in self.ragged)))
        if self.count < 3:
            return math.prod(self.extents[label] for label in {*"".join(self.terms[:2])})
        return max(self._sizes(step) for step in self.steps or (self.equation,))

    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of all tensors."""
        parts = self.ragged or (self.extents,)
        return [tuple(extents[label] for label in term) for extents in parts for term in self.terms]

    def on_cpu(self, work: int = CPU_WORK, elements: int = CPU_ELEMENTS) -> EverydayCase:
        """The case as a CPU is given it: smaller, and half precision as float32."""
        dtype = torch.float32 if self.dtype in (torch.float16, torch.bfloat16) else self.dtype
        return replace(self, dtype=dtype).shrunk(work, elements)

    def shrunk(self, work: int, elements: int) -> EverydayCase:
        """The case with at most so much work and so many elements in each tensor: all extents by one factor.

        Extents of up to 8 stay as long as larger ones can give way. Where all are 2, modes of the first operand become
        1, first those that no other operand has.
        """
        small, factor = self, 1.0
        for least in (8, 2):
            while small._exceeds(work, elements) and any(extent > least for extent in small._all_extents()):
                factor *= 0.97
                small = self._scaled(factor, least)
            factor = 1.0
        for label in self._loose():
            if small._exceeds(work, elements):
                small = replace(small, extents={**small.extents, label: 1})
        return small

    def _loose(self) -> list[str]:
        """Labels of the first operand, those ahead that no other has."""
        first, *others = self.terms
        return sorted(dict.fromkeys(first), key=lambda label: any(label in term for term in others))

    def _exceeds(self, work: int, elements: int) -> bool:
        largest = max(math.prod(shape) for shape in (*self.shapes(), self._result_shape()))
        return self.work > work or largest > elements

    def _result_shape(self) -> tuple[int, ...]:
        return () if self.ragged else tuple(self.extents[label] for label in self.output)

    def _all_extents(self) -> list[int]:
        return [extent for extents in self.ragged or (self.extents,) for extent in extents.values()]

    def _scaled(self, factor: float, least: int) -> EverydayCase:
        def scaled(extents: Mapping[str, int]) -> dict[str, int]:
            return {label: max(min(extent, least), int(extent * factor)) for label, extent in extents.items()}

        return replace(self, extents=scaled(self.extents), ragged=tuple(scaled(each) for each in self.ragged))

    def _sizes(self, equation: str) -> int:
        return math.prod(self.extents[label] for label in {*equation} - {*",->"})


def case(domain: str, name: str, equation: str, **given: Any) -> EverydayCase:
    """A case from the extents of its letters, e.g. ``m=5, k=3``; every longer keyword is a field of `EverydayCase`.

    The task is told from the equation where none is given.
    """
    extents = {key: value for key, value in given.items() if len(key) == 1}
    fields = {key: value for key, value in given.items() if len(key) > 1}
    if "task" not in fields:
        fields["task"] = _task(equation)
    return EverydayCase(name, domain, equation, extents, **fields)


def _task(equation: str) -> str:
    operands, _, output = equation.partition("->")
    if operands.count(",") == 1:
        return "contract"
    return "move" if "," not in operands and set(operands) == set(output) else "einsum"


HALF, BRAIN, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64
COMPLEX, COMPLEX_DOUBLE = torch.complex64, torch.complex128
