"""What is right: the reference in wide types, error bounds, validation."""
