"""Complex products of operands gathered where they lie."""
