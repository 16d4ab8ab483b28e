"""The CPU's GETT kernel, compiled by numba."""
