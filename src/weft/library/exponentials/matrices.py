"""Tensors as matrices whose rows and columns are along several modes each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from weft.library.views import A, D, Group
from weft.spec import Contraction, Mode, Role

Modes = tuple[Mode, ...]


class WorkspaceMatrix(NamedTuple):
    """A tensor as a matrix: its modes as rows and columns, outermost first."""

    rows: Modes
    columns: Modes

    @property
    def shape(self) -> tuple[int, int]:
        return size(self.rows), size(self.columns)

    def places(self, contraction: Contraction) -> Group:
        """All modes by their numbers."""
        return tuple([contraction.modes.index(mode) for mode in (*self.rows, *self.columns)])


def size(modes: Sequence[Mode]) -> int:
    return math.prod([mode.extent for mode in modes])


def in_order(contraction: Contraction, role: Role) -> Modes:
    """The modes of a role, outermost first: k as A has it, the others as D does."""
    tensor = A if role is Role.K else D
    return tuple(sorted(contraction.of_role(role), key=lambda mode: -mode.strides[tensor]))


def is_contiguous(modes: Modes, tensor: int) -> bool:
    """Whether a tensor's elements along modes together lie one behind the other."""
    step = 1
    for mode in reversed(modes):
        if mode.strides[tensor] != step:
            return False
        step *= mode.extent
    return True


def offsets(modes: Modes, tensor: int, item: int) -> np.ndarray:
    """Bytes from a tensor's first element to where each index of modes together begins."""
    found = np.zeros(1, np.int64)
    for mode in modes:
        found = np.add.outer(found, np.arange(mode.extent) * (mode.strides[tensor] * item)).ravel()
    return found
