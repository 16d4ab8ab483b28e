"""Complex numbers: as products of reals, as pairs where they lie."""
