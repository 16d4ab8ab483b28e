"""Bytes that a call of a network holds in addition to its operands and its intermediates.

    result     always
    sums       of slices in half precision: one part of the result in float32, with `strip_exponent` all of it
    scaled     with `strip_exponent`: a slice's part of the result before and after it is scaled
    gathered   copies of operands at places that a CUDA graph of the steps was captured on
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import torch

from weft.networks.tree import Tree, TreeStep


class ResultMemory(NamedTuple):
    """The memory that a call needs for a result of this type."""

    dtype: torch.dtype  # of the result
    wider: torch.dtype | None = None  # of sums of slices that are not added up in the result
    scaled: bool = False  # `strip_exponent`

    def bytes(self, tree: Tree) -> int:
        """Result, sums and scaled parts, for the slices of this tree."""
        graph = tree.graph
        part = graph.size(label for label in graph.output if label not in tree.sliced)
        whole = graph.size(graph.output)
        kind, found = self.sum_type(tree), whole * self.dtype.itemsize
        if kind != self.dtype:
            found += (whole if self.scaled else part) * kind.itemsize
        return found + (2 * part * self.dtype.itemsize if self.scaled else 0)

    def sum_type(self, tree: Tree) -> torch.dtype:
        """The type in which slices of this tree are added up."""
        return self.dtype if self.wider is None or tree.summed < 2 else self.wider


def gathered_bytes(tree: Tree, once: Collection[int], dtypes: Mapping[int, torch.dtype]) -> int:
    """Copies of the operands that the steps of a slice take but for the last one, if operands are contiguous.

    Copies keep the layout of the parts that a slice sees, so their memory has gaps where those have.
    """
    steps = replayed(tree, once)
    taken = {child for step in steps for child in (step.left, step.right) if child < tree.leaves}
    return sum(_span(tree, leaf) * dtypes[leaf].itemsize for leaf in taken)


def replayed(tree: Tree, once: Collection[int]) -> list[TreeStep]:
    """The steps of a slice but for the last one."""
    return [step for step in tree.steps if step.node != tree.root and not (tree.sliced and step.node in once)]


def _span(tree: Tree, leaf: int) -> int:
    """Elements from the first to the last of the part of an operand that a slice sees."""
    operand, strides, step = tree.graph.operands[leaf], [], 1
    for extent in reversed(operand.shape):
        strides.append(step)
        step *= extent
    strides.reverse()
    span = 1
    for label, stride in zip(operand.term, operand.strides(strides), strict=True):
        extent = tree.graph.extents[label]
        if not extent:
            return 0
        if label not in tree.sliced:
            span += (extent - 1) * stride
    return span
