"""Contractions in algebras other than plus-times."""
