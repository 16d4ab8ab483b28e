"""The CPU backend: blocked contraction with packing, in torch's own matrix products and copies.

A family with the four doors of `weft.planner.schedule`. Blocks of A and B are packed by strided copies, with functions
applied on the way; blocks of D are summed in the accumulator's type and finished while they are in cache. The
workspace is bounded whatever the size of the operands.
"""

from weft.cpu.candidates import schedules
from weft.cpu.launch import build
from weft.cpu.model import predict
from weft.cpu.schedule import CpuSchedule
from weft.cpu.support import supports

NAME = "cpu"

__all__ = ["NAME", "CpuSchedule", "build", "predict", "schedules", "supports"]
