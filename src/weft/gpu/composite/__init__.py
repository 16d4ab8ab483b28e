"""Families made of others: operands packed first (TTGT), D scattered last, logsumexp by products, truth by counting."""
