"""Tensors in blocks: a dict of them, each named by its sectors; those that charges allow; those that are stored once.

A sector is any hashable label of a part of a mode. A block is named by one sector for each mode. Blocks that are not
there are zero. All blocks lie in one buffer, and a contraction of two tensors is one launch.
"""

from weft.blocks.charged import ChargedTensor
from weft.blocks.charges import U1, Z2, Leg, Symmetry
from weft.blocks.contraction import contract, meeting
from weft.blocks.factors import ChargedSplit, qr, split
from weft.blocks.symmetric import triangles
from weft.blocks.tensor import BlockTensor, Key, Sector, Structure

__all__ = [
    "U1",
    "Z2",
    "BlockTensor",
    "ChargedSplit",
    "ChargedTensor",
    "Key",
    "Leg",
    "Sector",
    "Structure",
    "Symmetry",
    "contract",
    "meeting",
    "qr",
    "split",
    "triangles",
]
