"""The Triton kernels. Importing this package's families imports Triton; `geometry` and `tiling` do not."""
