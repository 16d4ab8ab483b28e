"""Predicted time of a decomposition, for many sides of its squares or panels at once: so many moves of the matrix.

Rates of an H200, but only the proportions matter.
"""

from __future__ import annotations

import numpy as np

from weft.gpu.common.hardware import LINE, VECTOR
from weft.gpu.transpose.params import LEAST_SLIDING, MOST_SLIDING
from weft.planner.coefficients import fitted

_FITTED = fitted("transpose")

_RATE = _FITTED("rate")  # bytes per second
_LAUNCH = _FITTED("launch")  # seconds
_VIA_WORKSPACE = _FITTED("via_workspace")  # moves for a pass by way of the workspace, which mostly stays in the L2
_MOST_SUPER_ELEMENTS = _FITTED("super_elements")  # the tables are 8 bytes for each, and are made on the host
_MOST_LEFT = _FITTED("left")  # of the workspace may keep what lies outside the main part
_SMALL_SLIDE, _SLIDE = _FITTED("small_slide"), _FITTED("slide")  # moves, with few programs at once and with many
_SUPER_ELEMENT_LINE = _FITTED("super_element_line")  # moves that super-elements of a line or less add
_WORD_COST = {int(word): cost for word, cost in _FITTED.table("word_moves").items()}  # of a move, by a thread's bytes


def squares_seconds(rows: int, columns: int, side: np.ndarray, itemsize: int, workspace: int) -> np.ndarray:
    """Seconds by squares of each side, infinite where too much is left over."""
    down, across = rows // side * side, columns // side * side
    matrix_bytes = rows * columns * itemsize
    left = matrix_bytes - down * across * itemsize
    room = workspace - left
    move = 2 * matrix_bytes / _RATE
    rounds = matrix_bytes / np.maximum(room, 1)
    padding_right, padding_below = (columns - across) * down * itemsize, (rows - down) * across * itemsize
    seconds = (
        move * np.maximum(1, LINE / (2 * side * itemsize))
        + move * _super_element_moves(side * itemsize)
        + _padding_seconds(move, padding_right, room, rounds)
        + _padding_seconds(move, padding_below, room, rounds)
        + _table_seconds(down * across // side, move)
    )
    return np.where(left <= workspace * _MOST_LEFT, seconds, np.inf)


def panels_seconds(divided: int, other: int, side: np.ndarray, itemsize: int, workspace: int) -> np.ndarray:
    """Seconds by panels of each thickness across the extent `divided`, infinite where too much is left over."""
    panels = divided // side
    left = (divided - panels * side) * other * itemsize
    room = workspace - left
    matrix_bytes = divided * other * itemsize
    move = 2 * matrix_bytes / _RATE
    together = room // (side * other * itemsize)  # panels that the workspace holds at a time
    seconds = (
        _workspace_seconds(move, panels / np.maximum(together, 1))
        + move * _super_element_moves(side * itemsize)
        + _padding_seconds(move, left, room, matrix_bytes / np.maximum(room, 1))
        + _table_seconds(panels * other, move)
    )
    return np.where((left <= workspace * _MOST_LEFT) & (together > 0), seconds, np.inf)


def _workspace_seconds(move: float, rounds: np.ndarray) -> np.ndarray:
    """Seconds of a pass by way of the workspace that takes so many rounds, of two launches each."""
    return _VIA_WORKSPACE * move + 2 * _LAUNCH * np.ceil(rounds)


def _padding_seconds(move: float, padding: np.ndarray, room: np.ndarray, rounds: np.ndarray) -> np.ndarray:
    """Seconds to take out or put in so many bytes of padding: a move where enough programs can slide at once."""
    programs = 2 * room / np.maximum(padding, 1)
    slide = np.where(programs < MOST_SLIDING, _SMALL_SLIDE, _SLIDE) * move + 2 * _LAUNCH
    return (padding > 0) * np.where(programs < LEAST_SLIDING, _workspace_seconds(move, rounds), slide)


def _super_element_moves(size: np.ndarray) -> np.ndarray:
    """Moves that the one of super-elements of so many bytes counts for."""
    word = np.gcd(size, VECTOR)
    cost = np.select([word == each for each in _WORD_COST], list(_WORD_COST.values()))
    return np.maximum(cost, 1) * np.maximum(1, LINE / size) + _SUPER_ELEMENT_LINE * np.minimum(1, LINE / size)


def _table_seconds(super_elements: np.ndarray, move: float) -> np.ndarray:
    """Tables past the size they should have must pay: each such size counts for a move."""
    return move * np.maximum(super_elements / _MOST_SUPER_ELEMENTS - 1, 0)
