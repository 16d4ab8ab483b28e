"""Contractions and permutations in torch's own operations: what runs before anything is compiled."""
