"""Permutations: each element read once and written once, functions applied in between."""
