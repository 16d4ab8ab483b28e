"""Contractions, permutations and groups in torch's own operations: what runs before anything is compiled."""
