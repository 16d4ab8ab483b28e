"""Kernels made fast step by step, to learn from: every rung runs, is checked and is measured by the same tools.

>>> from weft_bench import ladder
>>> rungs = ladder.LADDERS["multiply"].rungs
>>> rungs[0][1].title
'One thread for each element'
"""

from __future__ import annotations

from weft_bench.ladder.climbing import How, climb
from weft_bench.ladder.ladders import LADDERS, ladder
from weft_bench.ladder.page import save
from weft_bench.ladder.record import Climb, Step
from weft_bench.ladder.rung import Flight, Ladder, Prediction, Published, Rung, Size

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
