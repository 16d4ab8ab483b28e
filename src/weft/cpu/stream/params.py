"""Places in the two blocks of words that a kernel is given: of its plan, and of the call.

As in `weft.cpu.gett.params`: a kernel is a function of one address. Strides and sizes are in bytes.
"""

# The block of a call.
PLAN, COUNTER, ALPHA, BASES, CALL_WORDS = 0, 1, 2, 4, 8
A_BASE, B_BASE, D_BASE = range(3)

# The block of a plan.
(
    OUTER, OUTER_COUNT,  # kept modes of the loops around: (extent, strides in A, B and D), the last one fastest
    SUMS, SUM_COUNT, SUM_TOTAL,  # reduced modes of the loops around: the same
    X_EXTENT, X_BLOCK, X_KEPT, X_A, X_B, X_D,  # the mode of vectors; whether D has it
    Y_EXTENT, Y_BLOCK, Y_KEPT, Y_A, Y_B, Y_D,  # the other mode of a tile
    WRITES,  # whether products go straight to D: nothing is summed
    PACK_A, PACK_B,  # how a tile of an operand is read: see below
    PACK_D,  # how a tile of sums is written
    TURN, TURN_D,  # addresses of kernels that transpose a tile: of operands, and of D
    X_TABLE_A, X_TABLE_B, X_TABLE_D,  # offsets along x, for as many items as a block has: of operands and D,
    PITCH_TABLE, PITCH_TABLE_D,  # and along y in a tile that is packed, and in one of D
    SUMS_ROOM, TILE_ROOM,  # bytes of a thread's workspace: for sums, and for each packed tile
    TASKS, CHUNK, TOTAL,  # tasks that threads draw, blocks of D in each, blocks of D
    WORDS,
) = range(34)  # fmt: skip

IN_PLACE, SQUARES, ONE_BY_ONE = range(3)  # contiguous along x or the same for all of it; along y; along neither

# Types of elements, and their bytes.
SIZES = {
    "float32": 4, "float64": 8, "complex64": 8, "complex128": 16, "int32": 4, "int64": 8, "float16": 2, "bfloat16": 2,
    "int8": 1, "uint8": 1, "int16": 2,
}  # fmt: skip
NAMES = tuple(SIZES)
