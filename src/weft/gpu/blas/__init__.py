"""Contractions that are a matrix product as they lie, by the BLAS that torch brings."""
