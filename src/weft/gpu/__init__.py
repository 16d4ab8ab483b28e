"""The GPU backend: a room for each family of kernels, and `common` for what they share."""
