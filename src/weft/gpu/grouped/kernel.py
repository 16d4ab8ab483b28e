"""Kernels for groups of products, of real and of complex elements."""

from __future__ import annotations

import triton
import triton.language as tl

from weft.fn.triton.device_math import to_type
from weft.gpu.common.device import load_or_zero, pdl_begin, scalar
from weft.gpu.common.tiles import settled


@triton.jit
def side_extents(row, FIRST: tl.constexpr, COUNT: tl.constexpr, RUN: tl.constexpr):
    """Extents of the modes of a side, which begin at number `FIRST`; the last one is a multiple of `RUN`."""
    extents = ()
    for j in tl.static_range(COUNT):
        extent = tl.load(row + 3 + 4 * (FIRST + j)).to(tl.int32)
        extents += (tl.multiple_of(extent, RUN if j + 1 == COUNT else 1),)
    return extents


@triton.jit
def extent_of(extents):
    """The product of a side's extents."""
    extent = extents[0]
    for j in tl.static_range(1, len(extents)):
        extent = extent * extents[j]
    return extent


@triton.jit
def side_strides(
    row, FIRST: tl.constexpr, COUNT: tl.constexpr, TENSOR: tl.constexpr, LINE: tl.constexpr, RUN: tl.constexpr
):
    """Strides of a side's modes in A, B or D (`TENSOR` 0, 1, 2), multiples of `RUN`; of the last one nothing is read
    where it is contiguous there (`LINE`)."""
    strides = ()
    for j in tl.static_range(COUNT):
        if LINE and j + 1 == COUNT:
            strides += (1,)
        else:
            strides += (tl.multiple_of(tl.load(row + 4 + 4 * (FIRST + j) + TENSOR).to(tl.int32), RUN),)
    return strides


@triton.jit
def side_offset(index, extents, strides, LINE: tl.constexpr, RUN: tl.constexpr):
    """Offsets of flattened indices of a side, the last mode fastest; a `LINE` of indices goes by whole runs."""
    COUNT: tl.constexpr = len(extents)
    offset = index * 0
    rest = index
    for j in tl.static_range(COUNT):
        if j + 1 < COUNT:
            offset += rest % extents[COUNT - 1 - j] * strides[COUNT - 1 - j]
            rest = rest // extents[COUNT - 1 - j]
        else:
            offset += rest * strides[0]
    if LINE and RUN > 1:
        offset = tl.max_contiguous(tl.multiple_of(offset, RUN), RUN)
    return offset


@triton.jit
def batch_offset(row, batch, COUNT: tl.constexpr, TENSOR: tl.constexpr, RUN: tl.constexpr):
    """The offset in A, B or D of an index of the batch."""
    return side_offset(
        batch, side_extents(row, 0, COUNT, 1), side_strides(row, 0, COUNT, TENSOR, False, RUN), False, 1
    )  # fmt: skip


@triton.jit
def factor_at(place, DTYPE: tl.constexpr):
    """A factor of the tables."""
    return tl.load(place).to(tl.float64, bitcast=True).to(DTYPE)


@triton.jit(do_not_specialize=["alpha", "beta", "numbers"])
def grouped_kernel(
    a,  # where offsets in the tables count from
    b,
    d,
    rows,  # (pairs, words)
    outputs,  # (results, 4)
    tiles,  # (tiles, 4): result, index of the batch, tile along m, tile along n
    alpha: tl.int64,  # bits, see `scalar`
    beta: tl.int64,
    numbers,  # (tiles,)
    SIDES: tl.constexpr,  # modes of batch, m, n, k
    TILE: tl.constexpr,  # m, n, k
    LINES: tl.constexpr,  # of A, B, D: the side along which it is contiguous (1, 2, 3 for m, n, k), 0 for none
    RUNS: tl.constexpr,  # of A, B, D: what its starts, other strides and extents of that side are multiples of
    ADD: tl.constexpr,  # D = alpha * sum + beta * D, else D = alpha * sum
    FACTORS: tl.constexpr,  # whether sums are multiplied by the tables' factors
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
    WORDS: tl.constexpr = 3 + 4 * (SIDES[0] + SIDES[1] + SIDES[2] + SIDES[3])
    A_M: tl.constexpr = LINES[0] == 1
    A_K: tl.constexpr = LINES[0] == 3
    B_N: tl.constexpr = LINES[1] == 2
    B_K: tl.constexpr = LINES[1] == 3
    D_M: tl.constexpr = LINES[2] == 1
    D_N: tl.constexpr = LINES[2] == 2
    A_RUN: tl.constexpr = RUNS[0]
    B_RUN: tl.constexpr = RUNS[1]
    D_RUN: tl.constexpr = RUNS[2]
    RUN_M: tl.constexpr = max(A_RUN if A_M else 1, D_RUN if D_M else 1)
    RUN_N: tl.constexpr = max(B_RUN if B_N else 1, D_RUN if D_N else 1)
    RUN_K: tl.constexpr = max(A_RUN if A_K else 1, B_RUN if B_K else 1)
    ROWS: tl.constexpr = TILE[0]
    COLUMNS: tl.constexpr = TILE[1]
    for tile in range(tl.program_id(0), numbers[0], tl.num_programs(0)):
        # (1) Find the result, and this tile's rows and columns of it.
        result = tl.load(tiles + 4 * tile)
        batch = tl.load(tiles + 4 * tile + 1)
        i = tl.load(tiles + 4 * tile + 2) * ROWS + tl.arange(0, ROWS)
        j = tl.load(tiles + 4 * tile + 3) * COLUMNS + tl.arange(0, COLUMNS)
        start = tl.multiple_of(tl.load(outputs + 4 * result), D_RUN)
        first = tl.load(outputs + 4 * result + 1)
        last = tl.load(outputs + 4 * result + 2)
        own = rows + first * WORDS  # extents and D's strides are the same in all rows of a result
        m = side_extents(own, AT_M, SIDES[1], RUN_M)
        n = side_extents(own, AT_N, SIDES[2], RUN_N)
        i_inside = i < extent_of(m)
        j_inside = j < extent_of(n)
        acc = tl.zeros([ROWS, COLUMNS], dtype=ACCUMULATE)
        for at in range(first, last):
            row = rows + at * WORDS
            if FACTORS:
                acc *= factor_at(row + 2, ACCUMULATE)
            k = side_extents(row, AT_K, SIDES[3], RUN_K)
            depth = extent_of(k)
            a_along_k = side_strides(row, AT_K, SIDES[3], 0, A_K, A_RUN)
            b_along_k = side_strides(row, AT_K, SIDES[3], 1, B_K, B_RUN)
            a_start = tl.multiple_of(tl.load(row), A_RUN) + batch_offset(row, batch, SIDES[0], 0, A_RUN)
            b_start = tl.multiple_of(tl.load(row + 1), B_RUN) + batch_offset(row, batch, SIDES[0], 1, B_RUN)
            a_rows = side_offset(i, m, side_strides(row, AT_M, SIDES[1], 0, A_M, A_RUN), A_M, A_RUN)
            b_columns = side_offset(j, n, side_strides(row, AT_N, SIDES[2], 1, B_N, B_RUN), B_N, B_RUN)
            a_rows = a + a_start + a_rows[:, None]
            b_columns = b + b_start + b_columns[None, :]
            for k0 in range(0, depth, TILE[2]):
                # (2.1) Load tiles of A and B, and apply their functions.
                l = k0 + tl.arange(0, TILE[2])
                l_inside = l < depth
                x = load_or_zero(
                    a_rows + side_offset(l, k, a_along_k, A_K, A_RUN)[None, :], i_inside[:, None] & l_inside[None, :]
                )
                COMPUTED: tl.constexpr = A_FN is not None or x.dtype != PRODUCT
                x = x.to(PRODUCT)
                y = load_or_zero(
                    b_columns + side_offset(l, k, b_along_k, B_K, B_RUN)[:, None],
                    l_inside[:, None] & j_inside[None, :],
                ).to(PRODUCT)
                if A_FN is not None:
                    x = tl.where(l_inside[None, :], A_FN(x).to(PRODUCT), 0)
                if B_FN is not None:
                    y = tl.where(l_inside[:, None], B_FN(y).to(PRODUCT), 0)
                # (2.2) Multiply and accumulate.
                if TILE[2] == 1:  # integers: no matrix instruction wraps as their sums do
                    acc += x.to(ACCUMULATE) * y.to(ACCUMULATE)
                else:
                    acc = tl.dot(
                        x, y, acc, input_precision=PRECISION, max_num_imprecise_acc=TILE[2], out_dtype=ACCUMULATE
                    )
                    if COMPUTED:
                        acc = settled(acc)
        # (3) Finish and store.
        if FACTORS:
            acc *= factor_at(outputs + 4 * result + 3, ACCUMULATE)
        value = acc * scalar(alpha, ACCUMULATE)
        d_rows = side_offset(i, m, side_strides(own, AT_M, SIDES[1], 2, D_M, D_RUN), D_M, D_RUN)
        d_columns = side_offset(j, n, side_strides(own, AT_N, SIDES[2], 2, D_N, D_RUN), D_N, D_RUN)
        place = d + start + batch_offset(own, batch, SIDES[0], 2, D_RUN) + (d_rows[:, None] + d_columns[None, :])
        inside = i_inside[:, None] & j_inside[None, :]
        if ADD:
            value += load_or_zero(place, inside).to(ACCUMULATE) * scalar(beta, ACCUMULATE)
        if EPILOGUE is not None:
            value = tl.broadcast_to(EPILOGUE(value), (ROWS, COLUMNS))
        tl.store(place, to_type(value, RESULT), mask=inside)


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
    outputs,  # (results, 4)
    tiles,  # (tiles, 4): result, index of the batch, tile along m, tile along n
    alpha: tl.int64,  # bits, see `scalar`
    beta: tl.int64,
    numbers,  # (tiles,)
    SIDES: tl.constexpr,  # modes of batch, m, n, k
    TILE: tl.constexpr,  # m, n, k
    ADD: tl.constexpr,  # D = alpha * sum + beta * D, else D = alpha * sum
    FACTORS: tl.constexpr,  # whether sums are multiplied by the tables' factors
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
    WORDS: tl.constexpr = 3 + 4 * (SIDES[0] + SIDES[1] + SIDES[2] + SIDES[3])
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
        start = tl.load(outputs + 4 * result)
        first = tl.load(outputs + 4 * result + 1)
        last = tl.load(outputs + 4 * result + 2)
        own = rows + first * WORDS  # extents and D's strides are the same in all rows of a result
        m = side_extents(own, AT_M, SIDES[1], 1)
        n = side_extents(own, AT_N, SIDES[2], 1)
        i_inside = i < extent_of(m)
        j_inside = j < extent_of(n)
        re = tl.zeros([ROWS, COLUMNS], dtype=ACCUMULATE)
        im = tl.zeros([ROWS, COLUMNS], dtype=ACCUMULATE)
        for at in range(first, last):
            row = rows + at * WORDS
            if FACTORS:
                factor = factor_at(row + 2, ACCUMULATE)
                re *= factor
                im *= factor
            k = side_extents(row, AT_K, SIDES[3], 1)
            depth = extent_of(k)
            a_along_k = side_strides(row, AT_K, SIDES[3], 0, False, 1)
            b_along_k = side_strides(row, AT_K, SIDES[3], 1, False, 1)
            a_rows = side_offset(i, m, side_strides(row, AT_M, SIDES[1], 0, False, 1), False, 1)[:, None]
            b_columns = side_offset(j, n, side_strides(row, AT_N, SIDES[2], 1, False, 1), False, 1)[None, :]
            a_rows += tl.load(row) + batch_offset(row, batch, SIDES[0], 0, 1)
            b_columns += tl.load(row + 1) + batch_offset(row, batch, SIDES[0], 1, 1)
            for k0 in range(0, depth, TILE[2]):
                # (2.1) Load tiles of A and B, both parts of each, and apply their functions.
                l = k0 + tl.arange(0, TILE[2])
                l_inside = l < depth
                x_re, x_im = fetched(
                    a, a_rows + side_offset(l, k, a_along_k, False, 1)[None, :], i_inside[:, None] & l_inside[None, :],
                    A_FN, A_KIND, PRODUCT,
                )  # fmt: skip
                y_re, y_im = fetched(
                    b, b_columns + side_offset(l, k, b_along_k, False, 1)[:, None],
                    l_inside[:, None] & j_inside[None, :], B_FN, B_KIND, PRODUCT,
                )  # fmt: skip
                # (2.2) Add the products of parts that there are.
                re = tl.dot(x_re, y_re, re, input_precision=PRECISION, out_dtype=ACCUMULATE)
                if B_KIND[1]:
                    im = tl.dot(x_re, y_im, im, input_precision=PRECISION, out_dtype=ACCUMULATE)
                if A_KIND[1]:
                    im = tl.dot(x_im, y_re, im, input_precision=PRECISION, out_dtype=ACCUMULATE)
                    if B_KIND[1]:
                        re = tl.dot(-x_im, y_im, re, input_precision=PRECISION, out_dtype=ACCUMULATE)
                re = settled(re)
                im = settled(im)
        # (3) Finish and store.
        if FACTORS:
            factor = factor_at(outputs + 4 * result + 3, ACCUMULATE)
            re *= factor
            im *= factor
        re *= scalar(alpha, ACCUMULATE)
        im *= scalar(alpha, ACCUMULATE)
        d_rows = side_offset(i, m, side_strides(own, AT_M, SIDES[1], 2, False, 1), False, 1)
        d_columns = side_offset(j, n, side_strides(own, AT_N, SIDES[2], 2, False, 1), False, 1)
        offsets = start + batch_offset(own, batch, SIDES[0], 2, 1) + (d_rows[:, None] + d_columns[None, :])
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
