"""Many small contractions of different extents in one call, by threads that take tiles of all of them."""
