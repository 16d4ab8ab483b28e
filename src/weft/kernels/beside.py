"""What functions take beside the value, as a kernel sees it: operands by pointers, coordinates by their offsets."""

from __future__ import annotations

from typing import NamedTuple

import torch

from weft.kernels.geometry import TENSORS
from weft.spec import Contraction


class Entry(NamedTuple):
    """One extra of a contraction."""

    tensor: int  # its position in `Mode.strides`
    pointer: int  # its position among the pointers that the kernel is given, -1 for a coordinate
    long: bool  # a coordinate of 64 bits


class Beside(NamedTuple):
    """The extras that each function takes, in the order of its parameters, and further results."""

    a: tuple[Entry, ...]
    b: tuple[Entry, ...]
    c: tuple[Entry, ...]
    epilogue: tuple[Entry, ...]
    outputs: tuple[Entry, ...]


def beside(contraction: Contraction) -> Beside:
    entries, pointers = [], 0
    for at, extra in enumerate(contraction.extras):
        index = extra.kind == "index"
        entries.append(Entry(TENSORS + at, -1 if index else pointers, index and extra.dtype is torch.int64))
        pointers += not index
    arguments = (
        contraction.a_args,
        contraction.b_args,
        contraction.c_args,
        contraction.epilogue_args,
        contraction.outputs,
    )
    return Beside(*(tuple(entries[at] for at in each) for each in arguments))
