"""The text of a warp-specialised kernel for gradients on Hopper, in Gluon, of what `hopper_sums` makes.

A program has a tile of rows, or of columns, and goes along the others; x are the terms of what stays, y of what moves:

    rows       dA = dS B * alpha
    columns    dB = dS^T A * alpha          dC = sum over m of (P factor) dD

    u = x y[j + 1]^T | P, dS = PULL(t) | found += dS y[j] | wait: u, found | t = u

dS is split into terms in registers. Products of small terms are added up apart from those of the first ones, which are
large: nothing is cut off of them. Both kernels add up in one order: results are the same from run to run.
"""

from __future__ import annotations

from weft.cascades import step
from weft.cascades.backward_kernel import BackwardForm, pulled, weighed
from weft.cascades.hopper import GROUPS, ROWS, STRETCHES, assembled
from weft.cascades.hopper_sums import BEGUN, KERNEL, LAYOUTS, PRODUCER, SHARED, awaited
from weft.cascades.kernel import along
from weft.cascades.step import Words

CONSTANTS = ("BN", "BK", "FIRST", "FIRST_SETTLED", "PULL", "PULL_SETTLED", "SUMS", "PRODUCT", "TERMS", "STAGES")


def hopper_sums_backward_text(form: BackwardForm) -> str:
    """The source of a `@gluon.jit` kernel and of its roles; the kernel's name is a digest of them."""
    given = [*form.parameters(), "stretches", "factor_of_s", "B", "M", "N", "K", "sc_n", *step.parameters(form.step)]
    extent = "N" if form.columns else "M"
    at = [f"tile = tl.cdiv({extent}, BM) - 1 - tl.program_id(0)", "batch = tl.to_tensor(0)"]
    return assembled(given, CONSTANTS, SHARED, at, (PRODUCER, KERNEL, _consumer(form)))


def _words(form: BackwardForm) -> Words:
    return Words("gl", "BN", "ROWS", "S", across=True) if form.columns else Words("gl", "ROWS", "BN", "S")


def _consumer(form: BackwardForm) -> list[str]:
    words, axis = _words(form), "n" if form.columns else "m"
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
        *(f"{name} = gl.full([ROWS], 0.0, SUMS, gl.SliceLayout(1, S))" for name in ("of_c", *_of_inputs(form))),
        *BEGUN,
        *along(form.stretches, "for first in range({}, {}, BN):", lambda inside: _tile(form, inside)),
    ]
    return [*lines, *_stores(form, axis)]


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


def _tile(form: BackwardForm, inside: bool) -> list[str]:
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


def _of_inputs(form: BackwardForm) -> list[str]:
    return [f"of_x{at}" for at in form.wanted]


def _stores(form: BackwardForm, axis: str) -> list[str]:
    to, extent = ("db", "N") if form.columns else ("da", "M")
    lines = [
        "OUT: gl.constexpr = stored_layout(BK)",
        f"value = gl.convert_layout(((found + low) * factor_of_s).to({to}.dtype.element_ty), OUT)",
        f"line = tile * {GROUPS * ROWS} + CONSUMER * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(1, OUT))",
        "at = gl.arange(0, BK, layout=gl.SliceLayout(0, OUT))",
        f"place = {to} + line.to(gl.int64)[:, None] * K + at[None, :]",
        f"gl.store(place, value, mask=(line < {extent})[:, None] & (at < K)[None, :])",
    ]
    lines += [f"gl.store(dx{at}_to + {axis}, of_x{at}, mask={axis}_in)" for at in form.wanted]
    if form.step.meets and form.columns:
        lines.append(f"gl.store(dc + {axis}, of_c.to(dc.dtype.element_ty), mask={axis}_in)")
    return lines
