"""TTGT on the CPU: operands packed as matrices, the library's product, and the epilogue on pieces of D."""
