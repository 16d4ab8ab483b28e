"""Algebras of truth values by products of bytes."""
