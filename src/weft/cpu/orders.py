"""Sums of a tensor in several orders of its modes, with a sign each, tile by tile: each element is written once.

    for tiles, shared among the threads of a team:
        for planes of the tile, for orders:    the plane of the tensor in that order, added or subtracted
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import torch

from weft.cpu.host import together
from weft.cpu.jit import compiled, fault
from weft.spec.dtypes import dtype_name

TYPES = (torch.float32, torch.float64, torch.complex64, torch.complex128)
_SOURCE = """\
from numba import cfunc
from weft.cpu.gett.vector import fetch_add, load_word
from weft.fn.numba.values import LOADS, STORES

load, store = LOADS["{kind}"], STORES["{kind}"]


@cfunc("void(int64)", error_model="numpy")
def entry(frame):
    x, d, tiles = load_word(frame + 8), load_word(frame + 16), load_word(frame + 24)
    count, rank, orders, signs = (
        load_word(frame + 32), load_word(frame + 40), load_word(frame + 48), load_word(frame + 56),
    )
    while True:
        tile = fetch_add(frame)
        if tile >= count:
            break
        at = tiles + 8 * (1 + rank) * (1 + orders) * tile
        down, across, planes = load_word(at + 8 * (rank - 1)), load_word(at + 8 * rank), 1
        for mode in range(rank - 2):
            planes *= load_word(at + 8 * (1 + mode))
        for plane in range(planes):
            for order in range(orders):
                own = at + 8 * (1 + rank) * (1 + order)
                start, rest = load_word(own), plane
                for mode in range(rank - 3, -1, -1):
                    above = rest // load_word(at + 8 * (1 + mode))
                    start += (rest - above * load_word(at + 8 * (1 + mode))) * load_word(own + 8 * (1 + mode))
                    rest = above
                row, step = load_word(own + 8 * (rank - 1)), load_word(own + 8 * rank)
                sign = load_word(signs + 8 * order)
                to = load_word(at) + plane * down * across
                for i in range(down):
                    if order == 0:
                        for j in range(across):
                            store(d, to + j, load(x, start + j * step))
                    elif sign > 0:
                        for j in range(across):
                            store(d, to + j, load(d, to + j) + load(x, start + j * step))
                    else:
                        for j in range(across):
                            store(d, to + j, load(d, to + j) - load(x, start + j * step))
                    start, to = start + row, to + across
"""
_Frame = ctypes.c_int64 * 8
_SMALL = 1 << 15  # elements up to which one thread is as quick


def serves(x: torch.Tensor) -> bool:
    """Whether there is a kernel for that tensor."""
    return x.dim() > 1 and x.is_cpu and x.dtype in TYPES and not x.is_conj() and not x.is_neg() and fault() is None


def sum_in_orders(x: torch.Tensor, d: torch.Tensor, tiles: np.ndarray, signs: Sequence[int]) -> None:
    """Write all tiles of `d`, a row of `tiles` each: where it begins in `d`, its extents, and for each order where the
    tile of `x` begins and its strides there, of two modes at least; elements count."""
    tiles, factors = np.ascontiguousarray(tiles, np.int64), np.array(signs, np.int64)
    rank = tiles.shape[1] // (1 + len(signs)) - 1
    frame = _Frame(0, x.data_ptr(), d.data_ptr(), tiles.ctypes.data, len(tiles), rank, len(signs), factors.ctypes.data)
    together(compiled(_SOURCE.format(kind=dtype_name(x.dtype))), frame, 1 if d.numel() < _SMALL else len(tiles))
