"""Kernels made fast step by step, to learn from: every rung runs, is checked and is measured by the same tools.

>>> from weft import ladder
>>> rungs = ladder.LADDERS["multiply"].rungs
>>> rungs[0][1].title
'One thread for each element'
"""

from __future__ import annotations

from weft.ladder.climbing import How, climb
from weft.ladder.ladders import LADDERS, ladder
from weft.ladder.page import save
from weft.ladder.record import Climb, Step
from weft.ladder.rung import Flight, Ladder, Prediction, Published, Rung, Size

__all__ = [
    "LADDERS",
    "Climb",
    "Flight",
    "How",
    "Ladder",
    "Prediction",
    "Published",
    "Rung",
    "Size",
    "Step",
    "climb",
    "ladder",
    "save",
]
