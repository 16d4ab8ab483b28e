"""The texts of warp-specialised kernels for Hopper, in Gluon: sums over S of float32, whose products are of terms.

C is one column, or there is none. A value of A or B is the sum of two or three terms in 16 bits; products of small
terms come first, so that sums are small where they are cut off (`weft.cascades.arguments` says which there are).

    role          warps    does
    producer      1        loads the terms of the tile of A, then those of B for each tile of columns, by TMA
    consumer 0, 1 4 each   half of the tile's rows: the products by wgmma, the function, its sums

A consumer begins the scores of the next tile, and makes the function of those of this one while they are multiplied:

    u = a1 b0[j + 1]^T + a0 b1[j + 1]^T + a0 b0[j + 1]^T | sums += REST(t) | wait: u | t = u

The wait for the barrier of the tile after stands between, as in `hopper`. Behind the last tile one is multiplied again.

In the kernels for gradients a program has a tile of rows, or of columns, and goes along the others; x are the terms of
what stays, y of what moves:

    rows       dA = dS B * alpha
    columns    dB = dS^T A * alpha          dC = sum over m of (P factor) dD

    u = x y[j + 1]^T | P, dS = PULL(t) | found += dS y[j] | wait: u, found | t = u

dS is split into terms in registers. Products of small terms are added up apart from those of the first ones, which are
large: nothing is cut off of them. Both kernels add up in one order: results are the same from run to run.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.cascades import step
from weft.cascades.backward_kernel import BackwardForm, pulled, weighed
from weft.cascades.hopper import GROUPS, ROWS, STRETCHES, assembled, roles, stored
from weft.cascades.kernel import PLACE, KernelForm, along, mask
from weft.cascades.step import Words

_WORDS = Words("gl", "ROWS", "BN", "S")
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
{roles(("producer", ""))}"""


def hopper_sums_text(form: KernelForm, given: Sequence[str], constants: Sequence[str]) -> str:
    """The source of a `@gluon.jit` kernel and of its roles; the kernel's name is a digest of them."""
    return assembled(given, constants, SHARED, PLACE, (PRODUCER, KERNEL, _consumer(form)))


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


def hopper_sums_backward_text(form: BackwardForm, given: Sequence[str], constants: Sequence[str]) -> str:
    """The source of a `@gluon.jit` kernel and of its roles; the kernel's name is a digest of them."""
    extent = "N" if form.columns else "M"
    at = [f"tile = tl.cdiv({extent}, BM) - 1 - tl.program_id(0)", "batch = tl.to_tensor(0)"]
    return assembled(given, constants, SHARED, at, (PRODUCER, KERNEL, _pull_consumer(form)))


def _words(form: BackwardForm) -> Words:
    return Words("gl", "BN", "ROWS", "S", across=True) if form.columns else Words("gl", "ROWS", "BN", "S")


def _pull_consumer(form: BackwardForm) -> list[str]:
    words, axis = _words(form), "n" if form.columns else "m"
    names = ("c", *(f"x{at}" for at in form.wanted))
    lines = [
        *LAYOUTS,
        "X: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BK, 16])",
        "P: gl.constexpr = gl.DotOperandLayout(0, X, 2)",
        *STRETCHES,
        f"{axis} = tile * {GROUPS * ROWS} + CONSUMER * ROWS + {words.along(axis)}",
        f"{axis}_in = {axis} < {axis.upper()}",
        "alpha = 1.0",
        *step.beginning(form.step, words),
        *(_of_columns(form, False) if form.columns else _of_rows(form, False)),
        "found = gl.full([ROWS, BK], 0.0, SUMS, X)",
        "low = gl.full([ROWS, BK], 0.0, SUMS, X)",
        *(f"of_{name} = gl.full([ROWS], 0.0, SUMS, gl.SliceLayout(1, S))" for name in names),
        *BEGUN,
        *along(form.stretches, "for first in range({}, {}, BN):", lambda inside: _pull_tile(form, inside)),
    ]
    return [*lines, *_pull_stores(form, axis)]


def _of_rows(form: BackwardForm, inside: bool) -> list[str]:
    """Values of each row that are known, and its element of dD."""
    mask = "" if inside else ", mask=m_in, other=0.0"
    lines = [f"{name} = gl.load({name}_of + m{mask})" for name in form.known]
    if form.step.meets:
        lines.append(f"do = gl.load(d + m{mask})")
    return lines + [f"base{at} = shift{at} * {step.unit_of(form.step)}" for at in range(len(form.step.peaks))]


def _of_columns(form: BackwardForm, inside: bool) -> list[str]:
    """The column of C."""
    mask = "" if inside else ", mask=n_in, other=0.0"
    return [f"third = gl.load(c + n * sc_n{mask})"] if form.step.meets else []


def _pull_tile(form: BackwardForm, inside: bool) -> list[str]:
    words, axis = _words(form), "m" if form.columns else "n"
    return [
        "stage = number % STAGES",
        "t = u * factor_of_s",
        "u = term_scores(qs, bs, CONSUMER, (number + 1) % STAGES, TERMS, S)",
        f"{axis} = first // BN * BN + {words.along(axis)}",
        f"{axis}_in = {axis} < {axis.upper()}",
        *(_of_rows(form, inside) if form.columns else _of_columns(form, inside)),
        *_pulled(form, words, inside),
        "found, low = add_terms(ds, bs, stage, found, low, TERMS, PRODUCT, P)",
        awaited("number + 2"),
        "u, found, low = warpgroup_mma_wait(0, deps=(u, found, low))",
        "meet_and_arrive(b_empty.index(stage))",
        "number += 1",
    ]


def _pulled(form: BackwardForm, words: Words, inside: bool) -> list[str]:
    """The gradient of a tile of S, `ds`, and what P adds to dC."""
    lines = weighed(form, words, inside, inside)
    lines += pulled(form, words, inside, f"{words.row('do')} * {words.column('third')}")
    if form.step.meets and form.columns:
        lines.append(f"of_c += gl.sum(p * {words.row('do')}{form.by_factor}, 1)")
    return lines + [f"of_x{at} += gl.sum(dx{at}, 1)" for at in form.wanted]


def _pull_stores(form: BackwardForm, axis: str) -> list[str]:
    to, extent = ("db", "N") if form.columns else ("da", "M")
    lines = stored(to, "(found + low) * factor_of_s", "BK", extent, "K")
    lines += [f"gl.store(dx{at}_to + {axis}, of_x{at}, mask={axis}_in)" for at in form.wanted]
    if form.step.meets and form.columns:
        lines.append(f"gl.store(dc + {axis}, of_c.to(dc.dtype.element_ty), mask={axis}_in)")
    return lines
