"""A plan of the kernels as blocks of words, and a call of it."""

from __future__ import annotations

import ctypes
import itertools
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from weft.cpu.gett import entries
from weft.cpu.gett import params as at
from weft.cpu.gett.forms import CpuGettSchedule, GettForm, form_of, k_step
from weft.cpu.gett.layout import GettAxis, bases_of_rows, offsets, row_tables, slot_tables
from weft.cpu.gett.params import VECTORS
from weft.cpu.gett.stages import GettStage, in_place, operand_stage, result_stage, words_of
from weft.cpu.host import HUGE, PlanWords, WordsLaunch, advise, reach, scalar_words, whole_lines
from weft.cpu.level import vector_bytes
from weft.planner.schedule import AuxTensors, Scalar
from weft.spec import Contraction

_Words = ctypes.c_int64 * at.CALL_WORDS


class GettLaunch(WordsLaunch):
    """Runs on new pointers. One block of words for each way in which sums reach D, made when it is first requested."""

    def __init__(self, contraction: Contraction, schedule: CpuGettSchedule) -> None:
        self._contraction, self._schedule = contraction, schedule
        self._form = form_of(contraction)
        super().__init__(entries.macro_kernel(self._form.kind), schedule.threads)
        self._dtype = contraction.arithmetic.accumulate
        self._swapped = self._form.axes.swapped
        self._size = reach(contraction.d)
        words = at.BASES + at.AUX_BASE + len(contraction.aux)
        self._pack = struct.Struct(f"{words}q{8 * (at.CALL_WORDS - words)}x").pack  # quicker than ctypes
        self._plans: dict[tuple[bool, bool, bool], GettPlanWords] = {}
        self._plain = self._plan(False, False, False) if contraction.c is None else None

    def __call__(
        self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, d: torch.Tensor, alpha: Scalar, beta: Scalar,
        aux: AuxTensors = (),
    ) -> None:  # fmt: skip
        if self._form.real_parts and alpha.imag:  # parts are scaled one by one: a complex factor mixes them
            self(a, b, c, d, 1, beta, aux)
            d.mul_(alpha)
            return
        self.start(self.frame(a, b, c, d, alpha, beta, aux))

    def bound(self, *call: Any) -> Callable[[], None]:
        _, _, _, _, alpha, *_ = call
        return partial(self, *call) if self._form.real_parts and alpha.imag else super().bound(*call)

    def frame(
        self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, d: torch.Tensor, alpha: Scalar, beta: Scalar,
        aux: AuxTensors = (),
    ) -> Any:  # fmt: skip
        """The words of a call."""
        row, slot = (b, a) if self._swapped else (a, b)
        pointers = [0 if tensor is None else tensor.data_ptr() for tensor in aux] if aux else []
        addresses = row.data_ptr(), slot.data_ptr(), d.data_ptr()
        if self._plain is not None and alpha == 1 and c is None:
            packed = self._pack(self._plain.address, 0, 1, 0, 0, 0, *addresses, 0, *pointers)
        else:
            c = c if beta != 0 else None
            words = self._plan(alpha != 1, c is not None, beta != 1)
            scalars = scalar_words(alpha, beta, self._dtype)
            added = 0 if c is None else c.data_ptr()
            packed = self._pack(words.address, 0, *scalars, *addresses, added, *pointers)
        if self._size >= HUGE:
            advise(d, self._size)
        return _Words.from_buffer_copy(packed)

    def _plan(self, scaled: bool, added: bool, weighted: bool) -> GettPlanWords:
        key = (scaled, added, added and weighted)
        known = self._plans.get(key)
        if known is None:
            known = self._plans[key] = GettPlanWords(self._contraction, self._schedule, *key)
        return known


class GettPlanWords(PlanWords):
    """The words of one plan."""

    def __init__(
        self, contraction: Contraction, schedule: CpuGettSchedule, scaled: bool, added: bool, weighted: bool
    ) -> None:
        form = form_of(contraction)
        super().__init__(at.WORDS)
        bases = bases_of_rows(contraction, form.axes)
        lanes = vector_bytes() // form.item
        rows = row_tables(form.axes, form.height, bases)
        slots = slot_tables(form.axes, lanes, form.item, bases, once=added)
        k = [offsets(form.axes.k, base) if base in bases else None for base in range(form.axes.bases)]
        self._set_tables(form, schedule, rows, slots, k, lanes)
        self.words[at.ONCE] = added
        self._set_kernels(contraction, form)
        self._set_stages(contraction, form, rows, slots, k, (scaled, added, weighted))
        self._set_tasks(form, schedule, rows.length, slots.length)
        self._set_workspace(form, schedule, lanes)

    def _set_tables(self, form: GettForm, schedule: CpuGettSchedule, rows: Any, slots: Any, k: Any, lanes: int) -> None:
        words = self.words
        words[at.ROW_IN], words[at.ROW_D] = self.keep(rows.tables[at.ROW_BASE]), self.keep(rows.tables[at.D_BASE])
        words[at.SLOT_IN], words[at.SLOT_D] = self.keep(slots.tables[at.SLOT_BASE]), self.keep(slots.stored)
        words[at.K_ROW], words[at.K_SLOT] = self.keep(k[at.ROW_BASE]), self.keep(k[at.SLOT_BASE])
        words[at.FLAGS] = self.keep(slots.flags)
        words[at.ROWS], words[at.SLOTS], words[at.K] = rows.length, slots.length, len(k[at.ROW_BASE])
        row_block, lane_block, k_block = schedule.blocks
        words[at.ROW_BLOCK] = row_block
        whole = lane_block >= form.axes.counts[2]  # runs that end in an overlapping slot make for more slots than lanes
        words[at.SLOT_BLOCK] = slots.length if whole else max(lane_block // lanes // VECTORS * VECTORS, VECTORS)
        words[at.K_BLOCK] = k_block
        row_step, slot_step = k_step(form, at.ROW_BASE), k_step(form, at.SLOT_BASE)
        words[at.ROW_DIRECT] = schedule.direct[0]
        words[at.SLOT_DIRECT] = schedule.direct[1] and bool((slots.flags & at.READ_CONTIGUOUS).all())
        words[at.ROW_STEP], words[at.SLOT_STEP] = row_step or 0, slot_step or 0
        words[at.K_CONTIGUOUS] = slot_step == form.item
        words[at.ROWS_INSIDE] = len(k[0]) > 64 or rows.length < 4 * form.height

    def _set_kernels(self, contraction: Contraction, form: GettForm) -> None:
        words = self.words
        if form.operation is None:
            algebra, accumulate = contraction.algebra, contraction.arithmetic.accumulate
            assert algebra is not None
            words[at.MICRO_KERNEL] = entries.written_kernel(algebra, accumulate, form.dtype, form.axes.swapped)
            return
        words[at.MICRO_KERNEL] = entries.micro_kernel(form.kind, form.operation)
        words[at.SCAN] = entries.scan(form.kind, form.operation)
        if words[at.SCAN]:
            words[at.EXACT_KERNEL] = entries.micro_kernel(form.kind, form.operation._replace(exact=True))
        if form.matrix is not None and form.matrix.between is not None:
            words[at.BETWEEN] = in_place(form.matrix.between).address

    def _set_stages(self, contraction: Contraction, form: GettForm, rows: Any, slots: Any, k: Any, how: Any) -> None:
        places = {"A": at.A_CONSTANTS, "B": at.B_CONSTANTS}
        names = ("B", "A") if form.axes.swapped else ("A", "B")
        for name, word, tables in (
            (names[0], at.ROW_STAGE, (k, rows.tables)), (names[1], at.SLOT_STAGE, (k, slots.tables)),
        ):  # fmt: skip
            stage = operand_stage(contraction, form, name)
            if stage is not None:
                self.words[word] = self._stage(stage, *tables, None)
                self.words[places[name]] = self.keep(words_of(stage.constants))
        stage = result_stage(contraction, form, *how)
        if stage is not None:
            added = how[1]
            stored = (rows.stored if added else rows.tables[at.D_BASE], slots.stored)
            self.words[at.D_STAGE] = self._stage(stage, rows.tables, slots.tables, stored)
            self.words[at.D_CONSTANTS] = self.keep(words_of(stage.constants))

    def _stage(self, stage: GettStage, rows: Any, lanes: Any, stored: Any) -> int:
        """The words of a stage: its function, and tables of what it reads and writes."""
        found = [stage.address, stage.size, len(stage.reads), len(stage.writes)]
        for size, base in stage.reads:
            found += [size, base, self.keep(rows[base]), self.keep(lanes[base])]
        for size, base in stage.writes:
            if base == at.D_BASE:
                found += [size, base, *map(self.keep, stored)]
            else:
                found += [size, base, self.keep(rows[base]), self.keep(lanes[base])]
        return self.keep(found)

    def _set_tasks(self, form: GettForm, schedule: CpuGettSchedule, rows: int, slots: int) -> None:
        words = self.words
        row_parts, slot_parts = schedule.parts
        row_cuts = [rows * i // row_parts // form.height * form.height for i in range(row_parts)] + [rows]
        slot_cuts = [slots * i // slot_parts // VECTORS * VECTORS for i in range(slot_parts)] + [slots]
        parts = [
            (m0, m1, s0, s1)
            for m0, m1 in itertools.pairwise(row_cuts)
            for s0, s1 in itertools.pairwise(slot_cuts)
            if m1 > m0 and s1 > s0
        ]
        words[at.PARTS], words[at.PART_COUNT] = self.keep(parts), len(parts)
        outer: tuple[GettAxis, ...] = form.axes.outer
        table = [(axis.extent, *axis.steps) for axis in reversed(outer)]
        words[at.OUTER] = self.keep(table or [0])
        words[at.OUTER_COUNT], words[at.BASE_COUNT] = len(outer), form.axes.bases
        total = form.axes.counts[0]
        chunk = max(1, total // (4 * schedule.threads)) if schedule.threads > 1 else total
        words[at.OUTER_TOTAL], words[at.OUTER_CHUNK] = total, chunk
        words[at.TASKS] = -(-total // chunk) * len(parts)

    def _set_workspace(self, form: GettForm, schedule: CpuGettSchedule, lanes: int) -> None:
        words, item = self.words, form.item
        k_block = int(words[at.K_BLOCK])
        row_items = int(words[at.ROW_BLOCK]) * k_block
        slot_items = int(words[at.SLOT_BLOCK]) * lanes * k_block
        words[at.ROW_PANEL] = 0 if words[at.ROW_DIRECT] else whole_lines(row_items * item + 64)
        words[at.SLOT_PANEL] = 0 if words[at.SLOT_DIRECT] else whole_lines(slot_items * item + 64)
        several = words[at.K] > k_block
        blocks = int(words[at.ROW_BLOCK]) * int(words[at.SLOT_BLOCK]) * lanes
        words[at.PARTIALS] = whole_lines(blocks * item) if several else 0
        tile = form.height * VECTORS * lanes
        scratch = 4096 + tile * 16 * 40
        for word, items in ((at.ROW_STAGE, row_items), (at.SLOT_STAGE, slot_items)):
            stage = int(words[word])
            if stage:
                found = next(kept for kept in self._kept if kept.ctypes.data == stage)
                sizes = [int(found[1]), *(abs(int(size)) for size in found[4 :: at.ENTRY_WORDS])]
                scratch = max(scratch, 4096 + sum(whole_lines(items * size) for size in sizes))
        words[at.SCRATCH] = scratch
