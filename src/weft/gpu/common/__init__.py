"""Ground that families of kernels share: launches, tiles, costs, device functions."""
