"""Device functions of the warp-specialised kernel for cascades."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from weft.gpu.common.triton_versions import gluon_names
from weft.gpu.warp_specialized.pipeline import barriers, meet_and_arrive

_, tma_load, _, reinterpret = gluon_names()


@gluon.jit
def load(tensor_map, start, bar, to):
    """Request a tile. TMA arrives at `bar` with the bytes that it has written."""
    tma_load(tensor_map, start, bar, reinterpret(to, tensor_map.dtype, tensor_map.block_shape, tensor_map.layout))


@gluon.jit
def scores(
    q,  # (rows, k), in shared memory
    b,  # (columns, k), in shared memory
    LAYOUT: gl.constexpr,
):
    """Begin a tile of S, (rows, columns)."""
    ROWS: gl.constexpr = q.shape[0]
    COLUMNS: gl.constexpr = b.shape[0]
    nothing = gl.zeros([ROWS, COLUMNS], gl.float32, LAYOUT)
    return warpgroup_mma(q, b.permute((1, 0)), nothing, use_acc=False, is_async=True)


@gluon.jit
def term_scores(
    qs,  # terms of each consumer's rows, (rows, k), in shared memory
    bs,  # terms of each stage's columns, (columns, k), in shared memory
    consumer,
    stage,
    TERMS: gl.constexpr,
    LAYOUT: gl.constexpr,
):
    """Begin a tile of S, (rows, columns), of products of terms, small ones first."""
    ROWS: gl.constexpr = qs.shape[1]
    COLUMNS: gl.constexpr = bs.shape[1]
    found = gl.zeros([ROWS, COLUMNS], gl.float32, LAYOUT)
    for back in gl.static_range(TERMS):
        for at in gl.static_range(TERMS - back):
            left = qs.index(consumer * TERMS + TERMS - 1 - back - at)
            right = bs.index(stage * TERMS + at).permute((1, 0))
            found = warpgroup_mma(left, right, found, use_acc=back + at > 0, is_async=True)
    return found


@gluon.jit
def add_terms(
    x,  # (rows, n), float32, in registers
    bs,  # terms of each stage's columns, (n, k), in shared memory
    stage,
    found,  # (rows, k): sums of products of first terms
    low,  # those of others
    TERMS: gl.constexpr,
    PRODUCT: gl.constexpr,
    LAYOUT: gl.constexpr,
):
    """Begin to add products with terms of x, which is split here, to sums."""
    for at in gl.static_range(TERMS):
        term = x.to(PRODUCT)
        x = x - term.to(gl.float32)
        left = gl.convert_layout(term, LAYOUT)
        for of_b in gl.static_range(TERMS - at):
            right = bs.index(stage * TERMS + of_b)
            if at + of_b == 0:
                found = warpgroup_mma(left, right, found, is_async=True)
            else:
                low = warpgroup_mma(left, right, low, is_async=True)
    return found, low


@gluon.jit
def as_it_is(x):
    """A tile of 16-bit values, which the compiler does not look behind: it would round them in the next round of a
    loop, where registers that it read are read again."""
    return gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=x.dtype, is_pure=True, pack=2)


@gluon.constexpr_function
def stored_layout(columns):
    """Rows of D in registers: a lane has neighbours of one row, and lanes next to each other too."""
    lanes = min(32, columns // 8)
    return gl.BlockedLayout([1, 8], [32 // lanes, lanes], [4, 1], [1, 0])


#: Functions and modules that the text of a kernel names.
NAMES = {
    "gluon": gluon, "gl": gl, "mbarrier": mbarrier, "warpgroup_mma": warpgroup_mma,
    "warpgroup_mma_wait": warpgroup_mma_wait, "barriers": barriers, "meet_and_arrive": meet_and_arrive, "load": load,
    "scores": scores, "term_scores": term_scores, "add_terms": add_terms, "as_it_is": as_it_is,
    "stored_layout": stored_layout,
}  # fmt: skip
