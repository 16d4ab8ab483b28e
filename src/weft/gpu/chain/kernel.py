"""Y[b, p, r] = sum over q and c of G[p, q] X[b, q, c] M[c, r]: two products, and nothing between them in memory.

    for blocks of c:   U = G X[:, :, c]       (rows of several b at once: G repeats along the diagonal of a matrix)
                       Y += U M[c, :]         U goes from one product's registers to the other's

Each program has a block of b and p, all of q, and a block of r. U is made again for every block of r, which costs q / r
of the second product.
"""

from __future__ import annotations

import triton
import triton.language as tl

from weft.fn.triton.device_cast import to_type
from weft.gpu.common.device import load_or_zero, scalar
from weft.gpu.common.pdl import pdl_begin
from weft.gpu.common.tiles import settled


@triton.jit
def stride_of(numbers, AT: tl.constexpr, UNIT: tl.constexpr):
    """A stride, or one where that is known when the kernel is compiled."""
    if UNIT:
        return 1
    else:
        return numbers[AT]


@triton.jit(do_not_specialize=["alpha", "beta", "numbers"])
def chain_kernel(
    g,  # (p, q)
    x,  # (b, q, c)
    m,  # (c, r)
    y,  # (b, p, r)
    alpha: tl.int64,  # bits, see `scalar`
    beta: tl.int64,
    numbers,  # extents b, p, q, c, r; strides of g (p, q), x (b, q, c), m (c, r), y (b, p, r)
    TILE: tl.constexpr,  # b, p, q, c, r
    UNIT: tl.constexpr,  # whether the last stride of each tensor is 1
    ADD: tl.constexpr,  # Y = alpha * sum + beta * Y, else Y = alpha * sum
    PRODUCT: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    RESULT: tl.constexpr,
    PRECISION: tl.constexpr,
    MIDDLE: tl.constexpr,  # the type of the intermediate, and its products' precision
    MIDDLE_PRECISION: tl.constexpr,
):
    """One output tile for each program."""
    pdl_begin()
    # (1) Find this program's rows (b, p) and columns r.
    program = tl.program_id(0)
    across = tl.cdiv(numbers[4], TILE[4])
    down = tl.cdiv(numbers[1], TILE[1])
    r = program % across * TILE[4] + tl.arange(0, TILE[4])
    rest = program // across
    row = tl.arange(0, TILE[0] * TILE[1])
    b = rest // down * TILE[0] + row // TILE[1]
    p = rest % down * TILE[1] + row % TILE[1]
    inner = tl.arange(0, TILE[0] * TILE[2])  # rows of X's tile: b and q
    b_inner = rest // down * TILE[0] + inner // TILE[2]
    q = inner % TILE[2]
    row_inside = (b < numbers[0]) & (p < numbers[1])
    inner_inside = (b_inner < numbers[0]) & (q < numbers[2])
    r_inside = r < numbers[4]

    # (2) G, once: its tile for each b, zero between different ones.
    offsets = p[:, None] * numbers[5] + q[None, :] * stride_of(numbers, 6, UNIT[0])
    same = b[:, None] == b_inner[None, :]
    left = load_or_zero(g + offsets, row_inside[:, None] & inner_inside[None, :] & same).to(PRODUCT)

    x_rows = x + b_inner.to(tl.int64)[:, None] * numbers[7] + q[:, None] * numbers[8]
    m_columns = m + r[None, :] * stride_of(numbers, 11, UNIT[2])
    ROWS: tl.constexpr = TILE[0] * TILE[1]
    COLUMNS: tl.constexpr = TILE[4]
    acc = tl.zeros([ROWS, COLUMNS], dtype=ACCUMULATE)
    for c0 in range(0, numbers[3], TILE[3]):
        # (3) A block of the intermediate, and its product with M.
        c = c0 + tl.arange(0, TILE[3])
        inside = c < numbers[3]
        here = x_rows + c[None, :] * stride_of(numbers, 9, UNIT[1])
        middle = load_or_zero(here, inner_inside[:, None] & inside[None, :]).to(PRODUCT)
        u = tl.dot(left, middle, input_precision=PRECISION, out_dtype=ACCUMULATE).to(MIDDLE)
        right = load_or_zero(m_columns + c[:, None] * numbers[10], inside[:, None] & r_inside[None, :])
        acc = tl.dot(u, right.to(PRODUCT).to(MIDDLE), acc, input_precision=MIDDLE_PRECISION, out_dtype=ACCUMULATE)
        acc = settled(acc)

    # (4) Store.
    value = acc * scalar(alpha, ACCUMULATE)
    place = y + b.to(tl.int64)[:, None] * numbers[12] + p[:, None] * numbers[13]
    place += r[None, :] * stride_of(numbers, 14, UNIT[3])
    mask = row_inside[:, None] & r_inside[None, :]
    if ADD:
        value += load_or_zero(place, mask).to(ACCUMULATE) * scalar(beta, ACCUMULATE)
    tl.store(place, to_type(value, RESULT), mask=mask)
