"""Many small contractions of different extents in one launch."""
