"""Contractions of many tensors at once: groups of pairs, sums of operators, chains."""
