"""Permutations at the speed of memory."""
