"""Where things stand in the two blocks of words that the last pass is given: of its plan, and of the call."""

# The block of a call: ALPHA and BETA stand where stages have them. PITCH: bytes from row to row of the product. Behind
# BASES are the addresses of the product, of nothing, of D and C, and of the auxiliary operands: in the order of
# `weft.cpu.gett.params`.
PLAN, COUNTER, ALPHA, BETA, ROWS, COLUMNS, PITCH, BASES = 0, 1, 2, 4, 6, 7, 8, 9

# The block of a plan.
(
    STAGE,  # a function of contiguous values, by its address; 0: sums are moved as they are
    ITEM,  # bytes of an item of the product
    READS, WRITES, ENTRIES,
    CHUNK,  # columns that are finished at a time
    ROW_BLOCK,  # rows of a task
    BUFFER, SCRATCH,  # bytes of the buffer of an entry, and of all
    WORDS,
) = range(10)  # fmt: skip

# Each read or write of a stage: (bytes of an item, which base, table of rows, table of columns, columns that lie
# together, whether all rows have the same). Bytes below 0 are those of a coordinate: its offset is the value.
SIZE, BASE, ROW_TABLE, COLUMN_TABLE, RUN, SAME, ENTRY_WORDS = range(7)
WHOLE = 1 << 40  # a run that never ends; one of 0: all columns have the same
