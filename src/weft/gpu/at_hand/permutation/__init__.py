"""Permutations at hand, of any rank and any extents."""
