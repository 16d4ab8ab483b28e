"""A schedule at work: loops over blocks, products summed in an accumulator, and the rest done while it is in cache."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

import torch

from weft.cpu.blocking import Span, group_spans
from weft.cpu.exactness import exact_products, shortened
from weft.cpu.index_groups import Anatomy, dissect
from weft.cpu.products import multiplier
from weft.cpu.reading import BlockReader, Scratch
from weft.cpu.schedule import CpuSchedule, allocate, buffers
from weft.cpu.workers import share
from weft.cpu.writing import BlockWriter
from weft.planner.schedule import AuxTensors, Launch, Scalar, Target
from weft.spec import Contraction, Role

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
    might_shorten = anatomy.accumulate in (torch.float32, torch.complex64) and not anatomy.elementwise

    def run(call: Call) -> None:
        # Fewer threads than were planned for are a wish of the caller's.
        if workers == 1 or torch.get_num_threads() < workers * threads:
            worker.run(tasks, call)
        else:
            share(lambda drawn: worker.run(drawn, call), tasks, workers, threads)

    def launch(
        a: torch.Tensor,
        b: torch.Tensor,
        c: torch.Tensor | None,
        d: torch.Tensor,
        alpha: Scalar,
        beta: Scalar,
        aux: AuxTensors = (),
    ) -> None:
        call = Call(a, b, c if beta != 0 else None, d, alpha, beta, aux)
        if might_shorten and shortened():
            with exact_products():
                run(call)
        else:
            run(call)

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


class Call(NamedTuple):
    """What differs from one call to the next; `c` is None where it is not read."""

    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor | None
    d: torch.Tensor
    alpha: Scalar
    beta: Scalar
    aux: AuxTensors


class _Worker:
    """What is the same for every call, worked out once; `run` computes blocks in a workspace of its own."""

    def __init__(self, anatomy: Anatomy, schedule: CpuSchedule) -> None:
        self.anatomy = anatomy
        self.sizes = buffers(anatomy, schedule)
        self.rows_inside = schedule.inner is schedule.rows
        self.left_is_a = schedule.rows is Role.M
        self.reader_a = BlockReader(anatomy, schedule, anatomy.a)
        self.reader_b = BlockReader(anatomy, schedule, anatomy.b)
        self.multiplier = multiplier(anatomy, schedule)
        algebra = anatomy.contraction.algebra
        self.identity = 0 if algebra is None else algebra.identity  # an empty sum
        self.writer = BlockWriter(anatomy, schedule)
        self.sums = group_spans(anatomy, schedule.ordered(anatomy.k), dict(enumerate(schedule.tile)))

    def run(self, tasks: Iterable[Task], call: Call) -> None:
        a, b, c, d, alpha, beta, aux = call
        sizes, anatomy, rows_inside = self.sizes, self.anatomy, self.rows_inside
        shared = [allocate(size, torch.uint8) for size in (sizes.raw, sizes.stage, sizes.wide, sizes.part)]
        read_a = self.reader_a.bind(a, Scratch(allocate(sizes.a, anatomy.a.compute), *shared), aux)
        read_b = self.reader_b.bind(b, Scratch(allocate(sizes.b, anatomy.b.compute), *shared), aux)
        read_left, read_right = (read_a, read_b) if self.left_is_a else (read_b, read_a)
        accumulator = self.writer.accumulator(d, allocate(sizes.accumulator, anatomy.accumulate))
        multiply = self.multiplier(*(allocate(size, anatomy.accumulate) for size in (sizes.table, sizes.partial)))
        finish = self.writer.finisher(c, d, shared[0], shared[1], alpha, beta, aux)
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
                    block.modes.fill_(self.identity)
                finish(batch, rows, columns, block)
