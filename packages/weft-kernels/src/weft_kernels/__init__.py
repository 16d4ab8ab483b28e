"""Code of weft built ahead of time: `weft.machine.pack` reads the files of this folder. `make kernels` writes them."""
