"""Matrices transposed in place."""
