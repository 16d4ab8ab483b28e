"""Device functions of the warp-specialised kernel for cascades."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

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
def rows_of_both(
    first,  # (columns, rows), in shared memory: those of both consumers
    second,
    xs,  # (2, columns, k), in shared memory
    CONSUMER: gl.constexpr,
):
    """Begin the sums over columns of a tile of dA, of a consumer's half of k."""
    ROWS: gl.constexpr = first.shape[1]
    HALF: gl.constexpr = xs.shape[2] // 2
    nothing = gl.zeros([ROWS, HALF], gl.float32, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HALF, 16]))
    x, y = xs.index(0).slice(CONSUMER * HALF, HALF, 1), xs.index(1).slice(CONSUMER * HALF, HALF, 1)
    found = warpgroup_mma(first.permute((1, 0)), x, nothing, use_acc=False, is_async=True)
    return warpgroup_mma(second.permute((1, 0)), y, found, is_async=True)


@gluon.jit
def add_rows(da, start, rows, SIDE: gl.constexpr, CONSUMER: gl.constexpr):
    """Add to a tile of dA, float32 numbers (rows, SIDE) that begin at row `start`, what `rows_of_both` has."""
    LAYOUT: gl.constexpr = rows.type.layout
    line = gl.arange(0, rows.shape[0], layout=gl.SliceLayout(1, LAYOUT))
    at = CONSUMER * rows.shape[1] + gl.arange(0, rows.shape[1], layout=gl.SliceLayout(0, LAYOUT))
    place = da + start.to(gl.int64) * SIDE + line[:, None] * SIDE + at[None, :]
    gl.atomic_add(place, rows, sem="relaxed")


@gluon.jit
def take_turn(place, turn):
    """Wait until so many have had their turn; what they have added is there."""
    gl.inline_asm_elementwise(
        """{
        .reg .pred there;
        again: ld.acquire.gpu.global.s32 $0, [$1];
        setp.ge.s32 there, $0, $2;
        @!there bra again;
        }""",
        "=r,l,r", [place, turn], dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def give_turn(place):
    """Let the next one have its turn, when all threads of the role have met behind what they have added."""
    gl.inline_asm_elementwise(
        """{
        .reg .pred first;
        .reg .b32 lane;
        mov.u32 lane, %tid.x;
        and.b32 lane, lane, 127;
        setp.eq.s32 first, lane, 0;
        @first red.release.gpu.global.add.s32 [$1], 1;
        mov.b32 $0, 0;
        }""",
        "=r,l", [place], dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip


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
    "scores": scores, "as_it_is": as_it_is, "stored_layout": stored_layout, "fence_async_shared": fence_async_shared,
    "rows_of_both": rows_of_both, "add_rows": add_rows, "take_turn": take_turn, "give_turn": give_turn,
}  # fmt: skip
