"""Block-sparse tensors, as tensor networks with symmetries have them: a dict of blocks, each named by its sectors.

A sector is any hashable label of a part of a mode: a charge, say. A block is named by one sector for each mode. Blocks
that are not there are zero. All blocks lie in one buffer, and a contraction of two tensors is one launch.
"""

from weft.blocks.contraction import contract
from weft.blocks.meeting import meeting
from weft.blocks.symmetric import triangles
from weft.blocks.tensor import BlockTensor, Key, Sector, Structure

__all__ = ["BlockTensor", "Key", "Sector", "Structure", "contract", "meeting", "triangles"]
