"""Contractions that reduce and go on: a function with reductions between two contractions, by blocks."""
