"""Kernels for groups of products, of real and of complex elements."""

from __future__ import annotations

import triton
import triton.language as tl

from weft.fn.triton.device_math import to_type
from weft.gpu.common.device import load_or_zero, pdl_begin, scalar
from weft.gpu.common.tiles import settled


@triton.constexpr_function
def modes_before(SIDE, SIDES):
    """Modes of the sides before this one: batch, m, n, k are sides 0 to 3."""
    return sum(SIDES[:SIDE])


@triton.constexpr_function
def is_line(SIDE, TENSOR, LINES):
    """Whether A, B or D (`TENSOR` 0, 1, 2) is contiguous along the last mode of a side."""
    return SIDE > 0 and LINES[TENSOR] == SIDE


@triton.constexpr_function
def run_along(SIDE, LINES, RUNS):
    """The number that the extent of that mode is a multiple of."""
    return max([1, *[run for line, run in zip(LINES, RUNS, strict=True) if line == SIDE]])


@triton.jit
def side_extents(row, SIDE: tl.constexpr, FORM: tl.constexpr):
    """Extents of the modes of a side."""
    FIRST: tl.constexpr = modes_before(SIDE, FORM.sides)
    RUN: tl.constexpr = run_along(SIDE, FORM.lines, FORM.runs)
    extents = ()
    for j in tl.static_range(FORM.sides[SIDE]):
        extent = tl.load(row + 3 + 4 * (FIRST + j)).to(tl.int32)
        extents += (tl.multiple_of(extent, RUN if j + 1 == FORM.sides[SIDE] else 1),)
    return extents


@triton.jit
def extent_of(extents):
    """The product of a side's extents."""
    extent = extents[0]
    for j in tl.static_range(1, len(extents)):
        extent = extent * extents[j]
    return extent


@triton.jit
def side_strides(row, SIDE: tl.constexpr, TENSOR: tl.constexpr, FORM: tl.constexpr):
    """Strides of a side's modes in a tensor, multiples of its run; of the last one nothing is read where it is
    contiguous there."""
    FIRST: tl.constexpr = modes_before(SIDE, FORM.sides)
    strides = ()
    for j in tl.static_range(FORM.sides[SIDE]):
        if is_line(SIDE, TENSOR, FORM.lines) and j + 1 == FORM.sides[SIDE]:
            strides += (1,)
        else:
            stride = tl.load(row + 4 + 4 * (FIRST + j) + TENSOR).to(tl.int32)
            strides += (tl.multiple_of(stride, FORM.runs[TENSOR]),)
    return strides


@triton.jit
def side_offset(index, extents, strides, SIDE: tl.constexpr, TENSOR: tl.constexpr, FORM: tl.constexpr):
    """Offsets in a tensor of flattened indices of a side, the last mode fastest; indices along a line go by whole
    runs."""
    COUNT: tl.constexpr = len(extents)
    RUN: tl.constexpr = FORM.runs[TENSOR]
    offset = index * 0
    rest = index
    for j in tl.static_range(COUNT):
        if j + 1 < COUNT:
            offset += rest % extents[COUNT - 1 - j] * strides[COUNT - 1 - j]
            rest = rest // extents[COUNT - 1 - j]
        else:
            offset += rest * strides[0]
    if is_line(SIDE, TENSOR, FORM.lines) and RUN > 1:
        offset = tl.max_contiguous(tl.multiple_of(offset, RUN), RUN)
    return offset


@triton.jit
def offsets_along(index, extents, row, SIDE: tl.constexpr, TENSOR: tl.constexpr, FORM: tl.constexpr):
    """`side_offset` by the strides of a row of the table."""
    return side_offset(index, extents, side_strides(row, SIDE, TENSOR, FORM), SIDE, TENSOR, FORM)


@triton.jit
def batch_offset(row, batch, TENSOR: tl.constexpr, FORM: tl.constexpr):
    """The offset in a tensor of an index of the batch."""
    return offsets_along(batch, side_extents(row, 0, FORM), row, 0, TENSOR, FORM)


@triton.jit
def factor_at(place, DTYPE: tl.constexpr):
    """A factor of the tables."""
    return tl.load(place).to(tl.float64, bitcast=True).to(DTYPE)


@triton.jit
def tile_at(tile, rows, outputs, tiles, TILE: tl.constexpr, FORM: tl.constexpr):
    """A tile of a result: its row of the table of outputs, the index of the batch, its rows and columns of the result;
    where the result starts, its first row of the table of pairs and the one past its last, how wide these are; and the
    extents of m and n with the indices that are inside."""
    WIDTH: tl.constexpr = 3 + 4 * modes_before(4, FORM.sides)
    result = tl.load(tiles + 4 * tile)
    batch = tl.load(tiles + 4 * tile + 1)
    i = tl.load(tiles + 4 * tile + 2) * TILE[0] + tl.arange(0, TILE[0])
    j = tl.load(tiles + 4 * tile + 3) * TILE[1] + tl.arange(0, TILE[1])
    output = outputs + 4 * result
    start = tl.multiple_of(tl.load(output), FORM.runs[2])
    first = tl.load(output + 1)
    last = tl.load(output + 2)
    own = rows + first * WIDTH  # extents and D's strides are the same in all rows of a result
    m = side_extents(own, 1, FORM)
    n = side_extents(own, 2, FORM)
    inside = (i < extent_of(m), j < extent_of(n))
    return output, batch, (i, j), start, (first, last, WIDTH), own, (m, n), inside


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
    FORM: tl.constexpr,  # launch.GroupLayout
    TILE: tl.constexpr,  # m, n, k
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
    ROWS: tl.constexpr = TILE[0]
    COLUMNS: tl.constexpr = TILE[1]
    for tile in range(tl.program_id(0), numbers[0], tl.num_programs(0)):
        # (1) Find the result, and this tile's rows and columns of it.
        output, batch, at, start, pairs, own, extents, inside = tile_at(tile, rows, outputs, tiles, TILE, FORM)
        i_inside, j_inside = inside
        acc = tl.zeros([ROWS, COLUMNS], dtype=ACCUMULATE)
        for pair in range(pairs[0], pairs[1]):
            row = rows + pair * pairs[2]
            if FACTORS:
                acc *= factor_at(row + 2, ACCUMULATE)
            k = side_extents(row, 3, FORM)
            depth = extent_of(k)
            a_along_k = side_strides(row, 3, 0, FORM)
            b_along_k = side_strides(row, 3, 1, FORM)
            a_start = tl.multiple_of(tl.load(row), FORM.runs[0]) + batch_offset(row, batch, 0, FORM)
            b_start = tl.multiple_of(tl.load(row + 1), FORM.runs[1]) + batch_offset(row, batch, 1, FORM)
            a_rows = offsets_along(at[0], extents[0], row, 1, 0, FORM)
            b_columns = offsets_along(at[1], extents[1], row, 2, 1, FORM)
            a_rows = a + a_start + a_rows[:, None]
            b_columns = b + b_start + b_columns[None, :]
            for k0 in range(0, depth, TILE[2]):
                # (2.1) Load tiles of A and B, and apply their functions.
                l = k0 + tl.arange(0, TILE[2])
                l_inside = l < depth
                a_depth = side_offset(l, k, a_along_k, 3, 0, FORM)[None, :]
                x = load_or_zero(a_rows + a_depth, i_inside[:, None] & l_inside[None, :])
                COMPUTED: tl.constexpr = A_FN is not None or x.dtype != PRODUCT
                x = x.to(PRODUCT)
                b_depth = side_offset(l, k, b_along_k, 3, 1, FORM)[:, None]
                y = load_or_zero(b_columns + b_depth, l_inside[:, None] & j_inside[None, :]).to(PRODUCT)
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
            acc *= factor_at(output + 3, ACCUMULATE)
        value = acc * scalar(alpha, ACCUMULATE)
        d_rows = offsets_along(at[0], extents[0], own, 1, 2, FORM)
        d_columns = offsets_along(at[1], extents[1], own, 2, 2, FORM)
        place = d + start + batch_offset(own, batch, 2, FORM) + (d_rows[:, None] + d_columns[None, :])
        mask = i_inside[:, None] & j_inside[None, :]
        if ADD:
            value += load_or_zero(place, mask).to(ACCUMULATE) * scalar(beta, ACCUMULATE)
        if EPILOGUE is not None:
            value = tl.broadcast_to(EPILOGUE(value), (ROWS, COLUMNS))
        tl.store(place, to_type(value, RESULT), mask=mask)


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
    FORM: tl.constexpr,  # launch.GroupLayout, without lines
    TILE: tl.constexpr,  # m, n, k
    ADD: tl.constexpr,  # D = alpha * sum + beta * D, else D = alpha * sum
    FACTORS: tl.constexpr,  # whether sums are multiplied by the tables' factors
    A_FN: tl.constexpr,  # functions of parts
    B_FN: tl.constexpr,
    EPILOGUE: tl.constexpr,
    PRODUCT: tl.constexpr,  # real types
    ACCUMULATE: tl.constexpr,
    RESULT: tl.constexpr,
    PRECISION: tl.constexpr,
    KINDS: tl.constexpr,  # of A, B and the sum: whether they are complex before their function, and after
    D_COMPLEX: tl.constexpr,
):
    """D = epilogue(alpha * sum over rows and k of a_fn(A) * b_fn(B) + beta * D) for every result of the group."""
    pdl_begin()
    ROWS: tl.constexpr = TILE[0]
    COLUMNS: tl.constexpr = TILE[1]
    A_KIND: tl.constexpr = KINDS[0]
    B_KIND: tl.constexpr = KINDS[1]
    SUM_KIND: tl.constexpr = KINDS[2]
    for tile in range(tl.program_id(0), numbers[0], tl.num_programs(0)):
        # (1) Find the result, and this tile's rows and columns of it.
        output, batch, at, start, pairs, own, extents, inside = tile_at(tile, rows, outputs, tiles, TILE, FORM)
        i_inside, j_inside = inside
        re = tl.zeros([ROWS, COLUMNS], dtype=ACCUMULATE)
        im = tl.zeros([ROWS, COLUMNS], dtype=ACCUMULATE)
        for pair in range(pairs[0], pairs[1]):
            row = rows + pair * pairs[2]
            if FACTORS:
                factor = factor_at(row + 2, ACCUMULATE)
                re *= factor
                im *= factor
            k = side_extents(row, 3, FORM)
            depth = extent_of(k)
            a_along_k = side_strides(row, 3, 0, FORM)
            b_along_k = side_strides(row, 3, 1, FORM)
            a_rows = offsets_along(at[0], extents[0], row, 1, 0, FORM)[:, None]
            b_columns = offsets_along(at[1], extents[1], row, 2, 1, FORM)[None, :]
            a_rows += tl.load(row) + batch_offset(row, batch, 0, FORM)
            b_columns += tl.load(row + 1) + batch_offset(row, batch, 1, FORM)
            for k0 in range(0, depth, TILE[2]):
                # (2.1) Load tiles of A and B, both parts of each, and apply their functions.
                l = k0 + tl.arange(0, TILE[2])
                l_inside = l < depth
                a_at = a_rows + side_offset(l, k, a_along_k, 3, 0, FORM)[None, :]
                x_re, x_im = fetched(a, a_at, i_inside[:, None] & l_inside[None, :], A_FN, A_KIND, PRODUCT)
                b_at = b_columns + side_offset(l, k, b_along_k, 3, 1, FORM)[:, None]
                y_re, y_im = fetched(b, b_at, l_inside[:, None] & j_inside[None, :], B_FN, B_KIND, PRODUCT)
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
            factor = factor_at(output + 3, ACCUMULATE)
            re *= factor
            im *= factor
        re *= scalar(alpha, ACCUMULATE)
        im *= scalar(alpha, ACCUMULATE)
        d_rows = offsets_along(at[0], extents[0], own, 1, 2, FORM)
        d_columns = offsets_along(at[1], extents[1], own, 2, 2, FORM)
        offsets = start + batch_offset(own, batch, 2, FORM) + (d_rows[:, None] + d_columns[None, :])
        mask = i_inside[:, None] & j_inside[None, :]
        if ADD:
            before_re, before_im = load_pair(d, offsets, mask, D_COMPLEX)
            re += before_re.to(ACCUMULATE) * scalar(beta, ACCUMULATE)
            im += before_im.to(ACCUMULATE) * scalar(beta, ACCUMULATE)
        if EPILOGUE is not None:
            re, im = applied(re, im, EPILOGUE, SUM_KIND[0], SUM_KIND[1])
        re = tl.broadcast_to(re, (ROWS, COLUMNS)).to(RESULT)
        im = tl.broadcast_to(im, (ROWS, COLUMNS)).to(RESULT)
        if D_COMPLEX:
            tl.store(d + 2 * offsets, re, mask=mask)
            tl.store(d + 2 * offsets + 1, im, mask=mask)
        else:
            tl.store(d + offsets, re, mask=mask)
