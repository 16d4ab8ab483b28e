"""Sensors, joules, and the laws of scaling."""
