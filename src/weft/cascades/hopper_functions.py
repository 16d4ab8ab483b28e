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
def add_rows(to, rows):
    """Add what `rows_of_both` has to float32 numbers in memory, in the order of registers: four of each thread."""
    GROUPS: gl.constexpr = rows.shape[1] // 8
    found = rows.reshape([4, 2, 8, GROUPS, 4, 2]).permute([3, 0, 2, 4, 1, 5]).reshape([512 * GROUPS])
    gl.atomic_add(to + gl.arange(0, 512 * GROUPS, layout=found.type.layout), found, sem="relaxed")


@gluon.jit
def take_turns(turns, before, tile, count):
    """Wait until it is the turn of a tile of columns at the first of `count` places, and at how many from there on.

    Places go backwards from where `turns`, which counts the turns that were had, and `before`, the first tile that has
    one, are. A warp looks at 32 of them; what others have added there is in memory.
    """
    return gl.inline_asm_elementwise(
        """{
        .reg .pred there;
        .reg .b32 lane, first, had;
        .reg .b64 at, place;
        mov.u32 lane, %laneid;
        sub.s32 had, $4, 1;
        min.s32 lane, lane, had;
        mul.wide.s32 at, lane, -4;
        add.s64 place, $2, at;
        ld.global.b32 first, [place];
        sub.s32 first, $3, first;
        add.s64 place, $1, at;
        again: ld.acquire.gpu.global.b32 had, [place];
        setp.ge.s32 there, had, first;
        vote.sync.ballot.b32 had, there, 0xffffffff;
        not.b32 had, had;
        brev.b32 had, had;
        clz.b32 $0, had;
        setp.eq.s32 there, $0, 0;
        @there bra again;
        min.s32 $0, $0, $4;
        }""",
        "=r,l,l,r,r", [turns, before, tile, count], dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def give_turn(place):
    """Let the next one have its turn, which finds there what was added before the warp came here."""
    gl.inline_asm_elementwise(
        """{
        .reg .pred first;
        .reg .b32 lane;
        mov.u32 lane, %tid.x;
        and.b32 lane, lane, 31;
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
    "scores": scores, "term_scores": term_scores, "add_terms": add_terms, "as_it_is": as_it_is,
    "stored_layout": stored_layout, "fence_async_shared": fence_async_shared, "rows_of_both": rows_of_both,
    "add_rows": add_rows, "take_turns": take_turns, "give_turn": give_turn,
}  # fmt: skip
