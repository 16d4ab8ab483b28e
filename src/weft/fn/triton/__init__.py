"""Triton source for users' functions: what emits it, and the device code it calls."""
