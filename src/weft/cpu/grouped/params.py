"""Places in the block of words that a launch hands to every thread."""

COUNTER, TILES, TILE_COUNT, TABLE, OUTPUTS, WORDS, BASES = 0, 1, 2, 3, 4, 5, 6  # BASES: of A, B and D
COUNTS, MICRO, STAGES, ADD, TILE_M, TILE_N, DEPTH = 9, 13, 14, 17, 18, 19, 20  # COUNTS: modes of batch, m, n, k
CONSTANTS = 21  # addresses of those of the three stages' functions
SCALING = 24  # the address of a stage that multiplies values by a factor
FRAME = 25
K_BLOCK = 256
