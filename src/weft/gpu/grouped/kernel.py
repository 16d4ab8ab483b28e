"""Kernels for groups of products, of real and of complex elements."""

from __future__ import annotations

import triton
import triton.language as tl

from weft.gpu.common.device import load_or_zero, scalar
from weft.gpu.common.pdl import pdl_begin


@triton.jit
def side_extent(row, FIRST: tl.constexpr, COUNT: tl.constexpr):
    """Product of the extents of a side, whose modes begin at number `FIRST`."""
    extent = tl.load(row + 2 + 4 * FIRST).to(tl.int32)
    for i in tl.static_range(1, COUNT):
        extent = extent * tl.load(row + 2 + 4 * (FIRST + i)).to(tl.int32)
    return extent


@triton.jit
def side_offset(row, index, FIRST: tl.constexpr, COUNT: tl.constexpr, TENSOR: tl.constexpr):
    """Offsets in A, B or D (`TENSOR` 0, 1, 2) of flattened indices of a side, the last mode fastest."""
    offset = index * 0
    rest = index
    for j in tl.static_range(COUNT):
        at = 2 + 4 * (FIRST + COUNT - 1 - j)
        stride = tl.load(row + at + 1 + TENSOR).to(tl.int32)
        if j + 1 < COUNT:
            extent = tl.load(row + at).to(tl.int32)
            offset += rest % extent * stride
            rest = rest // extent
        else:
            offset += rest * stride
    return offset


@triton.jit(do_not_specialize=["alpha", "beta", "numbers"])
def grouped_kernel(
    a,  # where offsets in the tables count from
    b,
    d,
    rows,  # (pairs, words)
    outputs,  # (results, 3)
    tiles,  # (tiles, 4): result, index of the batch, tile along m, tile along n
    alpha: tl.int64,  # bits, see `scalar`
    beta: tl.int64,
    numbers,  # (tiles,)
    SIDES: tl.constexpr,  # modes of batch, m, n, k
    TILE: tl.constexpr,  # m, n, k
    ADD: tl.constexpr,  # D = alpha * sum + beta * D, else D = alpha * sum
    A_FN: tl.constexpr,
    B_FN: tl.constexpr,
    EPILOGUE: tl.constexpr,
    PRODUCT: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    RESULT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """D = epilogue(alpha * sum over rows and k of a_fn(A) * b_fn(B) + beta * D) for every result of the group."""
    pdl_begin()
    AT_M: tl.constexpr = SIDES[0]
    AT_N: tl.constexpr = SIDES[0] + SIDES[1]
    AT_K: tl.constexpr = SIDES[0] + SIDES[1] + SIDES[2]
    WORDS: tl.constexpr = 2 + 4 * (SIDES[0] + SIDES[1] + SIDES[2] + SIDES[3])
    for tile in range(tl.program_id(0), numbers[0], tl.num_programs(0)):
        # (1) Find the result, and this tile's rows and columns of it.
        result = tl.load(tiles + 4 * tile)
        batch = tl.load(tiles + 4 * tile + 1)
        i = tl.load(tiles + 4 * tile + 2) * TILE[0] + tl.arange(0, TILE[0])
        j = tl.load(tiles + 4 * tile + 3) * TILE[1] + tl.arange(0, TILE[1])
        start = tl.load(outputs + 3 * result)
        first = tl.load(outputs + 3 * result + 1)
        last = tl.load(outputs + 3 * result + 2)
        own = rows + first * WORDS  # extents and D's strides are the same in all rows of a result
        i_inside = i < side_extent(own, AT_M, SIDES[1])
        j_inside = j < side_extent(own, AT_N, SIDES[2])
        ROWS: tl.constexpr = TILE[0]
        COLUMNS: tl.constexpr = TILE[1]
        acc = tl.zeros([ROWS, COLUMNS], dtype=ACCUMULATE)
        for at in range(first, last):
            row = rows + at * WORDS
            depth = side_extent(row, AT_K, SIDES[3])
            a_rows = a + tl.load(row) + side_offset(row, batch, 0, SIDES[0], 0)
            b_columns = b + tl.load(row + 1) + side_offset(row, batch, 0, SIDES[0], 1)
            a_rows += side_offset(row, i, AT_M, SIDES[1], 0)[:, None]
            b_columns += side_offset(row, j, AT_N, SIDES[2], 1)[None, :]
            for k0 in range(0, depth, TILE[2]):
                # (2.1) Load tiles of A and B, and apply their functions.
                k = k0 + tl.arange(0, TILE[2])
                k_inside = k < depth
                x = load_or_zero(
                    a_rows + side_offset(row, k, AT_K, SIDES[3], 0)[None, :], i_inside[:, None] & k_inside[None, :]
                ).to(PRODUCT)
                y = load_or_zero(
                    b_columns + side_offset(row, k, AT_K, SIDES[3], 1)[:, None], k_inside[:, None] & j_inside[None, :]
                ).to(PRODUCT)
                if A_FN is not None:
                    x = tl.where(k_inside[None, :], A_FN(x).to(PRODUCT), 0)
                if B_FN is not None:
                    y = tl.where(k_inside[:, None], B_FN(y).to(PRODUCT), 0)
                # (2.2) Multiply and accumulate.
                if TILE[2] == 1:  # integers: no matrix instruction wraps as their sums do
                    acc += x.to(ACCUMULATE) * y.to(ACCUMULATE)
                else:
                    acc = tl.dot(
                        x, y, acc, input_precision=PRECISION, max_num_imprecise_acc=TILE[2], out_dtype=ACCUMULATE
                    )
        # (3) Finish and store.
        value = acc * scalar(alpha, ACCUMULATE)
        place = d + start + side_offset(own, batch, 0, SIDES[0], 2)
        place += side_offset(own, i, AT_M, SIDES[1], 2)[:, None] + side_offset(own, j, AT_N, SIDES[2], 2)[None, :]
        inside = i_inside[:, None] & j_inside[None, :]
        if ADD:
            value += load_or_zero(place, inside).to(ACCUMULATE) * scalar(beta, ACCUMULATE)
        if EPILOGUE is not None:
            value = tl.broadcast_to(EPILOGUE(value), (ROWS, COLUMNS))
        tl.store(place, value.to(RESULT), mask=inside)


@triton.jit
def load_pair(x, offsets, mask, COMPLEX: tl.constexpr):
    """Both parts of the elements at some offsets, zeros where the mask is false and in place of a part that is not."""
    if COMPLEX:
        return tl.load(x + 2 * offsets, mask=mask, other=0), tl.load(x + 2 * offsets + 1, mask=mask, other=0)
    else:
        re = tl.load(x + offsets, mask=mask, other=0)
        return re, tl.zeros_like(re)


@triton.jit
def applied(re, im, FN: tl.constexpr, OF_COMPLEX: tl.constexpr, TO_COMPLEX: tl.constexpr):
    """A function of a value, whose parts it takes where that is complex, and yields where its result is."""
    if OF_COMPLEX:
        value = FN(re, im)
    else:
        value = FN(re)
    if TO_COMPLEX:
        return value
    else:
        return value, tl.zeros_like(value)


@triton.jit
def fetched(x, offsets, mask, FN: tl.constexpr, KIND: tl.constexpr, PRODUCT: tl.constexpr):
    """A tile of an operand with its function applied, zero outside. `KIND`: whether it is complex before, and after."""
    re, im = load_pair(x, offsets, mask, KIND[0])
    if FN is not None:
        re, im = applied(re.to(PRODUCT), im.to(PRODUCT), FN, KIND[0], KIND[1])
        re = tl.where(mask, re.to(PRODUCT), 0)
        im = tl.where(mask, im.to(PRODUCT), 0)
    return re.to(PRODUCT), im.to(PRODUCT)


@triton.jit(do_not_specialize=["alpha", "beta", "numbers"])
def grouped_complex_kernel(
    a,  # where offsets in the tables count from; they count elements
    b,
    d,
    rows,  # (pairs, words)
    outputs,  # (results, 3)
    tiles,  # (tiles, 4): result, index of the batch, tile along m, tile along n
    alpha: tl.int64,  # bits, see `scalar`
    beta: tl.int64,
    numbers,  # (tiles,)
    SIDES: tl.constexpr,  # modes of batch, m, n, k
    TILE: tl.constexpr,  # m, n, k
    ADD: tl.constexpr,  # D = alpha * sum + beta * D, else D = alpha * sum
    A_FN: tl.constexpr,  # functions of parts
    B_FN: tl.constexpr,
    EPILOGUE: tl.constexpr,
    KINDS: tl.constexpr,  # of A, B and the sum: whether they are complex before their function, and after
    D_COMPLEX: tl.constexpr,
    PRODUCT: tl.constexpr,  # real types
    ACCUMULATE: tl.constexpr,
    RESULT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """D = epilogue(alpha * sum over rows and k of a_fn(A) * b_fn(B) + beta * D) for every result of the group."""
    pdl_begin()
    AT_M: tl.constexpr = SIDES[0]
    AT_N: tl.constexpr = SIDES[0] + SIDES[1]
    AT_K: tl.constexpr = SIDES[0] + SIDES[1] + SIDES[2]
    WORDS: tl.constexpr = 2 + 4 * (SIDES[0] + SIDES[1] + SIDES[2] + SIDES[3])
    ROWS: tl.constexpr = TILE[0]
    COLUMNS: tl.constexpr = TILE[1]
    A_KIND: tl.constexpr = KINDS[0]
    B_KIND: tl.constexpr = KINDS[1]
    SUM_KIND: tl.constexpr = KINDS[2]
    for tile in range(tl.program_id(0), numbers[0], tl.num_programs(0)):
        # (1) Find the result, and this tile's rows and columns of it.
        result = tl.load(tiles + 4 * tile)
        batch = tl.load(tiles + 4 * tile + 1)
        i = tl.load(tiles + 4 * tile + 2) * TILE[0] + tl.arange(0, TILE[0])
        j = tl.load(tiles + 4 * tile + 3) * TILE[1] + tl.arange(0, TILE[1])
        start = tl.load(outputs + 3 * result)
        first = tl.load(outputs + 3 * result + 1)
        last = tl.load(outputs + 3 * result + 2)
        own = rows + first * WORDS  # extents and D's strides are the same in all rows of a result
        i_inside = i < side_extent(own, AT_M, SIDES[1])
        j_inside = j < side_extent(own, AT_N, SIDES[2])
        re = tl.zeros([ROWS, COLUMNS], dtype=ACCUMULATE)
        im = tl.zeros([ROWS, COLUMNS], dtype=ACCUMULATE)
        for at in range(first, last):
            row = rows + at * WORDS
            depth = side_extent(row, AT_K, SIDES[3])
            a_rows = tl.load(row) + side_offset(row, batch, 0, SIDES[0], 0)
            b_columns = tl.load(row + 1) + side_offset(row, batch, 0, SIDES[0], 1)
            a_rows += side_offset(row, i, AT_M, SIDES[1], 0)[:, None]
            b_columns += side_offset(row, j, AT_N, SIDES[2], 1)[None, :]
            for k0 in range(0, depth, TILE[2]):
                # (2.1) Load tiles of A and B, both parts of each, and apply their functions.
                k = k0 + tl.arange(0, TILE[2])
                k_inside = k < depth
                x_re, x_im = fetched(
                    a, a_rows + side_offset(row, k, AT_K, SIDES[3], 0)[None, :], i_inside[:, None] & k_inside[None, :],
                    A_FN, A_KIND, PRODUCT,
                )  # fmt: skip
                y_re, y_im = fetched(
                    b, b_columns + side_offset(row, k, AT_K, SIDES[3], 1)[:, None],
                    k_inside[:, None] & j_inside[None, :], B_FN, B_KIND, PRODUCT,
                )  # fmt: skip
                # (2.2) Add the products of parts that there are.
                re = tl.dot(x_re, y_re, re, input_precision=PRECISION, out_dtype=ACCUMULATE)
                if B_KIND[1]:
                    im = tl.dot(x_re, y_im, im, input_precision=PRECISION, out_dtype=ACCUMULATE)
                if A_KIND[1]:
                    im = tl.dot(x_im, y_re, im, input_precision=PRECISION, out_dtype=ACCUMULATE)
                    if B_KIND[1]:
                        re = tl.dot(-x_im, y_im, re, input_precision=PRECISION, out_dtype=ACCUMULATE)
        # (3) Finish and store.
        re *= scalar(alpha, ACCUMULATE)
        im *= scalar(alpha, ACCUMULATE)
        offsets = start + side_offset(own, batch, 0, SIDES[0], 2)
        offsets += side_offset(own, i, AT_M, SIDES[1], 2)[:, None] + side_offset(own, j, AT_N, SIDES[2], 2)[None, :]
        inside = i_inside[:, None] & j_inside[None, :]
        if ADD:
            before_re, before_im = load_pair(d, offsets, inside, D_COMPLEX)
            re += before_re.to(ACCUMULATE) * scalar(beta, ACCUMULATE)
            im += before_im.to(ACCUMULATE) * scalar(beta, ACCUMULATE)
        if EPILOGUE is not None:
            re, im = applied(re, im, EPILOGUE, SUM_KIND[0], SUM_KIND[1])
        re = tl.broadcast_to(re, (ROWS, COLUMNS)).to(RESULT)
        im = tl.broadcast_to(im, (ROWS, COLUMNS)).to(RESULT)
        if D_COMPLEX:
            tl.store(d + 2 * offsets, re, mask=inside)
            tl.store(d + 2 * offsets + 1, im, mask=inside)
        else:
            tl.store(d + offsets, re, mask=inside)
