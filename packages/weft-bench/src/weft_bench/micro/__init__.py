"""Small benchmarks of one mechanism each, beside the figures that a thesis has of an A100."""
