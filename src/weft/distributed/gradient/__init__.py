"""Gradients of contractions over ranks: the steps of the backward pass, each over the same ranks."""
