"""User functions written out as CUDA C++."""
