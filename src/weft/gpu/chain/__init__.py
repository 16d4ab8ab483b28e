"""Chains of two products in one launch: the intermediate stays on the chip."""
