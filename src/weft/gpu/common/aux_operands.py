"""What functions take beside the value, as a kernel sees it: operands by pointers, coordinates by their offsets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from weft.gpu.common.complex_elements import KINDS, kind_of
from weft.gpu.common.tiling import TENSORS
from weft.spec import Contraction, Mode
from weft.spec.contraction import Extra


class Entry(NamedTuple):
    """One extra of a contraction."""

    tensor: int  # its position in `Mode.strides`
    pointer: int  # its position among the pointers that the kernel is given, -1 for a coordinate
    long: bool  # a coordinate of 64 bits
    kind: int = 0  # how its elements are accessed: position in `pairs_elements.KINDS`; kernels take no text here


class Beside(NamedTuple):
    """The extras that each function takes, in the order of its parameters, and further results."""

    a: tuple[Entry, ...]
    b: tuple[Entry, ...]
    c: tuple[Entry, ...]
    epilogue: tuple[Entry, ...]
    outputs: tuple[Entry, ...]


def beside(contraction: Contraction) -> Beside:
    arguments = (
        contraction.a_args,
        contraction.b_args,
        contraction.c_args,
        contraction.epilogue_args,
        contraction.outputs,
    )
    every = entries(contraction.extras)
    return Beside(*(tuple(every[at] for at in each) for each in arguments))


def beside_bytes(extras: Sequence[Extra], modes: Sequence[Mode]) -> int:
    """Bytes of all that is read beside operands and written beside D, each element once."""
    return sum(
        extra.dtype.itemsize * math.prod(mode.extent for mode in modes if mode.strides.extra[at])
        for at, extra in enumerate(extras)
        if extra.layout is not None
    )


def entries(extras: Sequence[Extra]) -> list[Entry]:
    """Each of them, in order."""
    found, pointers = [], 0
    for at, extra in enumerate(extras):
        index = extra.layout is None
        long = index and extra.dtype is torch.int64
        found.append(Entry(TENSORS + at, -1 if index else pointers, long, KINDS.index(kind_of(extra.layout))))
        pointers += not index
    return found
