"""The texts of two Triton kernels for gradients of a cascade of one pass, which make S again, tile by tile.

    rows       a program has a tile of rows, and goes along the columns          dA = dS B * alpha
    columns    a program has a tile of columns, and goes along the rows,         dB = dS^T A * alpha
               with tiles of (columns, rows)                                     dC = (P factor)^T dD

`PULL` takes S, inputs, peaks, exponentials over them, the gradient of what meets C, which is ``(dD C^T) factor``, and
those of sums: it makes P and dS, and gradients of operands that have the rows, or the columns, and nothing else: these
are summed as dA and dB are. Both kernels add up in one order: results are the same from run to run.

Two small kernels stand around them: what is known of each row, and dA rounded.

    known      total = sum_e dD D,  of_factor = total / factor,  grad of each sum = OF_SUMS(..., of_factor)
    rounded    dA = (sums of dA) * alpha, of sums that lie in tiles as the registers of warp groups do

A program is `folded` where all that it sums and multiplies has one peak and a positive factor: exponentials over

    shift = peak - log(factor)

have the factor in them, and gradients of sums are divided by it. A row whose factor is 0 adds nothing: shift is inf.
"""

from __future__ import annotations

from typing import NamedTuple

from weft.cascades import step
from weft.cascades.kernel import PLACE, along, indented, mask, matrix, offsets
from weft.cascades.step import TRITON, StepForm, Words


class BackwardForm(NamedTuple):
    """All that the text of a kernel depends on."""

    step: StepForm
    columns: bool  # whether it is the one of the columns
    factor: bool  # D has a factor
    stretches: tuple[bool, bool, bool]
    outer: tuple[int, ...]  # labels of the batch that A, B and C have
    whole: tuple[bool, bool, bool]  # whether tiles end where N, K and E do
    wanted: tuple[int, ...] = ()  # inputs along what stays whose gradients are wanted

    @property
    def words(self) -> Words:
        return Words("tl", "BM", "BN", "", across=self.columns)

    @property
    def known(self) -> list[str]:
        """Names of what is known of each row: peaks, gradients of sums, the factor of D."""
        return [*vectors(self.step), *(["factor"] if self.factor else [])]

    @property
    def by_factor(self) -> str:
        """The factor of D that a tile is multiplied with."""
        return f" * {self.words.row('factor')}" if self.factor else ""


_ADDED = "{0} = settled(tl.dot({1}.to(PRODUCT), {2}, {0}, input_precision=PRECISION, out_dtype=SUMS))"


def vectors(form: StepForm) -> list[str]:
    """Peaks, and gradients of sums, of each row."""
    return [*(f"shift{at}" for at in range(len(form.peaks))), *(f"grad{at}" for at in range(len(form.sums)))]


def _of_rows(form: BackwardForm) -> list[str]:
    """Tiles of A and of dD, and what is known of each row."""
    lines = ["row = batch * M + m", f"q = {matrix('a', 'm', 'k', False, form.whole)}.to(PRODUCT)"]
    if form.step.meets:
        there = mask(("m_in[:, None]", False), ("(e[None, :] < E)", form.whole[2]))
        lines.append(f"do = tl.load(d + m.to(tl.int64)[:, None] * E + e[None, :]{there}).to(PRODUCT)")
    lines += [f"{name} = tl.load({name}_of + row, mask=m_in, other=0.0)" for name in form.known]
    lines += [f"base{at} = shift{at} * {step.unit_of(form.step)}" for at in range(len(form.step.peaks))]
    return lines


def _of_columns(form: BackwardForm, inside: bool) -> list[str]:
    """Tiles of B and C, (columns, k) and (columns, e)."""
    tiles = [("keys", "b", "k"), *([("third", "c", "e")] if form.step.meets else [])]
    return [f"{name} = {matrix(of, 'n', depth, inside, form.whole)}.to(PRODUCT)" for name, of, depth in tiles]


def weighed(form: BackwardForm, words: Words, inside: bool, loaded: bool = False) -> list[str]:
    """S of a tile of products, and exponentials over peaks. `loaded`: inputs that are others in each tile are whole."""
    weighs = [at for at, peak in enumerate(form.step.peaks) if peak.weighs]
    lines = [step.of_scores(form.step), *step.moving(form.step, words, loaded)]
    lines += step.exponents(form.step, words, inside)
    return lines + [step.exponential(form.step, at, words) for at in weighs]


def pull(form: BackwardForm, words: Words, inside: bool) -> tuple[str, list[str]]:
    """The call of the function for gradients, and the names of its results."""
    results = [*(["p"] if form.step.meets else []), "ds", *(f"dx{at}" for at in form.wanted)]
    given = [*step.given(form.step, words), *(["dp"] if form.step.meets else [])]
    given += [words.row(f"grad{at}") for at in range(len(form.step.sums))]
    return f"{', '.join(results)} = {'PULL_SETTLED' if inside else 'PULL'}({', '.join(given)})", results


def pulled(form: BackwardForm, words: Words, inside: bool, dp: str) -> list[str]:
    """P, `p`, and gradients of a tile of S and of inputs; `dp` is the gradient of what meets C before its factor."""
    call, results = pull(form, words, inside)
    lines = [f"dp = {dp}{form.by_factor}", call] if form.step.meets else [call]
    for name in results:
        lines.append(f"{name} = {step.tile(name, words)}")
        if not inside:
            lines.append(f"{name} = {words.library}.where({words.inside}, {name}, 0.0)")
    return lines


def _pulled(form: BackwardForm, inside: bool) -> list[str]:
    """P times its factor, and the gradient of a tile of S, of products that are made here."""
    pairs = ("q, tl.trans(keys)", "do, tl.trans(third)")
    if form.columns:
        pairs = ("keys, tl.trans(q)", "third, tl.trans(do)")
    scores, of_p = (f"tl.dot({pair}, input_precision=PRECISION, out_dtype=SUMS)" for pair in pairs)
    lines = [f"t = {scores}", *weighed(form, form.words, inside), *pulled(form, form.words, inside, of_p)]
    if form.step.meets and form.factor:
        lines.append(f"p = p{form.by_factor}")
    return lines + [f"of_x{at} += tl.sum(dx{at}, 1)" for at in form.wanted]


def backward_lines(form: BackwardForm) -> list[str]:
    """The lines of the kernel of the rows, or of the columns."""
    axis, moves = ("n", "m") if form.columns else ("m", "n")
    extent, size = axis.upper(), f"B{axis.upper()}"
    of_c = form.columns and form.step.meets

    def tile(inside: bool) -> list[str]:
        lines = [f"{moves} = {moves}0 + tl.arange(0, B{moves.upper()})", f"{moves}_in = {moves} < {moves.upper()}"]
        lines += _of_rows(form) if form.columns else _of_columns(form, inside)
        lines += _pulled(form, inside)
        lines += [_ADDED.format("of_c", "p", "do")] if of_c else []
        return [*lines, _ADDED.format("found", "ds", "q" if form.columns else "keys")]

    lines = [
        f"tiles = tl.cdiv({extent}, {size})",
        "tile = tiles - 1 - tl.program_id(0) % tiles" if not form.columns else "tile = tl.program_id(0) % tiles",
        "batch = (tl.program_id(0) // tiles).to(tl.int64)",
        f"{axis} = tile * {size} + tl.arange(0, {size})",
        f"{axis}_in = {axis} < {extent}",
        "k = tl.arange(0, BK)",
        "e = tl.arange(0, BE)",
        *offsets(form.outer),
        "d += batch * M * E",
        "stretches += tile * 4",
        *(f"at{at} = tl.load(stretches + {at})" for at in range(4)),
        *step.beginning(form.step, form.words),
        *(_of_columns(form, False) if form.columns else _of_rows(form)),
        f"found = tl.zeros([{size}, BK], SUMS)",
        *(f"of_x{at} = tl.zeros([{size}], SUMS)" for at in form.wanted),
        *(["of_c = tl.zeros([BN, BE], SUMS)"] if of_c else []),
        *along(form.stretches, f"for {moves}0 in tl.range({{}}, {{}}, B{moves.upper()}):", tile),
        *(f"tl.store(dx{at}_to + batch * {extent} + {axis}, of_x{at}, mask={axis}_in)" for at in form.wanted),
        _stored("db" if form.columns else "da", f"batch * {extent} + {axis}", "found * alpha", f"{axis}_in", "k", "K"),
    ]
    return [*lines, _stored("dc", "batch * N + n", "of_c", "n_in", "e", "E")] if of_c else lines


def _stored(to: str, row: str, value: str, there: str, axis: str, extent: str) -> str:
    place = f"{to} + ({row})[:, None] * {extent} + {axis}[None, :]"
    inside = f"{there}[:, None] & ({axis}[None, :] < {extent})"
    return f"tl.store({place}, ({value}).to({to}.dtype.element_ty), mask={inside})"


ROUNDED = """\
@triton.jit
def cascade_rounded(sums, da, alpha, M, K, SIDE: tl.constexpr, BM: tl.constexpr):
    tiles = tl.cdiv(M, BM)
    batch = (tl.program_id(0) // tiles).to(tl.int64)
    m = tl.program_id(0) % tiles * BM + tl.arange(0, BM)
    k = tl.arange(0, SIDE)
    there = (m < M)[:, None] & (k < K)[None, :]
    found = tl.load(sums + tl.program_id(0).to(tl.int64) * (BM * SIDE) + tl.arange(0, BM * SIDE))
    found = tl.permute(tl.reshape(found, (SIDE // 8, BM // 16, 8, 4, 2, 2)), (1, 4, 2, 0, 3, 5))
    found = tl.reshape(found, (BM, SIDE))
    tl.store(da + (batch * M + m)[:, None] * K + k[None, :], (found * alpha).to(da.dtype.element_ty), mask=there)
"""


def found_of(form: StepForm, folded: bool) -> list[str]:
    """Names of what the kernel of what is known finds."""
    shifts = [f"shift{at}" for at in range(len(form.peaks)) if folded]
    return [*shifts, *(f"grad{at}" for at in range(len(form.sums))), *([] if folded else ["factor"])]


def known_lines(form: StepForm, folded: bool) -> list[str]:
    """The lines of the kernel of what is known, of a step whose inputs are those that lack columns."""
    peaks, sums = range(len(form.peaks)), range(len(form.sums))
    lines = [*PLACE, "m = tile * BM + tl.arange(0, BM)", "m_in = m < M", "row = batch * M + m"]
    lines += [line for at, each in enumerate(form.inputs) for line in step.input_lines(at, each, TRITON)]
    lines += [f"{name} = tl.load({name}_of + row, mask=m_in, other=1.0)" for name in step.kept(form)]
    lines += ["total = tl.zeros([BM], SUMS)", "for e0 in tl.range(0, E, BE):"]
    lines += indented([
        "e = e0 + tl.arange(0, BE)", "there = m_in[:, None] & (e < E)[None, :]",
        "at = row[:, None] * E + e[None, :]",
        "one = tl.load(d + at, mask=there, other=0.0).to(SUMS)",
        "total += tl.sum(one * tl.load(out + at, mask=there, other=0.0).to(SUMS), 1)",
    ])  # fmt: skip
    given = [f"v{at}" for at in range(len(form.inputs))] + [f"{name}[:, None]" for name in step.kept(form)]
    lines += [
        f"factor = tl.broadcast(FACTOR({', '.join(given)}), total[:, None])[0]",
        "of_factor = tl.where(factor == 0, 0.0, total[:, None] / factor)",
    ]
    if sums:
        lines.append(f"{', '.join(f'grad{at}' for at in sums)} = OF_SUMS({', '.join([*given, 'of_factor'])})")
        lines += [f"grad{at} = tl.broadcast(grad{at}, factor)[0]" for at in sums]
    if folded:
        lines.append("live = factor > 0")
        lines += [
            f"shift{at} = tl.where(live, peak{at}[:, None] - libdevice.log(factor), float('inf'))" for at in peaks
        ]
        lines += [f"grad{at} = tl.where(live, grad{at} / factor, 0.0)" for at in sums]
    lines += [f"tl.store({name}_out + row[:, None], {name}, mask=m_in[:, None])" for name in found_of(form, folded)]
    return lines
