"""Shape-generic contractions: on matrix units and off them, by the kernels of `gett` and `simt`."""
