"""Right values: the reference in wide types, error bounds, validation."""
