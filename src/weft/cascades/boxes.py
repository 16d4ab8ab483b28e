"""The blocks of a plan: how large they are, those that masks leave, and the compiled loops that run them by rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from weft.base.cached import cached_property
from weft.cascades.between import Between
from weft.cascades.forward import columns_of
from weft.cascades.frame import Box, Frame, size_of
from weft.cascades.grid import LIMIT, block_extents, nested
from weft.cascades.masks import kept
from weft.cascades.program import Program, Stage
from weft.cascades.rows import LIMIT as ROWS_LIMIT
from weft.cascades.rows import MOST_BOXES, StageRows
from weft.cascades.sweeps import NotInRows
from weft.cpu import jit
from weft.errors import UnsupportedError
from weft.spec import Label

_LEAST = 1 << 8  # elements of S
_LOOKED_AT = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)  # operands that may mask


def most_elements(kind: str, accumulate: torch.dtype, workspace_limit: int | None) -> int:
    """The most elements of S in a block on a kind of device; `UnsupportedError` for a limit that leaves too few."""
    found = LIMIT.get(kind, LIMIT["cpu"])
    if workspace_limit is not None:
        found = min(found, workspace_limit // (4 * accumulate.itemsize))
        if found < _LEAST:
            raise UnsupportedError(
                f"workspace_limit of {workspace_limit} bytes: a block takes {4 * _LEAST * accumulate.itemsize} at least"
            )
    return found


class Boxes:
    """The blocks of a program. `known` are the labels of coordinates by node, `limit` the most elements of a block."""

    def __init__(
        self, program: Program, frame: Frame, written: Between, known: Mapping[fx.Node, Label], limit: int
    ) -> None:
        self.program, self.frame, self.known, self.limit = program, frame, known, limit
        self._columns = columns_of(written, frame)
        self._cuts: dict[tuple[Stage, tuple[int, ...]], list[Box]] = {}

    @cached_property
    def extents(self) -> dict[Label, int]:
        """The extents of a block of S."""
        return self._extents(self.limit)

    @cached_property
    def rows_extents(self) -> dict[Label, int]:
        """The extents of a block of compiled loops."""
        elements = size_of(self.frame, self.frame.order)
        blocks, first = self._extents(min(self.limit, max(ROWS_LIMIT, elements // MOST_BOXES))), self.frame.first
        return nested(blocks, self.frame.extents, (first.batch, first.m, first.n))

    def _extents(self, limit: int) -> dict[Label, int]:
        frame = self.frame
        return block_extents(frame.order, frame.extents, self.program.whole, self._columns, limit, bool(self.known))

    def cut(self, stage: Stage, in_rows: bool = False, operands: Sequence[Tensor] = ()) -> Sequence[Box]:
        """The boxes of a stage, but for those that are masked out by coordinates, and by whole numbers on the CPU."""
        known: dict[fx.Node, Any] = {
            node: each.numpy()
            for node, each in zip(self.program.between.inputs[1:], operands, strict=False)
            if each.device.type == "cpu" and each.dtype in _LOOKED_AT and 0 < each.numel() <= self.limit
        }
        blocks = self.rows_extents if in_rows else self.extents
        if known:
            known.update(self.known)
            return [box for box, _ in kept(self.program, stage, self.frame, blocks, known)]
        place = stage, tuple(blocks.values())
        if place not in self._cuts:
            self._cuts[place] = [box for box, _ in kept(self.program, stage, self.frame, blocks, self.known)]
        return self._cuts[place]

    def in_rows(self) -> dict[Stage, StageRows | str]:
        """The compiled loops of each stage, or what stands against them."""
        return {stage: self._in_rows(stage) for stage in self.program.stages}

    def _in_rows(self, stage: Stage) -> StageRows | str:
        fault = jit.fault()
        if self.frame.device.type != "cpu" or fault is not None:
            return fault or "rows are for a CPU"
        if any(self.rows_extents[label] < self.frame.extents[label] for label in self.program.whole):
            return "blocks that have all of what is reduced are no matrices"
        try:
            return StageRows(self.program, stage, self.frame)
        except NotInRows as error:
            return str(error)
