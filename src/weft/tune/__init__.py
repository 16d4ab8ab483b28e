"""Timing, tuning, and what tuning remembers."""
