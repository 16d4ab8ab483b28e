"""Permutations on the CPU, in place and not, by kernels that numba compiles."""
