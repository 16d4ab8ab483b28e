"""Contractions over the ranks of a process group: what lies where, what travels, and what it is hidden behind."""
