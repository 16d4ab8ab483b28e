"""Matrices transposed in place on the CPU: the two doors, as `weft.gpu.transpose.family` has them for the GPU.

    square_         tiles and their mirror images change places
    rectangular_    whole where it fits into a buffer; by squares where large ones can be cut; by rows and columns; or,
                    very long and thin, by panels

The workspace is a few MiB for each worker and does not grow with the matrix but for what `rectangular_` says.
"""

from weft.cpu.transpose_rectangular import rectangular_
from weft.cpu.transpose_square import square_

__all__ = ["rectangular_", "square_"]
