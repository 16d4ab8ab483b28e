"""Places in the two blocks of words that the permutation kernels are given: of a plan, and of a call."""

# The block of a call: ALPHA and BETA stand where stages of contractions have them.
PLAN, COUNTER, ALPHA, BETA, X, D, C = 0, 1, 2, 4, 6, 7, 8
CALL_WORDS = 9

# The block of a plan. A tile has P x Q cells of a few items; offsets and steps are in bytes.
(
    P_X, P_D, Q_X, Q_D,  # tables of offsets along the tile's two sides, in X and in D
    P_MODE, P_TILE, P_LAST,  # the outer mode that cuts the side (-1: none); cells of a tile, and of the last one
    Q_MODE, Q_TILE, Q_LAST,
    R_MODE, R_TILE, R_LAST,  # the same of a cell's items, which both tensors have together
    OUTER, OUTER_COUNT,  # modes around tiles, innermost last: (extent, step in X, step in D)
    TILES, CHUNK,  # how many there are, and how many are one task
    X_SIZE, D_SIZE,  # bytes of an item
    SQUARES, STREAMED_SQUARES,  # kernels that transpose a tile in registers; 0: cells are copied one by one,
    CELLS,  # by this one
    STREAMS,  # whether D is written past the caches, where it begins at a cache line
    STAGE,  # a function of contiguous values, by its address; 0: items are moved as they are
    CONSTANTS,  # the address of those of the stage's function
    IN_PLACE,  # whether the stage overwrites what it reads
    WHOLE_ROWS,  # whether a row of a tile is contiguous in D
    WORKSPACE, BUFFER,  # bytes of a thread, and of each of a stage's buffers
    WORDS,
) = range(30)  # fmt: skip

# The block of a transposition in place. Tiles of square matrices change places with their mirror images; panels of
# other matrices are transposed each, then their rows, vectors of H items, are moved along cycles.
(
    BATCH_STEP,  # bytes from one matrix to the next
    PAIRED,  # whether blocks are tiles of square matrices, which change places; else panels of whole rows
    SIDE, LAST, SIDES,  # rows of a block, of the last one; how many make a side of the matrix
    ACROSS,  # columns of a panel; of a tile at the most
    ROW_STEP, COLUMN_STEP, ITEM,  # bytes
    TURN, COPY, SCALE,  # kernels: of squares (0: there are none), of cells, a stage (0: no alpha)
    VECTOR, VECTOR_ROWS, VECTOR_COLUMNS,  # bytes of a vector, and how they lie
    PLACE_TASKS, ROOM,  # tasks, of vectors as many as these are cut into; bytes of a thread's workspace
    PLACE_WORDS,
) = range(18)  # fmt: skip

LINE = 64  # bytes of one of the caches
#: (bytes of an item, items of a vector)
SHAPES = tuple((size, lanes) for size in (1, 2, 4, 8, 16) for lanes in (1, 2, 4, 8, 16, 32, 64) if size * lanes <= LINE)
