"""Running TTGT: for each batch and piece of D pack what needs it, multiply, and apply what is left of the epilogue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import add
from typing import NamedTuple

import torch
from torch import Tensor

from weft.cpu import blas
from weft.cpu.huge_pages import HUGE, advise, reach
from weft.cpu.ttgt.finish import Finish
from weft.cpu.ttgt.schedule import Packers, TtgtSchedule
from weft.cpu.ttgt.steps import Piece, pieces_of
from weft.cpu.ttgt.ways import A, C, D, IN_PLACE, SCATTER, Modes, Way, size
from weft.planner.schedule import AuxTensors, Launch, PermutationLaunch, Scalar, Target
from weft.spec import Contraction, Layout, Role

Offsets = tuple[int, ...]  # elements, in the order of a mode's strides


class Step(NamedTuple):
    """A piece, built."""

    piece: Piece
    packers: tuple[PermutationLaunch | None, PermutationLaunch | None]
    multiply: Launch

    @property
    def extents(self) -> tuple[int, int]:
        return size(self.piece.rows), size(self.piece.columns)

    @property
    def pitch(self) -> int:
        """Bytes from row to row of the product."""
        return self.piece.pitch * self.piece.product.d.dtype.itemsize


class TtgtLaunch:
    """Runs on new pointers; keeps no state between calls."""

    def __init__(self, contraction: Contraction, schedule: TtgtSchedule, target: Target) -> None:
        self._contraction, self._size = contraction, reach(contraction.d)
        self._steps = [
            Step(piece, _built(packers), blas.build(piece.product, schedule.product, target))
            for piece, packers in zip(pieces_of(contraction, schedule.way), schedule.packers, strict=True)
        ]
        self._cut = schedule.way.cut.operand
        self._batches = _places(contraction.of_role(Role.BATCH), contraction)
        self._pieces = list(self._placed(schedule.way))
        first, last, accumulate = self._steps[0], schedule.way.last, contraction.arithmetic.accumulate
        self._finish = Finish(contraction, first.piece, schedule.threads, last == IN_PLACE) if last else None
        self._between = Layout.contiguous(first.extents, accumulate) if last == SCATTER else None

    def _placed(self, way: Way) -> Iterator[tuple[Offsets, Step]]:
        """The pieces of a batch, and where they begin."""
        *outer, mode = way.order.side(way.cut.operand)[: way.cut.at + 1]
        for place in _places(tuple(outer), self._contraction):
            for start in range(0, mode.extent, way.cut.step):
                whole = start + way.cut.step <= mode.extent
                yield _moved(place, [start * step for step in mode.strides]), self._steps[0 if whole else -1]

    def __call__(
        self, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar, aux: AuxTensors = ()
    ) -> None:
        if self._size >= HUGE:
            advise(d, self._size)
        tensors = (a, b, c if beta != 0 else None, d, *aux)
        spaces = [_room(packing.d) if packing is not None else None for packing in self._steps[0].piece.packings]
        between = _room(self._between) if self._between is not None else None
        for batch in self._batches:
            shared = self._factor(1 - self._cut, self._steps[0], tensors, spaces, batch)
            for place, step in self._pieces:
                here = _moved(batch, place)
                own = self._factor(self._cut, step, tensors, spaces, here)
                factors = (own, shared) if self._cut == A else (shared, own)
                product = _at(d, here[D]) if between is None else between
                step.multiply(*factors, None, product, 1, 0)
                if self._finish is not None:
                    _, _, added, *others = map(_address, tensors, here)
                    bases = (product.data_ptr(), 0, others[0], added if tensors[C] is not None else 0, *others[1:])
                    self._finish((*step.extents, step.pitch), bases, alpha, beta)
        if self._finish is None and alpha != 1:
            d.mul_(alpha)

    def _factor(
        self, operand: int, step: Step, tensors: Sequence[Tensor | None], spaces: Sequence[Tensor | None], here: Offsets
    ) -> Tensor:
        """What is multiplied of A or B: the tensor from here on, or its piece, packed."""
        tensor, space, pack = tensors[operand], spaces[operand], step.packers[operand]
        assert tensor is not None, "A and B are there"
        place = _at(tensor, here[operand])
        if space is None or pack is None:
            return place
        pack(place, None, space, 1, 0)
        return space


def _built(packers: Packers) -> tuple[PermutationLaunch | None, PermutationLaunch | None]:
    a, b = (choice.built_as_a_step()[1] if choice is not None else None for choice in packers)
    return a, b


def _places(modes: Modes, contraction: Contraction) -> list[Offsets]:
    """Where each index of some modes begins."""
    found: list[Offsets] = [(0,) * (4 + len(contraction.aux))]
    for mode in modes:
        found = [_moved(place, [i * step for step in mode.strides]) for place in found for i in range(mode.extent)]
    return found


def _moved(place: Offsets, by: Sequence[int]) -> Offsets:
    return tuple(map(add, place, by))


def _at(tensor: Tensor, offset: int) -> Tensor:
    """The tensor from an element on, for what goes by strides of its own."""
    return tensor.as_strided((1,), (1,), int(tensor.storage_offset()) + offset) if offset else tensor


def _address(tensor: Tensor | None, offset: int) -> int:
    """Of an element; of what is no memory, the offset itself."""
    return offset if tensor is None else tensor.data_ptr() + offset * tensor.itemsize


def _room(layout: Layout) -> Tensor:
    return torch.empty(layout.shape, dtype=layout.dtype, device="cpu")
