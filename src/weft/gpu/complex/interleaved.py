"""Permutations of complex elements: schedules for a description, and the launch."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple

from torch import Tensor

from weft.fn import Pointwise
from weft.gpu.common import operation
from weft.gpu.common.constants import DeviceFunction
from weft.gpu.common.launch import too_many
from weft.gpu.common.operation import AuxParams, ComplexKernelLaunch
from weft.gpu.common.tiling import TENSORS, TiledDim, wide, wide_index
from weft.gpu.permute.model import move_seconds, tile_orders
from weft.gpu.permute.schedule import PermuteSchedule, programs, tilings
from weft.planner.coefficients import fitted
from weft.planner.schedule import AuxTensors, Candidates, Scalar, Target
from weft.spec.contraction import Aux
from weft.spec.permutation import Permutation

#: How D is written.
#:
#: * plain: element by element.
#: * along_k, across_k: every element y as the 2x2 real matrix that multiplies a pair by it,
#:
#:       (x_re, x_im) as a row  times  | y_re  y_im |   is   (x y)_re, (x y)_im
#:                                     |-y_im  y_re |
#:
#:   in two rows of memory. along_k: each has what makes one part of a product, a column of that matrix, so that it runs
#:   along k with the other operand's (re, im). across_k: they are the matrix's own rows, one that the other operand's
#:   re is multiplied by, one for its im.
#: * planar, three_m: D is real. Every element is written to two planes, re and im, or to three: re, im and re + im.
Form = Literal["plain", "along_k", "across_k", "planar", "three_m"]


class TransferAux(NamedTuple):
    """Auxiliary operands of the functions of a transfer, and results after D."""

    aux: tuple[Aux, ...] = ()  # those that the transfer uses; `Mode.strides.aux` has their strides
    places: tuple[int, ...] = ()  # where they stand among those of the contraction
    fn: tuple[int, ...] = ()  # positions in `aux`: what each function takes, in the order of its parameters
    c_fn: tuple[int, ...] = ()
    epilogue: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()


_NONE = TransferAux()


@dataclass(frozen=True, slots=True)
class Transfer(Permutation):
    """A permutation to D = epilogue(alpha * fn(X) + beta * c_fn(C)), in some form."""

    form: Form = "plain"
    part_stride: int = 0  # elements of D between the rows of 2x2 matrices, or between planes
    # Elements of X between complex products with the other factor's real part and those with its imaginary part: they
    # are added. 0: X holds no such products.
    planar_stride: int = 0
    three_m_stride: int = 0  # elements of a real X between the three products of 3M. 0: it holds no such products
    other_conjugated: bool = False  # the other factor is to be conjugated: what its imaginary part meets changes sign
    c_fn: Pointwise | None = None
    epilogue: Pointwise | None = None
    aux_args: TransferAux = _NONE

    @classmethod
    def of(cls, permutation: Permutation) -> Transfer:
        """A permutation as a transfer."""
        if isinstance(permutation, Transfer):
            return permutation
        return cls(**{each.name: getattr(permutation, each.name) for each in fields(permutation)})


NAME = "interleaved"

WIDE_BLOCK = 32768  # bytes of X that eight warps move, less than that four


def supports(permutation: Permutation, target: Target) -> str | None:
    transfer = Transfer.of(permutation)
    layouts = (transfer.x, transfer.c, transfer.d, *(each.layout for each in transfer.aux_args.aux))
    if transfer is not permutation:  # and so no step of another family's
        inside = transfer.fn is not None and transfer.fn.is_complex
        if not inside and not any(layout is not None and layout.dtype.is_complex for layout in layouts):
            return "no complex number takes part"
        if transfer.is_move:
            return "nothing is computed: complex numbers that only move go as words"
    return operation.function_reason((transfer.fn, transfer.c_fn, transfer.epilogue), layouts, target)


def schedules(permutation: Permutation, target: Target) -> Candidates:
    found: dict[PermuteSchedule | str, None] = {}
    for axes in tilings(permutation):
        size = math.prod(axis.tile for axis in axes) * permutation.x.dtype.itemsize
        schedule = PermuteSchedule(axes, 8 if size >= WIDE_BLOCK else 4, family=NAME)
        found[too_many(programs(permutation, schedule)) or schedule] = None
    return Candidates.of(found)


def predict(permutation: Permutation, schedule: PermuteSchedule, target: Target) -> float:
    """Seconds. D is written once for each row or plane, X read once for each set of products that it holds. Auxiliary
    operands are read, and further results written, once, at the rate of a copy."""
    transfer = Transfer.of(permutation)
    read = 3 if transfer.three_m_stride else 2 if transfer.planar_stride else 1
    written = {"plain": 1, "three_m": 3}.get(transfer.form, 2)
    return move_seconds(permutation, schedule, target, read, written) + operation.aux_bytes(
        transfer.aux_args.aux, permutation.modes
    ) / fitted("permute")("copy_rate")


class InterleavedParams(NamedTuple):
    r: TiledDim  # D's run first
    stored: tuple[int, ...]  # extents of a block as it is stored
    r_of_x: TiledDim  # the same axes, the source's run first
    tile_of_x: tuple[int, ...]
    order: tuple[int, ...]  # dimensions of the source's tile in the order of D's
    form: str  # those of `Transfer`
    part_stride: int
    planar_stride: int
    three_m_stride: int
    other_conjugated: bool
    wide: tuple[bool, ...]  # offsets need 64 bits, per tensor
    wide_index: bool  # indices along an axis do


def interleaved_params(transfer: Transfer, schedule: PermuteSchedule) -> InterleavedParams:
    tensors = TENSORS + len(transfer.aux_args.aux)
    source, result, order = tile_orders(transfer, schedule, tensors)
    wider = wide(operation.strides_of_parts(transfer.modes), tensors)
    # With the steps to the second part, or to the last of three.
    far_x, far_d = (
        2 * step >= 2**30 for step in (max(transfer.planar_stride, transfer.three_m_stride), transfer.part_stride)
    )
    return InterleavedParams(
        r=result,
        stored=tuple(axis.tile for axis in result.axes if axis.place >= 0),
        r_of_x=source,
        tile_of_x=tuple(axis.tile for axis in source.axes if axis.place >= 0),
        order=order,
        form=transfer.form,
        part_stride=transfer.part_stride,
        planar_stride=transfer.planar_stride,
        three_m_stride=transfer.three_m_stride,
        other_conjugated=transfer.other_conjugated,
        wide=(wider[0] or far_x, *wider[1:3], wider[3] or far_d, *wider[4:]),
        wide_index=wide_index(schedule.axes),
    )


KERNEL = DeviceFunction("weft.gpu.complex.interleaved_kernel", "interleaved_kernel")


class InterleavedLaunch:
    """A built transfer: call it with X, C, D, complex factors, and auxiliary operands where it takes some."""

    def __init__(self, transfer: Transfer, schedule: PermuteSchedule, target: Target) -> None:
        own, stored = transfer.aux_args, (transfer.x, transfer.c, transfer.d)
        every = operation.entries(own.aux)
        scaled = transfer.scaled or transfer.c is not None
        scale = transfer.scale if transfer.epilogue is None else transfer.epilogue.dtypes[0]
        taken = (own.fn, (), own.c_fn, own.epilogue, own.outputs)
        op = operation.complex_operation(
            (transfer.x, None, transfer.c, transfer.d), (transfer.fn, transfer.c_fn, transfer.epilogue),
            (transfer.conjugate, False), transfer.compute, scale if scaled else None, transfer.d.dtype,
            AuxParams._make(tuple(every[at] for at in each) for each in taken),
        )  # fmt: skip
        self.launch = ComplexKernelLaunch(
            KERNEL, [layout and operation.as_elements(layout) for layout in stored],
            {"PARAMS": interleaved_params(transfer, schedule), "OP": op}, True, target,
            programs(transfer, schedule), schedule.warps, stages=1,
            pointers=[operation.as_elements(each.layout) for each in own.aux if each.layout is not None],
        )  # fmt: skip

    def __call__(
        self, x: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar, aux: AuxTensors = ()
    ) -> None:
        self.launch((x, c, d), alpha, beta, aux)


def build(permutation: Permutation, schedule: PermuteSchedule, target: Target) -> InterleavedLaunch:
    return InterleavedLaunch(Transfer.of(permutation), schedule, target)
