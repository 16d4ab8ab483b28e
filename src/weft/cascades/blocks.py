"""A program run by blocks: no more of S is in memory than one. Blocks that masks leave out are not made."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, fx

from weft.base.caches import cached_property
from weft.cascades.between import Between
from weft.cascades.frame import Box, narrowed, size_of
from weft.cascades.lowering import PEAK
from weft.cascades.masks import kept
from weft.cascades.operations import extreme, finite, recipe, reduce_whole, run_whole, worst
from weft.cascades.program import PRODUCT, CascadeProgram, CascadeTarget, Stage, Tensors, Values
from weft.cascades.row_text import NotInRows
from weft.cascades.rows import LIMIT as ROWS_LIMIT
from weft.cascades.rows import MOST_BOXES, StageRows
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


class State:
    """A target: its sums, extremes and places so far, or what blocks have stored."""

    def __init__(self, target: CascadeTarget, program: CascadeProgram) -> None:
        self.target, self.frame, kind = target, program.frame, target.kind
        frame = program.frame
        between, dtype = program.between, target.gives.meta["dtype"]
        start: Any = 0
        shape = frame.shape(between.modes[target.gives])
        self.labels = () if kind in ("product", "store") else between.reduced(target.gives)
        #: Labels along which all blocks make the same.
        self.idle = [] if kind in ("product", PEAK) else idle_labels(target, program)
        if kind == "product":
            shape = tuple(frame.extents[label] for label in frame.second.result)
            dtype = frame.products.accumulate
            start = 0 if frame.algebra is None else frame.algebra.identity
        elif kind == "store":
            dtype = frame.stored_type(target.node, between)
        elif kind in (PEAK, "amax", "amin"):
            start = worst(kind, dtype)
        self.total = torch.full(shape, start, dtype=dtype, device=frame.device)
        self.best: Tensor | None = None
        if kind in ("argmax", "argmin"):
            source = target.node.meta["dtype"]
            self.best = torch.full(shape, worst(kind, source), dtype=source, device=frame.device)

    def grow(self, value: Tensor, box: Box) -> tuple[Tensor, Tensor | None]:
        """Take a block into a peak: that to subtract, and the factor for what was summed over the one before.

        The factor is None in the first block along the reduced modes.
        """
        frame, place = self.frame, self.frame.place(self.total, box)
        best = extreme("amax", value.detach(), frame.dims(self.labels))
        if all(box[label][0] == 0 for label in self.labels):
            place.copy_(best)
            return finite(best), None
        new = torch.maximum(place, best)
        safe = finite(new)
        scale = torch.where(place == -torch.inf, 0.0, torch.exp(finite(place) - safe))
        place.copy_(new)
        return safe, scale

    def add(self, value: Tensor, c: Any, box: Box, scale: Tensor | None) -> None:
        """Take a block's value in; what is there is rescaled first."""
        kind, frame = self.target.kind, self.frame
        if any(box[label][0] for label in self.idle):
            return
        if kind == "product":
            self._multiply(value, c, box, scale)
            return
        place = frame.place(self.total, box)
        if kind == "store":
            place.copy_(value)
            return
        dims, value = frame.dims(self.labels), frame.along(value, self.labels, box)
        if kind == "sum":
            if scale is not None:
                place.mul_(scale)
            place.add_(reduce_whole("sum", value, dims, 0))
        elif kind in ("amax", "amin"):
            best = torch.maximum if kind == "amax" else torch.minimum
            place.copy_(best(place, extreme(kind, value, dims)))
        elif value.shape[dims[0]]:
            self._choose(place, value, dims[0], box)

    def _multiply(self, value: Tensor, c: Tensor, box: Box, scale: Tensor | None) -> None:
        frame, roles = self.frame, self.frame.second
        place = narrowed(self.total, roles.result, box)
        multiply = frame.products if frame.algebra is None else frame.algebra
        found = multiply(roles, frame.met(value, box), narrowed(c, roles.y, box))
        if frame.algebra is not None:
            place.copy_(frame.algebra.joined(place, found))
            return
        if scale is not None:
            place.mul_(frame.on_d(scale))
        place.add_(found)

    def _choose(self, place: Tensor, value: Tensor, dim: int, box: Box) -> None:
        assert self.best is not None
        largest, start = self.target.kind == "argmax", box[self.labels[0]][0]
        known = self.frame.place(self.best, box)
        best, where = value.max(dim, keepdim=True) if largest else value.min(dim, keepdim=True)
        better = best > known if largest else best < known
        if best.is_floating_point():
            better = better | (best.isnan() & ~known.isnan())
        place.copy_(torch.where(better, where + start, place))
        known.copy_(torch.where(better, best, known))

    def result(self) -> Tensor:
        """The value, whole; a peak is 0 where there is none."""
        return finite(self.total) if self.target.kind == PEAK else self.total


def idle_labels(target: CascadeTarget, program: CascadeProgram) -> list[Label]:
    """Labels along which all blocks make the same value: that of the first is taken. Blocks have others whole."""
    between = program.between
    reduced = () if target.kind in ("product", "store") else between.reduced(target.gives)
    known = {*between.modes[target.gives], *reduced, *program.whole}
    return [label for label in program.frame.order if label not in known]


class Blocks:
    """The blocks of a program; `limit` is the most elements of a block."""

    def __init__(self, program: CascadeProgram, written: Between, limit: int) -> None:
        self.program, self.frame, self.limit = program, program.frame, limit
        large = [node for node in written.reductions if written.large(node)]
        self._columns = self.frame.columns.union(*map(written.reduced, large))  # that a block is made along last
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
        frame, program = self.frame, self.program
        return block_extents(frame.order, frame.extents, program.whole, self._columns, limit, bool(program.known))

    def cut(self, stage: Stage, values: Mapping[fx.Node, Tensor], in_rows: bool = False) -> Sequence[Box]:
        """The boxes of a stage, but for those that are masked out by coordinates, and by whole numbers on the CPU."""
        known: dict[fx.Node, Any] = {
            node: each.numpy()
            for node in self.program.between.inputs[1:]
            if node not in self.program.known and (each := values.get(node)) is not None
            and each.device.type == "cpu" and each.dtype in _LOOKED_AT and 0 < each.numel() <= self.limit
        }  # fmt: skip
        if not known and (place := (stage, in_rows)) in self._cuts:
            return self._cuts[place]
        blocks = self.rows_extents if in_rows else self.extents
        found = [box for box, _ in kept(self.program, stage, blocks, known | dict(self.program.known))]
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
            return StageRows(self.program, stage)
        except NotInRows as error:
            return str(error)

    # -- a call ----------------------------------------------------------------------------------------------------

    def run(
        self, tensors: Tensors, given: Values, compiled: Mapping[Stage, StageRows] = MappingProxyType({})
    ) -> Values:
        """Every value that passes make whole, by its node; D, in sums not yet rounded, by `PRODUCT`.

        `given` has operands and coordinates along S; `compiled` the rows of stages that those run.
        """
        values, program = dict(given), self.program
        run_whole(program.prelude, program, values)
        for stage in program.stages:
            states = {node: State(self._peaks[node], program) for node in stage.peaks}
            for each in stage.targets:
                states[PRODUCT if each.kind == "product" else each.gives] = State(each, program)
            if (rows := compiled.get(stage)) is not None:
                rows.run(tensors, values, states, self.cut(stage, given, in_rows=True))
            else:
                for box in self.cut(stage, given):
                    self._add(stage, tensors, values, states, box)
            for key, state in states.items():
                values[key] = state.result()
            run_whole(stage.tail, program, values)
        return values

    def _add(self, stage: Stage, tensors: Tensors, values: Values, states: Mapping[fx.Node, State], box: Box) -> None:
        """Take a block into the states, into peaks first."""
        a, b, c = tensors
        inputs, scores = self.inputs(stage, values, box), self.frame.scores(a, b, box)
        scales: dict[fx.Node | None, Tensor | None] = {None: None}  # factors that sums over peaks are rescaled by
        if stage.peaks:
            found = {**inputs, self.program.between.inputs[0]: scores}
            sources = tuple(node.all_input_nodes[0] for node in stage.peaks)
            recipe(stage.first, frozenset(sources), self.program)(found)
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
        recipe(nodes, targets, self.program)(found)
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
