"""The text of a warp-specialised kernel for Hopper, in Gluon: sums over S of float32, whose products are of terms.

C is one column, or there is none. A value of A or B is the sum of two or three terms in 16 bits; products of small
terms come first, so that sums are small where they are cut off (`weft.cascades.terms` says which there are).

    role          warps    does
    producer      1        loads the terms of the tile of A, then those of B for each tile of columns, by TMA
    consumer 0, 1 4 each   half of the tile's rows: the products by wgmma, the function, its sums

A consumer begins the scores of the next tile, and makes the function of those of this one while they are multiplied:

    u = a1 b0[j + 1]^T + a0 b1[j + 1]^T + a0 b0[j + 1]^T | sums += REST(t) | wait: u | t = u

The wait for the barrier of the tile after stands between, as in `hopper`. Behind the last tile one is multiplied again.
"""

from __future__ import annotations

from weft.cascades import step
from weft.cascades.hopper import GROUPS, ROLES, ROWS, STRETCHES, assembled
from weft.cascades.kernel import PLACE, KernelForm, along, mask
from weft.cascades.step import Words

_WORDS = Words("gl", "ROWS", "BN", "S")
CONSTANTS = (
    "BN", "BK", "FIRST", "FIRST_SETTLED", "REST", "SETTLED", "FACTOR", "SUMS", "PRODUCT", "TERMS", "STAGES",
)  # fmt: skip
SHARED = ("qs", "bs", "q_full", "b_full", "b_empty")
LAYOUTS = (
    "S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BN, 16])",
    f"ROWS: gl.constexpr = {ROWS}",
)

PRODUCER = f"""\
@gluon.jit
def {{name}}_producer({{parameters}}):
    {{stretches}}
    mbarrier.expect(q_full.index(0), TERMS * {GROUPS * ROWS} * BK * 2)
    for term in gl.static_range(TERMS):
        for group in gl.static_range({GROUPS}):
            start = tile * {GROUPS * ROWS} + group * {ROWS}
            load(a, [term, start, 0], q_full.index(0), qs.index(group * TERMS + term))
    for number in range(gl.cdiv(at3 - at0, BN)):
        stage = number % STAGES
        mbarrier.wait(b_empty.index(stage), number // STAGES & 1 ^ 1)
        mbarrier.expect(b_full.index(stage), TERMS * BN * BK * 2)
        for term in gl.static_range(TERMS):
            load(b, [term, at0 + number * BN, 0], b_full.index(stage), bs.index(stage * TERMS + term))
"""

KERNEL = f"""\
    batch = batch.to(gl.int32)
    N_LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BN, BK], PRODUCT)
    Q_LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([{ROWS}, BK], PRODUCT)
    qs = gl.allocate_shared_memory(PRODUCT, [{GROUPS} * TERMS, {ROWS}, BK], Q_LAYOUT)
    bs = gl.allocate_shared_memory(PRODUCT, [STAGES * TERMS, BN, BK], N_LAYOUT)
    q_full = barriers(1, 1)
    b_full = barriers(STAGES, 1)
    b_empty = barriers(STAGES, {GROUPS})
{ROLES}"""


def hopper_sums_text(form: KernelForm) -> str:
    """The source of a `@gluon.jit` kernel and of its roles; the kernel's name is a digest of them."""
    given = ["a", "b", "c", "d", *step.pointers(form.step), "stretches", "alpha", "B", "M", "N", "sc_n"]
    given += step.parameters(form.step)
    return assembled(given, CONSTANTS, SHARED, PLACE, (PRODUCER, KERNEL, _consumer(form)))


def _consumer(form: KernelForm) -> list[str]:
    lines = [
        *LAYOUTS,
        *STRETCHES,
        f"m = tile * {GROUPS * ROWS} + CONSUMER * ROWS + {_WORDS.along('m')}",
        "m_in = m < M",
        "factor_of_s = gl.load(alpha)",
        "alpha = 1.0",
        *step.beginning(form.step, _WORDS),
        *step.states(form.step, _WORDS),
        f"acc = {_WORDS.full(['ROWS'], '0.0', 'SUMS')}",
        *BEGUN,
        "meet_and_arrive(b_empty.index(0))",
    ]
    lines += along(form.stretches, "for n0 in range({}, {}, BN):", lambda inside: _tile(form, inside))
    return [*lines, *_stores(form)]


def awaited(number: str) -> str:
    """The wait for a tile of B, where there is one."""
    return f"mbarrier.wait(b_full.index(({number}) % STAGES), ({number}) // STAGES & 1, pred={number} < end)"


#: The first scores.
BEGUN = (
    "end = gl.cdiv(at3 - at0, BN)",
    "number = gl.to_tensor(0)",
    "mbarrier.wait(q_full.index(0), 0)",
    "mbarrier.wait(b_full.index(0), 0)",
    "u = term_scores(qs, bs, CONSUMER, 0, TERMS, S)",
    awaited("number + 1"),
    "u = warpgroup_mma_wait(0, deps=(u,))",
)


def _tile(form: KernelForm, inside: bool) -> list[str]:
    return [
        "number += 1",
        "t = u * factor_of_s",
        "u = term_scores(qs, bs, CONSUMER, number % STAGES, TERMS, S)",
        *step.weighed(form.step, _WORDS, inside),
        *_multiplied(form, inside),
        awaited("number + 1"),
        "u = warpgroup_mma_wait(0, deps=(u,))",
        "meet_and_arrive(b_empty.index(number % STAGES))",
    ]


def _multiplied(form: KernelForm, inside: bool) -> list[str]:
    """The product with the column of C."""
    if form.product == -2:
        return []
    weight = step.weight(form.step, _WORDS, inside)
    scaled = f"acc * scale{form.product}" if form.product >= 0 else "acc"
    return [
        f"third = gl.load(c + n * sc_n{mask(('n_in', inside))}).to(SUMS)",
        f"acc = {scaled} + gl.sum({weight} * third[None, :], 1)",
    ]


def _stores(form: KernelForm) -> list[str]:
    lines = step.ending(form.step, _WORDS, "(batch.to(gl.int64) * M + m)", False)
    if form.product == -2:
        return lines
    lines.append("acc = acc[:, None]")
    if form.fused:
        lines.append(f"acc = acc * gl.broadcast({step.factor(form.step)}, acc)[0]")
    to = "d + (batch.to(gl.int64) * M + m)[:, None]"
    return [*lines, f"gl.store({to}, acc.to(d.dtype.element_ty), mask=m_in[:, None])"]
