"""Functions of elements in one pass over memory, as kernels that NVIDIA's compiler makes at run time."""
