"""Contractions at hand: on matrix units and off them."""
