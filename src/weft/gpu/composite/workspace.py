"""The size of a workspace that holds a matrix: its outermost stride says how far apart rows are, gaps included."""

from __future__ import annotations

from weft.spec import Layout


def elements(layout: Layout) -> int:
    return layout.shape[0] * layout.strides[0]


def size_bytes(layout: Layout) -> int:
    return elements(layout) * layout.dtype.itemsize
