"""What the kernel takes of a transfer and its schedule, as compile-time constants."""

from __future__ import annotations

from typing import NamedTuple

from weft.gpu.common.complex_elements import kind_of, strides_of_parts
from weft.gpu.common.launch import wide, wide_index
from weft.gpu.common.tiling import TENSORS, TiledDim
from weft.gpu.complex.interleaved.transfer import Transfer
from weft.gpu.complex.launch import parts_of, takes_reals, yields_complex
from weft.gpu.permute.params import tile_orders
from weft.gpu.permute.schedule import PermuteSchedule


class InterleavedParams(NamedTuple):
    r: TiledDim  # D's run first
    stored: tuple[int, ...]  # extents of a block as it is stored
    r_of_x: TiledDim  # the same axes, the source's run first
    tile_of_x: tuple[int, ...]
    order: tuple[int, ...]  # dimensions of the source's tile in the order of D's
    x_kind: str  # how elements are accessed, see `complex_elements.KINDS`
    c_kind: str
    d_kind: str
    form: str  # those of `Transfer`
    part_stride: int
    planar_stride: int
    three_m_stride: int
    other_conjugated: bool
    conjugate: bool
    of_reals: tuple[bool, bool, bool]  # whether the functions of X and C and the epilogue see real values
    fn_complex: bool  # whether the first two yield complex values
    c_fn_complex: bool
    parts: tuple[tuple[int, int], ...]  # of each result of the epilogue, see `launch.parts_of`
    wide: tuple[bool, ...]  # offsets need 64 bits, per tensor
    wide_index: bool  # indices along an axis do


def interleaved_params(transfer: Transfer, schedule: PermuteSchedule) -> InterleavedParams:
    permutation = transfer.permutation
    tensors = TENSORS + len(transfer.aux_args.aux)
    source, result, order = tile_orders(permutation, schedule, tensors)
    wider = wide(strides_of_parts(permutation.modes), tensors)
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
        x_kind=kind_of(permutation.x),
        c_kind=kind_of(permutation.c),
        d_kind=kind_of(permutation.d),
        form=transfer.form,
        part_stride=transfer.part_stride,
        planar_stride=transfer.planar_stride,
        three_m_stride=transfer.three_m_stride,
        other_conjugated=transfer.other_conjugated,
        conjugate=permutation.conjugate,
        of_reals=(takes_reals(permutation.fn), takes_reals(transfer.c_fn), takes_reals(transfer.epilogue)),
        fn_complex=yields_complex(permutation.fn),
        c_fn_complex=yields_complex(transfer.c_fn),
        parts=parts_of(transfer.epilogue),
        wide=(wider[0] or far_x, *wider[1:3], wider[3] or far_d, *wider[4:]),
        wide_index=wide_index(schedule.axes),
    )
