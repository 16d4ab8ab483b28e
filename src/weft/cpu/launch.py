"""A schedule at work: loops over blocks, products summed in an accumulator, and the rest done while it is in cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch

from weft.cpu.anatomy import Anatomy, dissect
from weft.cpu.blocking import Span, collapsed_stride, group_spans
from weft.cpu.products import multiplier
from weft.cpu.reading import BlockReader, Extents, Scratch
from weft.cpu.schedule import CpuSchedule, allocate, buffers, stages_addend
from weft.plan.schedule import Launch, Scalar, Target
from weft.spec import Contraction, Role

# (batch, rows, columns) parts of a block of D, and its sums.
Finish: TypeAlias = Callable[[Span, Span, Span, "_Block"], None]


class _Block(NamedTuple):
    """A block's accumulator: as the product writes it, and with one dimension for each mode."""

    sums: torch.Tensor
    modes: torch.Tensor


def build(contraction: Contraction, schedule: CpuSchedule, target: Target) -> Launch:
    """The function that runs `schedule` on tensors lying as `contraction` says.

    It allocates `schedule.workspace_bytes` a call besides what the user's functions allocate for a block at a time,
    keeps no state between calls, and may run in several threads at once.
    """
    anatomy = dissect(contraction)
    tile = dict(enumerate(schedule.tile))
    groups = {role: schedule.ordered(anatomy.of(role)) for role in Role}
    spans = {role: group_spans(anatomy, groups[role], tile) for role in Role}
    outer_role = Role.N if schedule.inner is Role.M else Role.M
    rows_inside = schedule.inner is schedule.rows
    batch_spans, sum_spans = spans[Role.BATCH], spans[Role.K]
    outer_spans, inner_spans = spans[outer_role], spans[schedule.inner]

    sizes = buffers(anatomy, schedule)
    left, right = (anatomy.a, anatomy.b) if schedule.rows is Role.M else (anatomy.b, anatomy.a)
    left_reader, right_reader = (BlockReader(anatomy, schedule, operand) for operand in (left, right))
    multiply = multiplier(anatomy, schedule)
    writer = _Writer(anatomy, schedule)
    left_is_a, empty_sum, accumulate = left is anatomy.a, anatomy.empty_sum, anatomy.accumulate

    def launch(
        a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, d: torch.Tensor, alpha: Scalar, beta: Scalar
    ) -> None:
        shared = [allocate(size, torch.uint8) for size in (sizes.stage, sizes.wide, sizes.part)]
        scratch_a = Scratch(allocate(sizes.a, anatomy.a.compute), *shared)
        scratch_b = Scratch(allocate(sizes.b, anatomy.b.compute), *shared)
        sources = ((a, scratch_a), (b, scratch_b)) if left_is_a else ((b, scratch_b), (a, scratch_a))
        read_left, read_right = left_reader.bind(*sources[0]), right_reader.bind(*sources[1])
        accumulator = writer.accumulator(d, allocate(sizes.accumulator, accumulate))
        finish = writer.finisher(c if beta != 0 else None, d, shared[0], alpha, beta)

        for batch in batch_spans:
            for outer in outer_spans:
                for inner in inner_spans:
                    rows, columns = (inner, outer) if rows_inside else (outer, inner)
                    block = accumulator(batch, rows, columns)
                    if empty_sum:
                        block.modes.zero_()
                    else:
                        first = True
                        for sums in sum_spans:
                            multiply(block.sums, read_left(batch, rows, sums), read_right(batch, columns, sums), first)
                            first = False
                    finish(batch, rows, columns, block)

    return launch


class _Writer:
    """How sums become elements of D: where they are collected, and what is done to them at last."""

    def __init__(self, anatomy: Anatomy, schedule: CpuSchedule) -> None:
        self.anatomy = anatomy
        self.schedule = schedule
        columns = schedule.columns
        groups = [schedule.ordered(anatomy.of(role)) for role in (Role.BATCH, schedule.rows, columns)]
        tile = dict(enumerate(schedule.tile))
        order = tuple(at for group in groups for at in group)
        self.strides_d = tuple(anatomy.strides_d[at] for at in order)
        self.strides_c = tuple(anatomy.strides_c[at] for at in order)
        self.steps_d = [collapsed_stride(group, tile, anatomy.strides_d) or 0 for group in groups]
        self.batched = schedule.block_size(anatomy.batch) > 1

    def accumulator(self, d: torch.Tensor, buffer: torch.Tensor) -> Callable[[Span, Span, Span], _Block]:
        if self.schedule.in_place:
            return self._in_place(d)
        known: dict[tuple[Extents, Extents, Extents], _Block] = {}
        elementwise, batched = self.anatomy.elementwise, self.batched

        def block(b: Span, r: Span, c: Span) -> _Block:
            shapes = (b.extents, r.extents, c.extents)
            found = known.get(shapes)
            if found is None:
                flat = buffer[: b.size * r.size * c.size]
                modes = flat.view((*b.extents, *r.extents, *c.extents))
                matrix = flat.view((b.size, r.size, c.size) if batched else (r.size, c.size))
                found = known[shapes] = _Block(modes if elementwise else matrix, modes)
            return found

        return block

    def _in_place(self, d: torch.Tensor) -> Callable[[Span, Span, Span], _Block]:
        base, strides, elementwise, batched = d.storage_offset(), self.strides_d, self.anatomy.elementwise, self.batched
        batch_step, row_step, column_step = self.steps_d

        def block(b: Span, r: Span, c: Span) -> _Block:
            offset = base + b.at.d + r.at.d + c.at.d
            modes = d.as_strided((*b.extents, *r.extents, *c.extents), strides, offset)
            if elementwise:
                return _Block(modes, modes)
            shape, steps = (r.size, c.size), (row_step or c.size, column_step or 1)
            if batched:
                shape, steps = (b.size, *shape), (batch_step, *steps)
            return _Block(d.as_strided(shape, steps, offset), modes)

        return block

    def finisher(
        self, c: torch.Tensor | None, d: torch.Tensor, stage: torch.Tensor, alpha: Scalar, beta: Scalar
    ) -> Finish:
        """alpha * sums + beta * c_fn(C), the epilogue, and the copy to D: in that order, on one block."""
        contraction, anatomy, in_place = self.anatomy.contraction, self.anatomy, self.schedule.in_place
        epilogue, repeat, base = contraction.epilogue, anatomy.repeat, d.storage_offset()
        strides = self.strides_d
        addend = self._addend(c, stage) if c is not None else None

        def finish(b: Span, r: Span, k: Span, block: _Block) -> None:
            values = block.modes
            if repeat != 1:
                values.mul_(repeat)
            if alpha != 1:
                values.mul_(alpha)
            if addend is not None:
                values.add_(addend(b, r, k), alpha=beta)
            if epilogue is not None:
                values = epilogue(values)
            if not in_place:
                d.as_strided(block.modes.shape, strides, base + b.at.d + r.at.d + k.at.d).copy_(values)
            elif epilogue is not None:
                block.modes.copy_(values)

        return finish

    def _addend(self, c: torch.Tensor, stage: torch.Tensor) -> Callable[[Span, Span, Span], torch.Tensor]:
        """c_fn(C) of one block in the accumulator's type, read from C only now."""
        accumulate, function = self.anatomy.accumulate, self.anatomy.contraction.c_fn
        base, strides = c.storage_offset(), self.strides_c
        copies = stage.view(accumulate) if stages_addend(self.anatomy) else None

        def block(b: Span, r: Span, k: Span) -> torch.Tensor:
            shape = (*b.extents, *r.extents, *k.extents)
            values = c.as_strided(shape, strides, base + b.at.c + r.at.c + k.at.c)
            if copies is None:
                return values
            values = copies[: b.size * r.size * k.size].view(shape).copy_(values)
            return values if function is None else function(values).to(accumulate)

        return block
