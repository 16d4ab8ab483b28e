"""A schedule at work: loops over blocks, products summed in an accumulator, and the rest done while it is in cache."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

import torch

from weft.cpu.anatomy import Anatomy, dissect
from weft.cpu.blocking import Span, collapsed_stride, group_spans
from weft.cpu.products import multiplier
from weft.cpu.reading import BlockReader, Extents, Scratch
from weft.cpu.schedule import CpuSchedule, allocate, buffers, stages_addend
from weft.cpu.workers import share
from weft.plan.schedule import Launch, Scalar, Target
from weft.spec import Contraction, Role

# (batch, rows, columns) parts of a block of D, and its sums.
Finish: TypeAlias = Callable[[Span, Span, Span, "_Block"], None]


class _Block(NamedTuple):
    """A block's accumulator: as the product writes it, and with one dimension for each mode."""

    sums: torch.Tensor
    modes: torch.Tensor


# Blocks that one worker computes in a row: (batch part, part of the outer role, parts of the inner role).
Task: TypeAlias = tuple[Span, Span, Sequence[Span]]

TASKS_FOR_EACH_WORKER = 4  # at least so many where there are enough blocks, so that all end at about the same time


def build(contraction: Contraction, schedule: CpuSchedule, target: Target) -> Launch:
    """The function that runs `schedule` on tensors lying as `contraction` says.

    It allocates `schedule.workspace_bytes` a call besides what the user's functions allocate for a block at a time,
    keeps no state between calls, and may run in several threads at once.
    """
    anatomy = dissect(contraction)
    worker = _Worker(anatomy, schedule)
    tasks = _tasks(anatomy, schedule)
    workers, threads = schedule.workers, schedule.threads

    def launch(
        a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, d: torch.Tensor, alpha: Scalar, beta: Scalar
    ) -> None:
        c = c if beta != 0 else None
        # Fewer threads than were planned for are a wish of the caller's.
        if workers == 1 or torch.get_num_threads() < workers * threads:
            worker.run(tasks, a, b, c, d, alpha, beta)
        else:
            share(lambda drawn: worker.run(drawn, a, b, c, d, alpha, beta), tasks, workers, threads)

    return launch


def _tasks(anatomy: Anatomy, schedule: CpuSchedule) -> list[Task]:
    """All blocks of D. Within a task one operand's block stays the same where k is a single block."""
    tile = dict(enumerate(schedule.tile))
    outer_role = Role.N if schedule.inner is Role.M else Role.M
    batch, outer, inner = (
        group_spans(anatomy, schedule.ordered(anatomy.of(role)), tile)
        for role in (Role.BATCH, outer_role, schedule.inner)
    )
    wanted = TASKS_FOR_EACH_WORKER * schedule.workers if schedule.workers > 1 else 1
    rows_of_blocks = max(len(batch) * len(outer), 1)
    length = max(math.ceil(len(inner) * rows_of_blocks / wanted), 1) if rows_of_blocks < wanted else max(len(inner), 1)
    chunks = [inner[start : start + length] for start in range(0, len(inner), length)]
    return [(b, o, chunk) for b in batch for o in outer for chunk in chunks]


class _Worker:
    """What is the same for every call, worked out once; `run` computes blocks in a workspace of its own."""

    def __init__(self, anatomy: Anatomy, schedule: CpuSchedule) -> None:
        self.anatomy = anatomy
        self.sizes = buffers(anatomy, schedule)
        self.rows_inside = schedule.inner is schedule.rows
        self.left_is_a = schedule.rows is Role.M
        self.reader_a = BlockReader(anatomy, schedule, anatomy.a)
        self.reader_b = BlockReader(anatomy, schedule, anatomy.b)
        self.multiply = multiplier(anatomy, schedule)
        self.writer = _Writer(anatomy, schedule)
        self.sums = group_spans(anatomy, schedule.ordered(anatomy.k), dict(enumerate(schedule.tile)))

    def run(
        self,
        tasks: Iterable[Task],
        a: torch.Tensor,
        b: torch.Tensor,
        c: torch.Tensor | None,
        d: torch.Tensor,
        alpha: Scalar,
        beta: Scalar,
    ) -> None:
        sizes, anatomy, multiply, rows_inside = self.sizes, self.anatomy, self.multiply, self.rows_inside
        shared = [allocate(size, torch.uint8) for size in (sizes.stage, sizes.wide, sizes.part)]
        read_a = self.reader_a.bind(a, Scratch(allocate(sizes.a, anatomy.a.compute), *shared))
        read_b = self.reader_b.bind(b, Scratch(allocate(sizes.b, anatomy.b.compute), *shared))
        read_left, read_right = (read_a, read_b) if self.left_is_a else (read_b, read_a)
        accumulator = self.writer.accumulator(d, allocate(sizes.accumulator, anatomy.accumulate))
        finish = self.writer.finisher(c, d, shared[0], alpha, beta)
        parts = () if anatomy.empty_sum else self.sums

        for batch, outer, inners in tasks:
            for inner in inners:
                rows, columns = (inner, outer) if rows_inside else (outer, inner)
                block = accumulator(batch, rows, columns)
                first = True
                for part in parts:
                    multiply(block.sums, read_left(batch, rows, part), read_right(batch, columns, part), first)
                    first = False
                if first:
                    block.modes.zero_()  # an empty sum
                finish(batch, rows, columns, block)


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
