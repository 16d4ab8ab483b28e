"""Auxiliary operands and complex elements as kernels take them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from weft.gpu.common.tiling import TENSORS
from weft.spec import Arithmetic, Contraction, Layout, Mode, Strides
from weft.spec.contraction import Aux
from weft.spec.dtypes import REAL_OF

KINDS = ("reals", "words", "pairs")  # elements of one part, of two in one word, and of two


def kind_of(layout: Layout | None) -> str:
    """Which of `KINDS` a tensor's elements are."""
    if layout is None or not layout.dtype.is_complex:
        return "reals"
    return "words" if layout.dtype is torch.complex64 and layout.alignment >= 8 else "pairs"


def as_elements(layout: Layout) -> Layout:
    """The layout as a kernel takes it: of words, or of single parts. Only type and alignment matter there."""
    return layout._replace(dtype=torch.int64 if kind_of(layout) == "words" else real(layout.dtype))


def real(dtype: torch.dtype) -> torch.dtype:
    """The type of a number's parts."""
    return REAL_OF.get(dtype, dtype)


def strides_of_parts(modes: Sequence[Mode]) -> list[Mode]:
    """Modes whose strides count parts, two to an element: how far offsets reach."""
    return [mode._replace(strides=Strides(*(2 * stride for stride in mode.strides))) for mode in modes]


def real_arithmetic(arithmetic: Arithmetic) -> Arithmetic:
    """The arithmetic of the real products that complex ones are made of."""
    return replace(arithmetic, product=real(arithmetic.product), accumulate=real(arithmetic.accumulate), three=False)


class AuxEntry(NamedTuple):
    """One auxiliary operand of a contraction."""

    tensor: int  # its position in `Mode.strides`
    pointer: int  # its position among the pointers that the kernel is given, -1 for a coordinate
    long: bool  # a coordinate of 64 bits
    kind: int = 0  # how its elements are accessed: position in `complex_elements.KINDS`; kernels take no text here


class AuxParams(NamedTuple):
    """The auxiliary operands that each function takes, in the order of its parameters, and further results."""

    a: tuple[AuxEntry, ...]
    b: tuple[AuxEntry, ...]
    c: tuple[AuxEntry, ...]
    epilogue: tuple[AuxEntry, ...]
    outputs: tuple[AuxEntry, ...]


def aux_params(contraction: Contraction) -> AuxParams:
    arguments = (
        contraction.a_args,
        contraction.b_args,
        contraction.c_args,
        contraction.epilogue_args,
        contraction.outputs,
    )
    every = entries(contraction.aux)
    return AuxParams._make(tuple(every[at] for at in each) for each in arguments)


def aux_bytes(aux: Sequence[Aux], modes: Sequence[Mode]) -> int:
    """Bytes of all that is read alongside operands and written alongside D, each element once."""
    return sum(
        each.dtype.itemsize * math.prod(mode.extent for mode in modes if mode.strides.aux[at])
        for at, each in enumerate(aux)
        if each.layout is not None
    )


def entries(aux: Sequence[Aux]) -> list[AuxEntry]:
    """Each of them, in order."""
    found, pointers = [], 0
    for at, each in enumerate(aux):
        index = each.layout is None
        long = index and each.dtype is torch.int64
        found.append(AuxEntry(TENSORS + at, -1 if index else pointers, long, KINDS.index(kind_of(each.layout))))
        pointers += not index
    return found
