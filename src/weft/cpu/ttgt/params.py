"""Places in the two blocks of words that a pass is given: of its plan, and of the call."""

# The block of a call: ALPHA and BETA stand where stages have them. From BASES on are the addresses of A, B, D and C and
# of the auxiliary operands, in the order of `weft.cpu.gett.params`; that of the workspace stands before them.
PLAN, COUNTER, ALPHA, BETA, ROWS, COLUMNS, BASES = 0, 1, 2, 4, 6, 7, 9
SPACE_BASE = -1

# The block of a plan.
(
    _, _, _,  # the address of its functions' constants, in whichever place a stage looks: see `weft.cpu.gett.params`
    STAGE,  # a function of contiguous values, by its address; 0: they are moved as they are
    READS, WRITES,  # entries: the first read has the values
    ENTRIES,
    IN_PLACE,  # whether values are moved to the place of the first write before the stage, which leaves them there
    CHUNK,  # columns that pass at a time
    ROW_BLOCK,  # rows of a task
    BUFFER, SCRATCH,  # bytes of the buffer of an entry, and of all
    WORDS,
) = range(13)  # fmt: skip

# An entry: (bytes of an item, which base, table of rows, table of columns, contiguous columns, whether all rows have
# the same). Bytes below 0 are those of a coordinate: its offset is the value.
SIZE, BASE, ROW_TABLE, COLUMN_TABLE, RUN, SAME, ENTRY_WORDS = range(7)
WHOLE = 1 << 40  # a run that never ends; one of 0: all columns have the same
