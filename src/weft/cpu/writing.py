"""Blocks of D on their way out of the product: where they are summed, and what is done to the sums at last."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import torch

from weft.cpu.algebra import operations
from weft.cpu.aux_operands import FIRST, AuxViews, applied
from weft.cpu.blocking import Span, collapsed_stride
from weft.cpu.gather_tables import Table, tables
from weft.cpu.index_groups import Anatomy
from weft.cpu.reading import Extents
from weft.cpu.schedule import CpuSchedule, stages_addend
from weft.planner.schedule import AuxTensors, Scalar
from weft.spec import Role


class Block(NamedTuple):
    """A block's accumulator: as the product writes it, and with one dimension for each mode."""

    sums: torch.Tensor
    modes: torch.Tensor


# (batch, rows, columns) parts of a block of D -> its accumulator; and the same with the sums in it -> D.
Accumulator: TypeAlias = Callable[[Span, Span, Span], Block]
Finish: TypeAlias = Callable[[Span, Span, Span, Block], None]
# (values of a block, its spans) -> what they become; the values themselves may be overwritten.
Step: TypeAlias = Callable[[torch.Tensor, Sequence[Span]], torch.Tensor]


class BlockWriter:
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
        contraction = anatomy.contraction
        self.aux_c = AuxViews(contraction, contraction.c_args, order)
        self.aux_d = AuxViews(contraction, contraction.epilogue_args, order)
        modes = contraction.modes
        self.outputs = [
            (place, tuple(modes[at].strides[FIRST + place] for at in order)) for place in contraction.outputs
        ]
        self.steps_d = [collapsed_stride(group, tile, anatomy.strides_d) or 0 for group in groups]
        self.batched = schedule.block_size(anatomy.batch) > 1
        self.tables: Mapping[Extents, Table] = {}
        if schedule.d_by_table:
            self.tables = tables(order, schedule.tile, anatomy.extents, anatomy.strides_d)

    def accumulator(self, d: torch.Tensor, buffer: torch.Tensor) -> Accumulator:
        if self.schedule.in_place:
            return self._in_place(d)
        known: dict[tuple[Extents, Extents, Extents], Block] = {}
        elementwise, batched = self.anatomy.elementwise, self.batched

        def block(b: Span, r: Span, c: Span) -> Block:
            shapes = (b.extents, r.extents, c.extents)
            found = known.get(shapes)
            if found is None:
                flat = buffer[: b.size * r.size * c.size]
                modes = flat.view((*b.extents, *r.extents, *c.extents))
                matrix = flat.view((b.size, r.size, c.size) if batched else (r.size, c.size))
                found = known[shapes] = Block(modes if elementwise else matrix, modes)
            return found

        return block

    def _in_place(self, d: torch.Tensor) -> Accumulator:
        base, strides, elementwise, batched = d.storage_offset(), self.strides_d, self.anatomy.elementwise, self.batched
        batch_step, row_step, column_step = self.steps_d

        def block(b: Span, r: Span, c: Span) -> Block:
            offset = base + b.at.d + r.at.d + c.at.d
            modes = d.as_strided((*b.extents, *r.extents, *c.extents), strides, offset)
            if elementwise:
                return Block(modes, modes)
            row, column = row_step or c.size, column_step or 1
            if batched:
                return Block(d.as_strided((b.size, r.size, c.size), (batch_step, row, column), offset), modes)
            return Block(d.as_strided((r.size, c.size), (row, column), offset), modes)

        return block

    def finisher(
        self,
        c: torch.Tensor | None,
        d: torch.Tensor,
        raw: torch.Tensor,
        stage: torch.Tensor,
        alpha: Scalar,
        beta: Scalar,
        aux: AuxTensors = (),
    ) -> Finish:
        """alpha * sums + beta * c_fn(C), the epilogue, and the copy to D: in that order, on one block."""
        anatomy, in_place = self.anatomy, self.schedule.in_place
        repeat, base = anatomy.repeat, int(d.storage_offset())
        strides, by_table = self.strides_d, self.tables
        converted = raw.view(d.dtype) if d.dtype != anatomy.accumulate else None
        add = self._adding(c, stage, beta, aux) if c is not None else None
        epilogue = self._epilogue(aux)

        def finish(b: Span, r: Span, k: Span, block: Block) -> None:
            values = block.modes
            if repeat != 1:
                values.mul_(repeat)
            if alpha != 1:
                values.mul_(alpha)
            if add is not None:
                values = add(values, (b, r, k))
            if epilogue is not None:
                values = epilogue(values, (b, r, k))
            if by_table:
                flat = values.reshape(-1)
                if converted is not None:
                    flat = converted[: flat.numel()].copy_(flat)
                elif flat.dtype != d.dtype:  # as the epilogue returned it
                    flat = flat.to(d.dtype)
                by_table[tuple(block.modes.shape)].scatter(flat, d, base + b.at.d + r.at.d + k.at.d)
            elif not in_place:
                d.as_strided(block.modes.shape, strides, base + b.at.d + r.at.d + k.at.d).copy_(values)
            elif epilogue is not None:
                block.modes.copy_(values)

        return finish

    def _epilogue(self, aux: AuxTensors) -> Step | None:
        """The epilogue of one block: what becomes D is returned, what it yields after that is written at once."""
        function = self.anatomy.contraction.epilogue
        if function is None:
            return None
        if not self.outputs:
            apply = applied(function, self.aux_d, aux)
            return lambda values, spans: apply(values, values.shape, spans)
        views = self.aux_d.bind(aux)
        targets = [(FIRST + place, aux[place], strides) for place, strides in self.outputs]

        def several(values: torch.Tensor, spans: Sequence[Span]) -> torch.Tensor:
            # D comes last: the others may be views of the sums, which may lie in D.
            first, *others = function(values, *views(values.shape, spans))
            for result, (place, target, strides) in zip(others, targets, strict=True):
                assert target is not None, "outputs are tensors"
                start = int(target.storage_offset()) + sum(span.at[place] for span in spans)
                target.as_strided(values.shape, strides, start).copy_(result)
            return first

        return several

    def _adding(self, c: torch.Tensor, stage: torch.Tensor, beta: Scalar, aux: AuxTensors) -> Step:
        """Values of one block and beta * c_fn(C); or what the algebra reduces values and c_fn(C) to."""
        addend, algebra = self._addend(c, stage, aux), self.anatomy.contraction.algebra
        if algebra is None:
            factor = wrapped(beta, self.anatomy.accumulate)
            return lambda values, spans: values.add_(addend(spans), alpha=factor)
        reduce = operations(algebra, self.anatomy.accumulate).reduce
        return lambda values, spans: reduce(values, addend(spans), values)

    def _addend(
        self, c: torch.Tensor, stage: torch.Tensor, aux: AuxTensors
    ) -> Callable[[Sequence[Span]], torch.Tensor]:
        """c_fn(C) of one block in the accumulator's type, read from C only now."""
        accumulate, function = self.anatomy.accumulate, self.anatomy.contraction.c_fn
        base, strides = int(c.storage_offset()), self.strides_c
        copies = stage.view(accumulate) if stages_addend(self.anatomy) else None
        apply = None if function is None else applied(function, self.aux_c, aux)

        def block(spans: Sequence[Span]) -> torch.Tensor:
            shape = tuple(extent for span in spans for extent in span.extents)
            values = c.as_strided(shape, strides, base + sum(span.at.c for span in spans))
            if copies is None:
                return values
            values = copies[: values.numel()].view(shape).copy_(values)
            return values if apply is None else apply(values, shape, spans).to(accumulate)

        return block


def wrapped(factor: Scalar, dtype: torch.dtype) -> Scalar:
    """A factor of values of that type: whole numbers as they wrap around there."""
    if dtype.is_floating_point or dtype.is_complex:
        return factor
    lowest = torch.iinfo(dtype).min
    return (int(factor.real) - lowest) % (1 << torch.iinfo(dtype).bits) + lowest
