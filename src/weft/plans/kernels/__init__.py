"""The kernels of a plan: what they take of an SM, and their machine code."""
