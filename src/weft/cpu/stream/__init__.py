"""Sums and products of few flops: one pass over memory, by loops along the modes in which tensors are contiguous."""
