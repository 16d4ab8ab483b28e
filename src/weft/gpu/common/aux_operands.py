"""What functions take beside the value, as a kernel sees it: operands by pointers, coordinates by their offsets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from weft.gpu.common.complex_elements import KINDS, kind_of
from weft.gpu.common.tiling import TENSORS
from weft.spec import Contraction, Mode
from weft.spec.contraction import Aux


class Entry(NamedTuple):
    """One auxiliary operand of a contraction."""

    tensor: int  # its position in `Mode.strides`
    pointer: int  # its position among the pointers that the kernel is given, -1 for a coordinate
    long: bool  # a coordinate of 64 bits
    kind: int = 0  # how its elements are accessed: position in `complex_elements.KINDS`; kernels take no text here


class AuxParams(NamedTuple):
    """The auxiliary operands that each function takes, in the order of its parameters, and further results."""

    a: tuple[Entry, ...]
    b: tuple[Entry, ...]
    c: tuple[Entry, ...]
    epilogue: tuple[Entry, ...]
    outputs: tuple[Entry, ...]
    peak: int  # position of D's peak among the pointers, -1 where none is asked for


def aux_params(contraction: Contraction) -> AuxParams:
    arguments = (
        contraction.a_args,
        contraction.b_args,
        contraction.c_args,
        contraction.epilogue_args,
        contraction.outputs,
    )
    every = entries(contraction.aux)
    peak = sum(entry.pointer >= 0 for entry in every) if contraction.peak else -1
    return AuxParams._make((*(tuple(every[at] for at in each) for each in arguments), peak))


def aux_bytes(aux: Sequence[Aux], modes: Sequence[Mode]) -> int:
    """Bytes of all that is read beside operands and written beside D, each element once."""
    return sum(
        each.dtype.itemsize * math.prod(mode.extent for mode in modes if mode.strides.aux[at])
        for at, each in enumerate(aux)
        if each.layout is not None
    )


def entries(aux: Sequence[Aux]) -> list[Entry]:
    """Each of them, in order."""
    found, pointers = [], 0
    for at, each in enumerate(aux):
        index = each.layout is None
        long = index and each.dtype is torch.int64
        found.append(Entry(TENSORS + at, -1 if index else pointers, long, KINDS.index(kind_of(each.layout))))
        pointers += not index
    return found
