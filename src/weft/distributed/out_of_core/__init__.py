"""Contractions of tensors that a device's memory does not hold, in blocks."""
