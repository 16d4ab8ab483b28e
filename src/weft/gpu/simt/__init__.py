"""Contractions without matrix units: reductions, matrix-vector products, integers."""
