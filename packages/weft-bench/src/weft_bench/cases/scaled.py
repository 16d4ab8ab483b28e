"""Small cases of large ones: for devices that would take minutes."""

from __future__ import annotations

from dataclasses import replace

from weft.selftest.case import Case
from weft.spec.notation import Label


def scaled(case: Case, work: int) -> Case:
    """`case` shrunk to at most `work` multiply-adds: by one factor for all extents, but to 2 at the least.

    Where that is not enough, modes of extent 2 become 1, the last ones first. Empty modes and those of 1 stay.
    """
    original = case.extents
    factor = 1.0
    while case.work > work and any(extent > 2 for extent in case.extents.values()):
        factor *= 0.98
        case = _resized(case, {label: max(min(extent, 2), int(extent * factor)) for label, extent in original.items()})
    for label in reversed(original):
        if case.work > work:
            case = _resized(case, {**case.extents, label: 1})
    return case


def _resized(case: Case, extents: dict[Label, int]) -> Case:
    """The case with other extents; a mode of extent 1 in an operand keeps it."""
    a, b = (
        tuple(1 if extent == 1 else extents[label] for label, extent in zip(term, shape, strict=True))
        for term, shape in zip(case.notation.inputs, case.shapes, strict=True)
    )
    return replace(case, shapes=(a, b))
