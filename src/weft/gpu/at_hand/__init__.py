"""Kernels at hand: compiled once for a handful of structures, they take any extents and strides at run time."""
