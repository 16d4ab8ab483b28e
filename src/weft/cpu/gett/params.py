"""The agreement of kernels and those who call them: places in blocks of words, and the operations of micro-kernels.

A kernel is a function of one address, of two blocks of words: of its plan, and of the call. Blocks of words instead of
arguments: one signature serves every contraction, and a thread of OpenMP's team gets one pointer.
"""

import itertools
import math
from typing import Any, NamedTuple

# The block of a call; the addresses of A, B, D and C are followed by those of the auxiliary operands.
PLAN, COUNTER, ALPHA, BETA, BASES, CALL_WORDS = 0, 1, 2, 4, 6, 32
ROW_BASE, SLOT_BASE, D_BASE, C_BASE, AUX_BASE = range(5)

# The block of a plan.
(
    A_CONSTANTS, B_CONSTANTS, D_CONSTANTS,  # addresses of what stages find of their functions' constants
    # Offset tables in bytes. Rows: in the row operand and D; slots: in the slot operand and D; k: in both operands.
    ROW_IN, ROW_D, SLOT_IN, SLOT_D, K_ROW, K_SLOT,
    FLAGS,  # of each slot, a word
    ROWS, SLOTS, K,  # lengths: rows in whole register blocks, slots in pairs
    ROW_BLOCK, SLOT_BLOCK, K_BLOCK,  # MC, NC in slots, and KC
    ROW_DIRECT, SLOT_DIRECT,  # whether the operand is read in its own layout
    ROW_STEP, SLOT_STEP,  # bytes along k then
    K_CONTIGUOUS,  # whether the slot operand is contiguous along k: packed by transposes in registers
    ROWS_INSIDE,  # whether the loop over register blocks goes along rows first
    MICRO_KERNEL, EXACT_KERNEL, SCAN,  # addresses; the second for panels that `scan` (0: none) finds special values in
    ROW_STAGE, SLOT_STAGE, D_STAGE,  # descriptions of stages; 0 where there is none
    ONCE,  # whether tables of D have ABSENT rows and lanes
    BETWEEN,  # address of a function of partial sums, 0 where they stay as they are
    OUTER, OUTER_COUNT,  # modes of the loop around: their table, and how many
    BASE_COUNT,  # operands whose addresses the loop around moves
    PARTS, PART_COUNT,  # parts of the rows and slots: (first row, end, first slot, end)
    OUTER_TOTAL, OUTER_CHUNK, TASKS,
    ROW_PANEL, SLOT_PANEL, PARTIALS, SCRATCH,  # bytes of a thread's workspace
    WORDS,
) = range(43)  # fmt: skip

# A stage: a function of contiguous values, what it reads alongside them, and what it yields.
STAGE_FUNCTION, STAGE_SIZE, STAGE_READS, STAGE_WRITES, STAGE_LIST = range(5)
# Each read or write: (bytes of an item, which base, table of rows, table of lanes).
ENTRY_SIZE, ENTRY_BASE, ENTRY_ROWS, ENTRY_LANES, ENTRY_WORDS = range(5)
INT32_COORDINATE, INT64_COORDINATE = -4, -8  # as the size of what is no memory: the offset is the value

# Flags of a slot.
READ_CONTIGUOUS, WRITE_CONTIGUOUS, TRANSPOSED_GROUP = 1, 2, 4
ABSENT = -(1 << 62)  # a row or lane that stands twice: it is stored once
VECTORS = 2  # of a register block: its columns are the lanes of so many vectors
BLOCK_ROWS = 6  # of a register block; half as many of complex numbers

# A micro-kernel computes a pair of operations; all of them are commutative.
PAIRS = (
    ("mul", "add"), ("add", "max"), ("add", "min"), ("mul", "max"), ("max", "min"), ("min", "max"), ("and", "xor"),
)  # fmt: skip


class Operation(NamedTuple):
    """An entry of `OPERATIONS`; kernels know it by its place there."""

    combine: str
    reduce: str
    exact: bool = False  # whether NaN is looked for: needed where there may be some
    conjugates_row: bool = False
    conjugates_result: bool = False
    real_row: bool = False  # whether complex products are of the row's real parts alone

    def identity(self, kind: Any) -> float | int:
        """The identity of `reduce`, as LLVM writes it for a vector `Kind`."""
        if self.reduce in ("add", "xor"):
            return 0 if kind.whole else 0.0
        sign = -1 if self.reduce == "max" else 1
        if not kind.whole:
            return sign * math.inf
        return -(1 << (8 * kind.size - 1)) if sign < 0 else (1 << (8 * kind.size - 1)) - 1


OPERATIONS = (
    *(Operation("mul", "add", False, *flags) for flags in itertools.product((False, True), repeat=3)),
    *(Operation(combine, reduce, exact) for combine, reduce in PAIRS[1:] for exact in (False, True)),
)  # fmt: skip
