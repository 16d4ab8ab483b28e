"""Matrices transposed in their own memory."""
