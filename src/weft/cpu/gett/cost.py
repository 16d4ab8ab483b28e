"""What a schedule costs, in seconds: products at a core's rate, elements moved, a call.

Fitted on two cores of an AMD EPYC (Zen 4, 2.6 GHz), as all of the CPU's figures. What matters is the order of families.
"""

from __future__ import annotations

import torch

from weft.cpu.gett.schedule import GettSchedule, form_of
from weft.spec import Contraction

RATE = {
    torch.float32: 88e9, torch.float64: 44e9, torch.complex64: 21e9, torch.complex128: 10e9,
    torch.int32: 25e9, torch.int64: 12e9,
}  # multiply-adds a second are half of it  # fmt: skip
PACKED, STORED = 0.3e-9, 0.15e-9  # seconds for four bytes
TILE = 10e-9  # a register block, besides its products
CALL, TEAM = 2e-6, 4e-6


def predict(contraction: Contraction, schedule: GettSchedule) -> float:
    form = form_of(contraction)
    outer, rows, columns, k = form.axes.counts
    height, width = form.height, 2 * form.lanes
    rows, columns = -(-rows // height) * height, -(-columns // width) * width
    products = 2 * outer * rows * columns * k / RATE[form.dtype]
    moved = outer * (rows * columns * STORED + (rows + columns) * k * PACKED) * form.item / 4
    tiles = outer * rows * columns / (height * width) * TILE
    team = TEAM if schedule.threads > 1 else 0.0
    return CALL + team + (products + moved + tiles) / schedule.threads
