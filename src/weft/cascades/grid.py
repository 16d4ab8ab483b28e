"""How large blocks of S are."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from weft.spec import Label

#: Elements of S in a block: as many as stay in a cache on a CPU, and as fill a GPU.
LIMIT = {"cpu": 1 << 20, "cuda": 1 << 25}
_ROWS = 512  # of a block at most, before it grows along other modes


def block_extents(
    order: Sequence[Label], extents: Mapping[Label, int], whole: Collection[Label], columns: Collection[Label],
    limit: int, square: bool,
) -> dict[Label, int]:  # fmt: skip
    """How many indices a block has along each label of `order`, outermost first.

    `columns` are labels that the second contraction or a reduction sums; blocks grow along rows, columns and the rest.
    `square` blocks, as long as they are wide, are those that masks leave out more of.
    """
    found = {label: (extents[label] if label in whole else min(extents[label], 1)) for label in order}
    rows = [label for label in reversed(order) if label not in columns and label not in whole]
    summed = [label for label in reversed(order) if label in columns and label not in whole]
    longest = min(_ROWS, math.isqrt(limit))
    wide = longest if square else limit
    for labels, most in ((rows, longest), (summed, wide), (rows, wide)):
        for label in labels:
            inner = math.prod(max(found[name], 1) for name in labels if name != label)
            found[label] = _grown(found, label, extents[label], min(limit, max(most // inner, 1)), limit)
            if found[label] < extents[label]:
                break
    for label in reversed(order):
        found[label] = _grown(found, label, extents[label], wide, limit)
    return {label: _even(extents[label], size) for label, size in found.items()}


def nested(
    blocks: Mapping[Label, int], extents: Mapping[Label, int], groups: Sequence[Sequence[Label]]
) -> dict[Label, int]:
    """Blocks along whose groups of labels only the outermost is cut, so that each group of a block lies as one."""
    found = dict(blocks)
    for labels in groups:
        cut = False
        for label in reversed(labels):
            found[label] = min(found[label], 1) if cut else found[label]
            cut |= found[label] < extents[label]
    return found


def _grown(found: Mapping[Label, int], label: Label, extent: int, most: int, limit: int) -> int:
    """As many indices of a label as a block has room for, at most so many."""
    others = math.prod(max(size, 1) for name, size in found.items() if name != label)
    return max(min(extent, most, limit // others), found[label])


def _even(extent: int, size: int) -> int:
    """A block size that leaves no small rest: as many blocks, nearly equal, by multiples of 16 where there is room."""
    if not 0 < size < extent:
        return size
    fair = -(-extent // -(-extent // size))
    return min(-(-fair // 16) * 16, size)
