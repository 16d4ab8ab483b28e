"""Interleaved complex numbers moved, and computed with on the way."""
