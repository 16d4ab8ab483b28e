"""Running TTGT: for each batch and piece of D pack what needs it, multiply, and apply what is left of the epilogue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import add
from typing import NamedTuple

import torch
from torch import Tensor

from weft.cpu import blas
from weft.cpu.host import HUGE, advise, reach
from weft.cpu.ttgt.passes import FinishingPass, Pass, finishing, packing
from weft.cpu.ttgt.schedule import TtgtSchedule
from weft.cpu.ttgt.steps import Piece, pieces_of
from weft.cpu.ttgt.ways import IN_PLACE, SCATTER, A, C, D, Modes, Way, multiplied
from weft.planner.schedule import AuxTensors, Launch, Scalar, Target
from weft.spec import Contraction, Role

UNSCALED = (0, 0, 0, 0)

Offsets = tuple[int, ...]  # elements, in the order of a mode's strides


class TtgtStep(NamedTuple):
    """The built launches of a piece: packing, product, epilogue."""

    packs: tuple[Pass | None, Pass | None]  # of A and B
    multiply: Launch
    finish: FinishingPass | None


class TtgtCall(NamedTuple):
    """The tensors of one call, in the order of a mode's strides, and workspaces for A, B and the product."""

    tensors: tuple[Tensor | None, ...]
    spaces: tuple[Tensor | None, ...]


class TtgtLaunch:
    """Runs on new pointers; keeps no state between calls."""

    def __init__(self, contraction: Contraction, schedule: TtgtSchedule, target: Target) -> None:
        self._contraction, self._size = contraction, reach(contraction.d)
        pieces, way = pieces_of(contraction, schedule.way), schedule.way
        self._steps = [
            TtgtStep(
                _packs(contraction, piece, schedule.threads),
                blas.build(piece.product, schedule.product, target),
                _finish(contraction, piece, schedule),
            )
            for piece in pieces
        ]
        self._cut = way.cut.operand
        self._batches = _places(contraction.of_role(Role.BATCH), contraction)
        self._pieces = list(self._placed(way))
        matrices, dtype = (*pieces[0].packed, pieces[0].d if way.last == SCATTER else None), multiplied(contraction)
        types = (dtype, dtype, contraction.arithmetic.accumulate)
        self._rooms = [(each.size, of) if each is not None else None for each, of in zip(matrices, types, strict=True)]

    def _placed(self, way: Way) -> Iterator[tuple[Offsets, TtgtStep]]:
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
        spaces = [None if room is None else torch.empty(room[0], dtype=room[1], device="cpu") for room in self._rooms]
        call = TtgtCall((a, b, c if beta != 0 else None, d, *aux), tuple(spaces))
        for batch in self._batches:
            shared = self._factor(1 - self._cut, self._steps[0], call, batch)
            for place, step in self._pieces:
                here = _moved(batch, place)
                own = self._factor(self._cut, step, call, here)
                x, y = (own, shared) if self._cut == A else (shared, own)
                self._multiplied(x, y, step, call, here, (alpha, beta))
        if self._steps[0].finish is None and alpha != 1:
            d.mul_(alpha)

    def _factor(self, operand: int, step: TtgtStep, call: TtgtCall, here: Offsets) -> Tensor:
        """The factor from A or B: the tensor from here on, or a piece of it, packed."""
        pack, space = step.packs[operand], call.spaces[operand]
        if pack is None or space is None:
            return _at(call.tensors[operand], here[operand])
        pack(space.data_ptr(), _bases(call.tensors, here, added=False), UNSCALED)
        return space

    def _multiplied(
        self, x: Tensor, y: Tensor, step: TtgtStep, call: TtgtCall, here: Offsets, scalars: tuple[Scalar, Scalar]
    ) -> None:
        """A piece of D from its factors."""
        space, added = call.spaces[-1], call.tensors[C] is not None
        step.multiply(x, y, None, _at(call.tensors[D], here[D]) if space is None else space, 1, 0)
        if step.finish is not None:
            address = 0 if space is None else space.data_ptr()
            step.finish(address, _bases(call.tensors, here, added=added), scalars, added=added)


def _packs(contraction: Contraction, piece: Piece, threads: int) -> tuple[Pass | None, Pass | None]:
    item = multiplied(contraction).itemsize
    a, b = (
        None if matrix is None else Pass(contraction, matrix, item, packing(contraction, operand), threads)
        for operand, matrix in enumerate(piece.packed)
    )
    return a, b


def _finish(contraction: Contraction, piece: Piece, schedule: TtgtSchedule) -> FinishingPass | None:
    last, accumulate = schedule.way.last, contraction.arithmetic.accumulate

    def made(how: tuple[bool, bool, bool]) -> Pass:
        route = finishing(contraction, last == IN_PLACE, how)
        return Pass(contraction, piece.d, accumulate.itemsize, route, schedule.threads)

    return FinishingPass(made, accumulate) if last else None


def _places(modes: Modes, contraction: Contraction) -> list[Offsets]:
    """Where each index of some modes begins."""
    found: list[Offsets] = [(0,) * (4 + len(contraction.aux))]
    for mode in modes:
        found = [_moved(place, [i * step for step in mode.strides]) for place in found for i in range(mode.extent)]
    return found


def _moved(place: Offsets, by: Sequence[int]) -> Offsets:
    return tuple(map(add, place, by))


def _at(tensor: Tensor | None, offset: int) -> Tensor:
    """The tensor from an element on, for what goes by strides of its own."""
    assert tensor is not None, "A, B and D are there"
    return tensor.as_strided((1,), (1,), int(tensor.storage_offset()) + offset) if offset else tensor


def _bases(tensors: Sequence[Tensor | None], here: Offsets, *, added: bool) -> tuple[int, ...]:
    """Addresses in the order of bases; that of C is 0 where nothing is added."""
    a, b, c, d, *aux = map(_address, tensors, here)
    return a, b, d, c if added else 0, *aux


def _address(tensor: Tensor | None, offset: int) -> int:
    """The address of an element; the offset itself where there is no tensor."""
    return offset if tensor is None else tensor.data_ptr() + offset * tensor.itemsize
