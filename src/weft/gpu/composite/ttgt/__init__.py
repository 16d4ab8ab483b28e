"""TTGT: operands are packed, then multiplied."""
