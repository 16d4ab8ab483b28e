"""User functions written out as Python that numba compiles for the CPU."""
