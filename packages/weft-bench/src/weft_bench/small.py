"""The tasks of the suite `small`: their tensors, what is right, and what is known of them beforehand.

Tensors of a group lie one after the other in one buffer, without gaps; a result is compared as the flat numbers that it
consists of.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import torch

from weft.blocks import BlockTensor, Structure, meeting
from weft.machine.ceilings import Ceilings
from weft.spec import parse
from weft.tn.operator import heisenberg
from weft.tn.state import MPS
from weft.tn.sweeps import dmrg
from weft_bench.cases.small import SmallCase
from weft_bench.checking import WrongResult
from weft_bench.records import CaseRecord

if TYPE_CHECKING:
    from weft_bench.entry import Entry

TOLERANCE = 4  # in units of what a sum's own roundings make
DENSE = 1 << 12  # rows of an operator up to which it is made


class SmallTensors(NamedTuple):
    """The tensors of a task; each task has some of them."""

    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor | None
    x: torch.Tensor | None
    d: torch.Tensor


def matrices(flat: torch.Tensor, shapes: Sequence[tuple[int, int]]) -> list[torch.Tensor]:
    """Matrices that lie one after the other."""
    starts = [0, *itertools.accumulate(m * n for m, n in shapes)]
    return [flat[start : start + m * n].view(m, n) for start, (m, n) in zip(starts, shapes, strict=False)]


def structure_of(case: SmallCase) -> Structure:
    """The blocks of either operand."""
    sizes = [extent for (extent,) in case.extents]
    keys = [(i, (i + step) % len(sizes)) for i in range(len(sizes)) for step in (0, 1)]
    return Structure.of(keys, [(sizes[i], sizes[j]) for i, j in keys])


def block_products(case: SmallCase) -> tuple[Structure, dict[tuple[Any, ...], list[tuple[int, int]]]]:
    """The result's blocks, and which blocks of the operands are multiplied into each."""
    structure, sizes = structure_of(case), [extent for (extent,) in case.extents]
    pairs = meeting(parse(case.equation), structure, structure)
    extents: dict[Any, int] = dict(enumerate(sizes))
    shapes = [tuple(extents[sector] for sector in key) for key in pairs]
    return Structure.of(list(pairs), shapes), pairs


def length(structure: Structure) -> int:
    """Elements of a buffer of blocks."""
    return structure.starts[-1] + math.prod(structure.shapes[-1])


@dataclass(frozen=True)
class SmallProblem:
    """A task as the runner sees it."""

    case: SmallCase

    @property
    def memory(self) -> int:
        return 64 * self._sizes()[1]

    def inputs(self, device: torch.device, seed: int = 0) -> SmallTensors:
        shapes, _ = self._sizes()
        generator = torch.Generator().manual_seed(seed)
        made = [
            None if shape is None
            else (torch.randn(shape, dtype=self.case.dtype, generator=generator) / max(shape[-1], 1) ** 0.5).to(device)
            for shape in shapes[:4]
        ]  # fmt: skip
        d = torch.full(shapes[4] or (), math.nan, dtype=self.case.dtype, device=device)
        return SmallTensors(made[0], made[1], made[2], made[3], d)  # type: ignore[arg-type]

    def check(self, tensors: SmallTensors) -> SmallCheck:
        return SmallCheck(self.case, tensors)

    def record(self, entry: Entry, tensors: SmallTensors, ceilings: Ceilings | None) -> CaseRecord:
        case, dtype = self.case, str(self.case.dtype).removeprefix("torch.")
        used = sum(x.numel() * x.element_size() for x in tensors if x is not None)
        return CaseRecord(
            name=case.name, group=entry.group, base=entry.base, equation=case.equation,
            extents=[("count", len(case.extents)), *(("first", extent) for extent in case.extents[0])],
            dtypes=(dtype, dtype), precision="", functions={}, layouts=("contiguous", "contiguous"),
            scaled=entry.scaled, modes={}, work={"flops": self._flops(), "function_flops": 0, "bytes": used}, floor={},
        )  # fmt: skip

    def _sizes(self) -> tuple[tuple[tuple[int, ...] | None, ...], int]:
        """The shapes of a, b, c, x and d, and how many elements they have in all."""
        case = self.case
        shapes: tuple[tuple[int, ...] | None, ...]
        if case.task == "grouped":
            sums = [sum(x * y for x, y in pairs) for pairs in zip(
                *(((m, k), (k, n), (m, n)) for m, n, k in case.extents), strict=True)]  # fmt: skip
            shapes = ((sums[0],), (sums[1],), None, None, (sums[2],))
        elif case.task == "two-site":
            b, p, q, c, r = case.extents[0]
            shapes = ((p, q), (b, q, c), (c, r), None, (b, p, r))
        elif case.task == "operator-sum":
            t, l, s, r = case.extents[0]
            shapes = ((t, l, l), (t, s, s), (t, r, r), (l, s, r), (l, s, r))
        elif case.task == "blocks":
            size = length(structure_of(case))
            shapes = ((size,), (size,), None, None, (length(block_products(case)[0]),))
        else:
            sites, bond = case.extents[0]
            shapes = ((sites, bond), (1,), None, None, (1,))
        return shapes, sum(math.prod(shape) for shape in shapes if shape is not None)

    def _flops(self) -> int:
        case = self.case
        if case.task == "grouped":
            return 2 * sum(map(math.prod, case.extents))
        if case.task == "two-site":
            b, p, q, c, r = case.extents[0]
            return 2 * b * p * c * (q + r)
        if case.task == "operator-sum":
            t, l, s, r = case.extents[0]
            return 2 * t * l * s * r * (l + s + r)
        if case.task == "blocks":
            shapes, products = structure_of(case).shapes, block_products(case)[1].values()
            return 2 * sum(math.prod(shapes[i]) * shapes[j][1] for pairs in products for i, j in pairs)
        return 0


class SmallCheck:
    """A task's result against one in float64, within what its sums may round."""

    def __init__(self, case: SmallCase, tensors: SmallTensors) -> None:
        self._tensors = tensors
        wide = [None if x is None else x.double() for x in tensors[:4]]
        self._right = reference(case, wide)
        if case.task == "dmrg":
            self._bound = torch.full_like(self._right, 1e-6)
            return
        magnitudes = reference(case, [None if x is None else x.abs() for x in wide])
        self._bound = TOLERANCE * depth(case) * torch.finfo(case.dtype).eps * magnitudes + 1e-300

    def error(self, run: Callable[..., torch.Tensor], stored: torch.dtype | None = None) -> float:
        found = run(*self._tensors).reshape(-1)
        worst = float(((found.double() - self._right).abs() / self._bound).nan_to_num(nan=math.inf).max())
        if worst > 1:
            raise WrongResult(worst, "an element is further from the one in float64 than its sum may round")
        return worst


def depth(case: SmallCase) -> int:
    """The longest sum that an element is made by."""
    if case.task in ("grouped", "blocks"):
        return 2 * max(map(max, case.extents))
    return sum(case.extents[0])


def reference(case: SmallCase, tensors: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """The flat result by torch, in the type of `tensors`."""
    a, b, c, x = tensors
    assert a is not None
    assert b is not None
    if case.task == "grouped":
        left = matrices(a, [(m, k) for m, n, k in case.extents])
        right = matrices(b, [(k, n) for m, n, k in case.extents])
        return torch.cat([(one @ other).reshape(-1) for one, other in zip(left, right, strict=True)])
    if case.task == "two-site":
        assert c is not None
        return (a @ b @ c).reshape(-1)
    if case.task == "operator-sum":
        assert c is not None
        assert x is not None
        total = torch.zeros_like(x)
        for l, o, r in zip(a, b, c, strict=True):
            total += torch.einsum("Ll,lsr,Rr,Ss->LSR", l, x, r, o)
        return total.reshape(-1)
    if case.task == "blocks":
        structure, (made, pairs) = structure_of(case), block_products(case)
        result = a.new_zeros(length(made))
        first, second = (BlockTensor.over(structure, part) for part in (a, b))
        keys = structure.keys
        for start, shape, key in zip(made.starts, made.shapes, made.keys, strict=True):
            block = torch.stack([first[keys[i]] @ second[keys[j]] for i, j in pairs[key]]).sum(0)
            result[start : start + math.prod(shape)] = block.reshape(-1)
        return result
    with torch_contractions():
        return sweep(case, a)


def sweep(case: SmallCase, start: torch.Tensor) -> torch.Tensor:
    """The energy after one sweep, from a random state."""
    sites, bond = case.extents[0]
    kind: dict[str, Any] = {"dtype": case.dtype, "device": start.device}
    state = MPS.random(sites, 2, bond, seed=3, **kind)
    energy = dmrg(heisenberg(sites, **kind), state, max_bond=bond, sweeps=1, cutoff=0.0).energy
    return torch.tensor([energy], dtype=torch.float64, device=start.device)


@contextmanager
def torch_contractions() -> Iterator[None]:
    """Within it the sweep's contractions are `torch.einsum`."""
    with mock.patch("weft.tn.sweeps.contract", torch.einsum), mock.patch("weft.tn.state.contract", torch.einsum):
        yield
