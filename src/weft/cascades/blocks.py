"""A program run by blocks: no more of S is in memory than one. Blocks that masks leave out are not made."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from weft.base.cached import cached_property
from weft.cascades.between import Between
from weft.cascades.evaluate import State, recipe_of, run_whole
from weft.cascades.frame import Box, CascadeFrame, size_of
from weft.cascades.lowering import PEAK
from weft.cascades.masks import kept
from weft.cascades.program import PRODUCT, CascadeProgram, CascadeTarget, Stage, Tensors, Values
from weft.cascades.rows import LIMIT as ROWS_LIMIT
from weft.cascades.rows import MOST_BOXES, StageRows
from weft.cascades.sweeps import NotInRows
from weft.cpu import jit
from weft.errors import UnsupportedError
from weft.spec import Label

#: Elements of S in a block: as many as stay in a cache on a CPU, and as fill a GPU.
LIMIT = {"cpu": 1 << 20, "cuda": 1 << 25}
_LEAST = 1 << 8  # elements of S
_ROWS = 512  # of a block at most, before it grows along other modes
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


class Blocks:
    """The blocks of a program. `known` are the labels of coordinates by node, `limit` the most elements of a block."""

    def __init__(
        self, program: CascadeProgram, frame: CascadeFrame, written: Between, known: Mapping[fx.Node, Label], limit: int
    ) -> None:
        self.program, self.frame, self.known, self.limit = program, frame, known, limit
        large = [node for node in written.reductions if written.large(node)]
        self._columns = frame.columns.union(*map(written.reduced, large))  # that a block is made along last
        self._peaks = {node: CascadeTarget(node, PEAK, node) for stage in program.stages for node in stage.peaks}
        self._cuts: dict[tuple[Stage, bool], list[Box]] = {}

    # -- how large they are ----------------------------------------------------------------------------------------

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

    def cut(self, stage: Stage, values: Mapping[fx.Node, Tensor], in_rows: bool = False) -> Sequence[Box]:
        """The boxes of a stage, but for those that are masked out by coordinates, and by whole numbers on the CPU."""
        known: dict[fx.Node, Any] = {
            node: each.numpy()
            for node in self.program.between.inputs[1:]
            if node not in self.known and (each := values.get(node)) is not None
            and each.device.type == "cpu" and each.dtype in _LOOKED_AT and 0 < each.numel() <= self.limit
        }  # fmt: skip
        if not known and (place := (stage, in_rows)) in self._cuts:
            return self._cuts[place]
        blocks = self.rows_extents if in_rows else self.extents
        found = [box for box, _ in kept(self.program, stage, self.frame, blocks, known | dict(self.known))]
        if not known:
            self._cuts[place] = found
        return found

    # -- compiled loops --------------------------------------------------------------------------------------------

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

    # -- a call ----------------------------------------------------------------------------------------------------

    def run(
        self, tensors: Tensors, given: Values, compiled: Callable[[Stage], StageRows | None] = lambda stage: None
    ) -> Values:
        """Every value that passes make whole, by its node; D, in sums not yet rounded, by `PRODUCT`.

        `given` has operands and coordinates along S; `compiled` the rows of a stage where those run it.
        """
        values, program, frame = dict(given), self.program, self.frame
        run_whole(program.prelude, program.between, frame, values)
        for stage in program.stages:
            states = {node: State(self._peaks[node], program, frame) for node in stage.peaks}
            for each in stage.targets:
                states[PRODUCT if each.kind == "product" else each.gives] = State(each, program, frame)
            if (rows := compiled(stage)) is not None:
                rows.run(tensors, values, states, self.cut(stage, given, in_rows=True))
            else:
                for box in self.cut(stage, given):
                    self._add(stage, tensors, values, states, box)
            for key, state in states.items():
                values[key] = state.result()
            run_whole(stage.tail, program.between, frame, values)
        return values

    def _add(
        self, stage: Stage, tensors: Tensors, values: Values, states: Mapping[fx.Node, State], box: Box
    ) -> None:
        """Take a block into the states, into peaks first."""
        a, b, c = tensors
        inputs, scores = self.inputs(stage, values, box), self.frame.scores(a, b, box)
        scales: dict[fx.Node | None, Tensor | None] = {None: None}  # factors that sums over peaks are rescaled by
        if stage.peaks:
            found = {**inputs, self.program.between.inputs[0]: scores}
            sources = tuple(node.all_input_nodes[0] for node in stage.peaks)
            recipe_of(stage.first, frozenset(sources), self.program.between, self.frame).run(found)
            for node, source in zip(stage.peaks, sources, strict=True):
                inputs[node], scales[node] = states[node].grow(found[source], box)
                if source in stage.first:  # it is there for the block's own operations
                    inputs[source] = found[source]
        found = self.made(stage, scores, inputs)
        for state in states.values():
            target = state.target
            if target.kind != PEAK:
                state.add(found[target.node], c, box, scales[target.scale])

    def inputs(self, stage: Stage, values: Mapping[fx.Node, Tensor], box: Box) -> Values:
        """Blocks of operands, coordinates and known values that a stage reads; of peaks where they are known."""
        nodes = (*self.program.between.inputs[1:], *stage.known, *stage.peaks)
        return {node: self.frame.place(values[node], box) for node in nodes if node in values}

    def made(self, stage: Stage, scores: Tensor, inputs: Values) -> Values:
        """The values of a block of the stage's targets, from a block of S."""
        found = {**inputs, self.program.between.inputs[0]: scores}
        nodes = tuple(node for node in stage.nodes if node not in inputs)
        targets = frozenset(target.node for target in stage.targets)
        recipe_of(nodes, targets, self.program.between, self.frame).run(found)
        return found


def block_extents(
    order: Sequence[Label], extents: Mapping[Label, int], whole: Collection[Label], columns: Collection[Label],
    limit: int, square: bool,
) -> dict[Label, int]:  # fmt: skip
    """How many indices a block has along each label of `order`, outermost first.

    `columns` are labels that the second contraction or a reduction sums; blocks grow along rows, columns and the rest.
    `square` blocks, as long as they are wide, are those that masks leave out more of.
    """
    found = {label: (extents[label] if label in whole else min(extents[label], 1)) for label in order}
    rows = [label for label in reversed(order) if label not in columns and label not in whole]
    summed = [label for label in reversed(order) if label in columns and label not in whole]
    longest = min(_ROWS, math.isqrt(limit))
    wide = longest if square else limit
    for labels, most in ((rows, longest), (summed, wide), (rows, wide)):
        for label in labels:
            inner = math.prod(max(found[name], 1) for name in labels if name != label)
            found[label] = _grown(found, label, extents[label], min(limit, max(most // inner, 1)), limit)
            if found[label] < extents[label]:
                break
    for label in reversed(order):
        found[label] = _grown(found, label, extents[label], wide, limit)
    return {label: _even(extents[label], size) for label, size in found.items()}


def nested(
    blocks: Mapping[Label, int], extents: Mapping[Label, int], groups: Sequence[Sequence[Label]]
) -> dict[Label, int]:
    """Blocks along whose groups of labels only the outermost is cut, so that each group of a block lies as one."""
    found = dict(blocks)
    for labels in groups:
        cut = False
        for label in reversed(labels):
            found[label] = min(found[label], 1) if cut else found[label]
            cut |= found[label] < extents[label]
    return found


def _grown(found: Mapping[Label, int], label: Label, extent: int, most: int, limit: int) -> int:
    """As many indices of a label as a block has room for, at most so many."""
    others = math.prod(max(size, 1) for name, size in found.items() if name != label)
    return max(min(extent, most, limit // others), found[label])


def _even(extent: int, size: int) -> int:
    """A block size that leaves no small rest: as many blocks, nearly equal, by multiples of 16 where there is room."""
    if not 0 < size < extent:
        return size
    fair = -(-extent // -(-extent // size))
    return min(-(-fair // 16) * 16, size)
