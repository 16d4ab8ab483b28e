"""Blocks of A and B on their way into the product: used where they lie, or packed.

Packing is one strided copy of a block into a small contiguous workspace. On the way values are rounded to the product
type, given to the operand's function, widened to the compute type, and summed over modes that the other operand lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import torch

from weft.cpu.aux_operands import AuxViews, applied
from weft.cpu.blocking import Span, collapsed_stride, group_spans
from weft.cpu.gather_tables import Table, tables
from weft.cpu.index_groups import Anatomy, Operand
from weft.cpu.schedule import CpuSchedule
from weft.planner.schedule import AuxTensors
from weft.spec import Role

Extents: TypeAlias = tuple[int, ...]
# The (batch, free, k) parts of a block -> the block as the product reads it.
Read: TypeAlias = Callable[[Span, Span, Span], torch.Tensor]


class Scratch(NamedTuple):
    """The memory in which one call packs one operand; empty where it needs none."""

    packed: torch.Tensor
    raw: torch.Tensor  # bytes
    stage: torch.Tensor  # bytes
    wide: torch.Tensor  # bytes
    part: torch.Tensor  # bytes


Spans: TypeAlias = Sequence[Span]
# (a view of the operand, destination, destination flat, spans of the block)
Evaluate: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Spans], None]


class _Packed(NamedTuple):
    """The packed block of one shape: as the modes it was copied from, flat, and as the product reads it."""

    modes: torch.Tensor
    flat: torch.Tensor
    factor: torch.Tensor


Pack: TypeAlias = Callable[[_Packed, int, Spans], None]  # (block, offset of its first element, its spans)


class BlockReader:
    """How the blocks of one operand are read. Worked out once; `bind` makes the function for one call."""

    def __init__(self, anatomy: Anatomy, schedule: CpuSchedule, operand: Operand) -> None:
        self.operand = operand
        self.elementwise = anatomy.elementwise
        self.at = 0 if operand.name == "A" else 1  # its place among `Span.at`
        self.left = (operand.name == "A") == (schedule.rows is Role.M)
        self.reading = schedule.reading(operand)
        tile = dict(enumerate(schedule.tile))
        groups = [schedule.ordered(group) for group in (anatomy.batch, operand.free, anatomy.k)]
        self.strides = [tuple(operand.strides[at] for at in group) for group in groups]
        self.steps = [collapsed_stride(group, tile, operand.strides) for group in groups]
        self.batched = schedule.block_size(anatomy.batch) > 1
        self.others = len(anatomy.n if operand.name == "A" else anatomy.m)
        self.tables: Mapping[Extents, Table] = {}
        if self.reading.by_table:
            order = self._block_order(*groups)
            self.tables = tables(order, schedule.tile, anatomy.extents, operand.strides)
        alone, block = schedule.ordered(operand.alone), self._block_order(*groups)
        self.aux_args = AuxViews(
            anatomy.contraction, operand.args, (*block, *alone) if self.reading.alone_inner else (*alone, *block)
        )
        self.alone_strides = tuple(operand.strides[at] for at in alone)
        self.alone_spans = group_spans(anatomy, alone, tile) if alone else []

    def bind(self, tensor: torch.Tensor, scratch: Scratch, aux: AuxTensors = ()) -> Read:
        if not self.reading.packed:
            return self._elements_of(tensor) if self.elementwise else self._matrices_of(tensor)
        return self._packing(tensor, scratch, aux)

    def _elements_of(self, tensor: torch.Tensor) -> Read:
        """The block where it lies, with one dimension for each mode of D: of extent 1 where the operand lacks it."""
        ones, zeros = (1,) * self.others, (0,) * self.others
        batch, free, _ = self.strides
        strides = (*batch, *free, *zeros) if self.left else (*batch, *zeros, *free)
        base, at, left = tensor.storage_offset(), self.at, self.left

        def read(b: Span, f: Span, _: Span) -> torch.Tensor:
            shape = (*b.extents, *f.extents, *ones) if left else (*b.extents, *ones, *f.extents)
            return tensor.as_strided(shape, strides, base + b.at[at] + f.at[at])

        return read

    def _matrices_of(self, tensor: torch.Tensor) -> Read:
        """The block where it lies, its groups of modes collapsed."""
        base, at, left, batched = tensor.storage_offset(), self.at, self.left, self.batched
        batch_step, free_step, sum_step = (step or 0 for step in self.steps)

        def read(b: Span, f: Span, k: Span) -> torch.Tensor:
            # A dimension of one element still needs a stride that a matrix could have.
            free, inner = free_step or k.size * sum_step or 1, sum_step or f.size * free_step or 1
            shape, strides = ((f.size, k.size), (free, inner)) if left else ((k.size, f.size), (inner, free))
            start = base + b.at[at] + f.at[at] + k.at[at]
            if batched:
                return tensor.as_strided((b.size, *shape), (batch_step, *strides), start)
            return tensor.as_strided(shape, strides, start)

        return read

    def _packing(self, tensor: torch.Tensor, scratch: Scratch, aux: AuxTensors) -> Read:
        packed: dict[tuple[Extents, Extents, Extents], _Packed] = {}
        base, at = int(tensor.storage_offset()), self.at
        evaluate = self._evaluating(scratch, aux)
        if self.alone_spans:
            pack = self._summing(tensor, scratch, evaluate)
        elif self.tables and not (tensor.is_conj() or tensor.is_neg()):
            pack = self._gathering(tensor, scratch, evaluate)
        else:
            pack = self._copying(tensor, evaluate)
        last: tuple[Span, Span, Span] | None = None
        held: torch.Tensor

        def read(b: Span, f: Span, k: Span) -> torch.Tensor:
            nonlocal last, held
            if last is not None and last[0] is b and last[1] is f and last[2] is k:
                return held  # the same block as last time: it is still there
            shapes = (b.extents, f.extents, k.extents)
            block = packed.get(shapes)
            if block is None:
                block = packed[shapes] = self._shaped(scratch.packed, b, f, k)
            pack(block, base + b.at[at] + f.at[at] + k.at[at], (b, f, k))
            last, held = (b, f, k), block.factor
            return held

        return read

    def _shaped(self, buffer: torch.Tensor, b: Span, f: Span, k: Span) -> _Packed:
        flat = buffer[: b.size * f.size * k.size]
        modes = flat.view(self._block_order(b.extents, f.extents, k.extents))
        if self.elementwise:
            ones = (1,) * self.others
            shape = (*b.extents, *f.extents, *ones) if self.left else (*b.extents, *ones, *f.extents)
            return _Packed(modes, flat, flat.view(shape))
        factor = flat.view(self._block_order((b.size,), (f.size,), (k.size,)))
        if self.reading.sum_inner != self.left:
            factor = factor.transpose(1, 2)
        return _Packed(modes, flat, factor if self.batched else factor[0])

    def _block_order(self, batch: Extents, free: Extents, sums: Extents) -> Extents:
        """Dimensions of a packed block: the contiguous group last."""
        return (*batch, *free, *sums) if self.reading.sum_inner else (*batch, *sums, *free)

    def _copying(self, tensor: torch.Tensor, evaluate: Evaluate) -> Pack:
        strides = self._block_order(*self.strides)

        def copy(block: _Packed, offset: int, spans: Spans) -> None:
            evaluate(tensor.as_strided(block.modes.shape, strides, offset), block.modes, block.flat, spans)

        return copy

    def _gathering(self, tensor: torch.Tensor, scratch: Scratch, evaluate: Evaluate) -> Pack:
        """The same element by element, from a table of where they lie."""
        operand = self.operand
        raw = scratch.raw.view(operand.storage) if operand.storage != operand.compute or operand.staged else None

        def gather(block: _Packed, offset: int, spans: Spans) -> None:
            table = self.tables[tuple(block.modes.shape)]
            if raw is None:
                table.gather(tensor, offset, block.flat)
                evaluate(block.modes, block.modes, block.flat, spans)
            else:
                values = raw[: block.flat.numel()]
                table.gather(tensor, offset, values)
                evaluate(values.view(block.modes.shape), block.modes, block.flat, spans)

        return gather

    def _summing(self, tensor: torch.Tensor, scratch: Scratch, evaluate: Evaluate) -> Pack:
        """Pack the block once for each part of the operand's own modes, and add up."""
        compute, inner = self.operand.compute, self.reading.alone_inner
        strides = self._block_order(*self.strides)
        strides = (*strides, *self.alone_strides) if inner else (*self.alone_strides, *strides)
        wide, partial = scratch.wide.view(compute), scratch.part.view(compute)
        directly, rank = self.operand.sums_where_it_lies, len(strides) - len(self.alone_strides)
        summed = tuple(range(rank, len(strides)) if inner else range(len(self.alone_strides)))

        def pack(block: _Packed, offset: int, spans: Spans) -> None:
            size, shape = block.flat.numel(), tuple(block.modes.shape)
            for span in self.alone_spans:
                source_shape = (*shape, *span.extents) if inner else (*span.extents, *shape)
                source = tensor.as_strided(source_shape, strides, offset + span.at[self.at])
                first = span is self.alone_spans[0]
                total = block.flat if first else partial[:size]
                if directly:
                    torch.sum(source, summed, dtype=compute, out=total.view(shape))
                else:
                    flat = wide[: size * span.size]
                    evaluate(source, flat.view(source_shape), flat, (*spans, span))
                    table = flat.view(size, span.size) if inner else flat.view(span.size, size)
                    torch.sum(table, 1 if inner else 0, dtype=compute, out=total)
                if not first:
                    block.flat.add_(total)

        return pack

    def _evaluating(self, scratch: Scratch, aux: AuxTensors) -> Evaluate:
        """From a view of the operand to its values in the compute type."""
        operand = self.operand
        value, conjugate = operand.value, operand.conjugate
        function = None if operand.function is None else applied(operand.function, self.aux_args, aux)
        stage = scratch.stage.view(value) if operand.staged else None

        def evaluate(source: torch.Tensor, modes: torch.Tensor, flat: torch.Tensor, spans: Spans) -> None:
            if conjugate:
                source = source.conj()
            if stage is None:
                if source is not modes:
                    modes.copy_(source)
                if function is not None:
                    result = function(flat, modes.shape, spans)
                    (flat if result.dim() == 1 else modes).copy_(result)
                return
            rounded = stage[: flat.numel()]
            rounded.view(modes.shape).copy_(source)
            result = rounded if function is None else function(rounded, modes.shape, spans).to(value)
            (flat if result.dim() == 1 else modes).copy_(result)

        return evaluate
