"""The text of a Triton kernel for a cascade of one pass: S tile by tile, its function, and the product with C.

A program has a tile of rows m and goes along the columns n, or a share of them. Peaks, sums and the rows of D stay in
registers; `step` has the lines of the function. Columns come in three stretches: with conditions on coordinates,
without, with; a kernel has the loops of those that there are.

    t = q k^T                                (BM, BN)       by stages of BK where a tile cannot have all of K
    w, ..., p = REST(t * alpha, ...)         (BM, BN)
    acc = acc * scale + p c                  (BM, BE)       the grid's third axis goes along E

Where programs share the columns of a row, another kernel joins their states:

    peak = max_i peak[i]     scale[i] = exp(peak[i] - peak)     sum = sum_i sum[i] scale[i]     D = sum_i D[i] scale[i]
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from weft.cascades import step
from weft.cascades.step import TRITON, StepForm, Words


class KernelForm(NamedTuple):
    """All that the text of a kernel depends on."""

    step: StepForm
    product: int  # the peak that the product with C is over, -1 for none; -2 where there is no C
    fused: bool  # D is multiplied with its factor and rounded; else it stays as it was summed
    stretches: tuple[bool, bool, bool]  # which of them some tile of rows has
    outer: tuple[int, ...]  # labels of the batch that A, B and C have
    whole: tuple[bool, bool, bool]  # whether tiles end where N, K and E do
    few: int = 0  # terms of S where they are few and multiplied one by one, else 0
    single: bool = False  # C has one column, which is summed and not multiplied as a matrix
    splits: bool = False  # columns are shared by several programs, whose states are joined afterwards
    staged: bool = False  # the terms of S come in stages
    maps: bool = False  # those of A and B by tensor maps
    terms: int = 0  # that values of A and B are sums of, in 16 bits; alpha is in memory then

    @property
    def words(self) -> Words:
        """Where nothing is multiplied as a matrix, states are spread over places."""
        return TRITON._replace(spread=bool(self.few) and (self.single or self.product == -2))


def jit_text(lines: Sequence[str], given: Sequence[str], constants: Sequence[str]) -> str:
    """A `@triton.jit` function of these lines and parameters, named by a digest of its lines."""
    body = "".join(f"    {line}\n" for line in lines)
    typed = [*given, *(f"{name}: tl.constexpr" for name in constants)]
    return f"@triton.jit\ndef {digest(body)}({', '.join(typed)}):\n{body}"


def digest(body: str) -> str:
    """The name of a kernel with that body."""
    return f"cascade_{hashlib.sha256(body.encode()).hexdigest()[:16]}"


def offsets(outer: Sequence[int]) -> list[str]:
    """A, B and C of an index of the batch."""
    pairs = [(name, at) for name, count in zip("abc", outer, strict=True) for at in range(count)]
    return [f"{name} += batch // {name}_div{at} % {name}_ext{at} * {name}_step{at}" for name, at in pairs]


def names() -> dict[str, Any]:
    """The names in the text of a kernel of Triton, besides Triton's own."""
    from weft.gpu.common.tiles import settled

    return {"settled": settled}


def gluon_names() -> dict[str, Any]:
    """The names in the text of a kernel in Gluon."""
    from weft.cascades.hopper_functions import NAMES

    return NAMES


def indented(lines: Sequence[str], depth: int = 1) -> list[str]:
    return ["    " * depth + line for line in lines]


def along(stretches: Sequence[bool], loop: str, body: Callable[[bool], Sequence[str]]) -> list[str]:
    """The loops over those of the three stretches that there are; `body` is told whether conditions hold within."""
    lines = []
    for at, inside in enumerate((False, True, False)):
        if stretches[at]:
            lines += [loop.format(f"at{at}", f"at{at + 1}"), *indented(body(inside))]
    return lines


#: The tile of rows and the index of the batch of a program: the last rows, which may have most columns, first.
PLACE = (
    "rows = tl.cdiv(M, BM)",
    "tile = rows - 1 - tl.program_id(0) % rows",
    "batch = (tl.program_id(0) // rows).to(tl.int64)",
)


def kernel_lines(form: KernelForm) -> list[str]:
    """The lines of the kernel."""
    lines = [*PLACE, "m = tile * BM + tl.arange(0, BM)", "m_in = m < M", "k = tl.arange(0, BK)"]
    lines.append("e = tl.program_id(2) * BE + tl.arange(0, BE)")
    lines += offsets(form.outer)
    lines += _rows_of_a(form)
    if form.step.wide:
        lines.append("alpha = tl.full([], ALPHA, SUMS)")
    if form.terms:
        lines.append("alpha = tl.load(alpha)")
    lines += [*step.beginning(form.step, form.words), *step.states(form.step, form.words)]
    if form.product != -2:
        lines.append(f"acc = tl.zeros([BM, {'BN' if form.words.spread else 'BE'}], SUMS)")
    lines.append("stretches += (tl.program_id(1) * rows + tile) * 4")
    lines += [f"at{at} = tl.load(stretches + {at})" for at in range(4)]
    lines += along(form.stretches, "for n0 in tl.range({}, {}, BN):", lambda inside: _tile(form, inside))
    return [*lines, *_stores(form)]


def _rows_of_a(form: KernelForm) -> list[str]:
    """The tile's rows of A, all terms of them; by term where they are few."""
    if form.maps:
        return []
    if form.staged:
        return ["a += m.to(tl.int64)[:, None] * sa_m"]
    if form.few:
        row = "a + m.to(tl.int64) * sa_m"
        return [f"q{at} = tl.load({row} + {at} * sa_k, mask=m_in, other=0.0).to(SUMS)" for at in range(form.few)]
    if form.terms:
        first = [f"a + tl.cast(M, tl.int64) * {at} * sa_m" for at in range(form.terms)]
        return [f"q{at} = {matrix('a', 'm', 'k', False, form.whole, each)}" for at, each in enumerate(first)]
    return [f"q = {matrix('a', 'm', 'k', False, form.whole)}"]


def _tile(form: KernelForm, inside: bool) -> list[str]:
    """One tile of S and its product with C. `inside`: all its columns are there, and conditions hold."""
    lines = ["n = n0 + tl.arange(0, BN)", "n_in = n < N", *_scores(form, inside)]
    lines += step.weighed(form.step, form.words, inside)
    if form.product != -2:
        lines += _multiply(form, inside)
    return lines


def products(terms: int) -> list[tuple[int, int]]:
    """The terms of A and B that are multiplied, small ones first."""
    return [(order - at, at) for order in reversed(range(terms)) for at in range(order + 1)]


def mask(*conditions: tuple[str, bool]) -> str:
    """A mask of the conditions that are not known to hold, as further arguments of a load."""
    found = [text for text, holds in conditions if not holds]
    return f", mask={' & '.join(found)}, other=0.0" if found else ""


def matrix(pointer: str, rows: str, columns: str, inside: bool, whole: Sequence[bool], first: str = "") -> str:
    """A tile of A, B or C by its axes; `inside`: all of its rows are there; `first`: where the matrix begins."""
    edge = (f"({columns}[None, :] < {columns.upper()})", whole["nke".index(columns)])
    place = f"{rows}.to(tl.int64)[:, None] * s{pointer}_{rows} + {columns}[None, :] * s{pointer}_{columns}"
    return f"tl.load({first or pointer} + {place}{mask((f'{rows}_in[:, None]', inside), edge)})"


def _scores(form: KernelForm, inside: bool) -> list[str]:
    if form.few:
        lines, there = [], mask(("n_in", inside))
        for at in range(form.few):
            lines.append(f"r{at} = tl.load(b + n.to(tl.int64) * sb_n + {at} * sb_k{there}).to(SUMS)")
        return [*lines, f"t = {' + '.join(f'q{at}[:, None] * r{at}[None, :]' for at in range(form.few))}"]
    if form.maps:
        return [
            "t = tl.zeros([BM, BN], SUMS)",
            "for k0 in tl.range(0, K, BK):",
            "    q = a.load([tile * BM, k0])",
            "    right = b.load([n0, k0])",
            "    t = tl.dot(q, right.T, t, input_precision=PRECISION, out_dtype=SUMS)",
        ]
    right = "b + n.to(tl.int64)[None, :] * sb_n"
    dot = "tl.dot(q.to(PRODUCT), right.to(PRODUCT), {}input_precision=PRECISION, out_dtype=SUMS)"
    there = mask(("n_in[None, :]", inside), (f"({'k0 + ' * form.staged}k[:, None] < K)", form.whole[1]))
    if form.terms:
        lines = [
            f"right{at} = tl.load({right} + tl.cast(N, tl.int64) * {at} * sb_n + k[:, None] * sb_k{there})"
            for at in range(form.terms)
        ]
        lines.append("t = tl.zeros([BM, BN], SUMS)")
        return lines + [f"t = tl.dot(q{of_a}, right{of_b}, t)" for of_a, of_b in products(form.terms)]
    if not form.staged:
        return [f"right = tl.load({right} + k[:, None] * sb_k{there})", f"t = {dot.format('')}"]
    left = mask(("m_in[:, None]", False), ("(k0 + k[None, :] < K)", form.whole[1]))
    return [
        "t = tl.zeros([BM, BN], SUMS)",
        f"columns = {right}",
        "for k0 in tl.range(0, K, BK):",
        f"    q = tl.load(a + (k0 + k[None, :]) * sa_k{left})",
        f"    right = tl.load(columns + (k0 + k[:, None]) * sb_k{there})",
        f"    t = {dot.format('t, ')}",
    ]


def _multiply(form: KernelForm, inside: bool) -> list[str]:
    weight = step.weight(form.step, TRITON, inside)
    scale = f"scale{form.product}" if form.words.spread else f"scale{form.product}[:, None]"
    scaled = f"acc * {scale}" if form.product >= 0 else "acc"
    if form.single:
        total = f"{weight} * third[None, :]" if form.words.spread else f"tl.sum({weight} * third[None, :], 1)[:, None]"
        return [
            f"third = tl.load(c + n.to(tl.int64) * sc_n{mask(('n_in', inside))}).to(SUMS)",
            f"acc = {scaled} + {total}",
        ]
    dot = f"tl.dot({weight}.to(PRODUCT), third.to(PRODUCT), {scaled}, input_precision=PRECISION, out_dtype=SUMS)"
    return [
        f"third = {matrix('c', 'n', 'e', inside, form.whole)}",
        f"acc = settled({dot})",
    ]


def _stores(form: KernelForm) -> list[str]:
    lines = ["row = (tl.program_id(1) * B + batch) * M + m"]
    if form.words.spread:
        lines += step.joined(form.step, form.product)
    lines += step.ending(form.step, TRITON, "row", form.splits)
    if form.product == -2:
        return lines
    if form.fused:
        lines.append(f"acc = acc * {step.factor(form.step)}")
    lines.append(
        "tl.store(d + row[:, None] * E + e[None, :], acc.to(d.dtype.element_ty), mask=m_in[:, None] & (e[None, :] < E))"
    )
    return lines


_ONE_ROW = Words("tl", "1", "1", "")


def join_lines(form: KernelForm) -> list[str]:
    """The lines of the kernel that joins, for one row each and some columns of D."""
    starts = [*("float('-inf')" for _ in form.step.peaks), *(each.start for each in form.step.sums)]
    pairs = zip(step.kept(form.step), starts, strict=True)
    lines = [
        "row = tl.program_id(0).to(tl.int64)",
        "batch = row // M",
        "m = (row % M).to(tl.int32) + tl.arange(0, 1)",
        "m_in = m < M",
        "share = tl.arange(0, SHARES)",
        "there = share < shares",
        *(f"{name} = tl.load({name}_in + share * B * M + row, mask=there, other={start})" for name, start in pairs),
    ]
    power = step.power(form.step.wide)
    for at in range(len(form.step.peaks)):
        lines += [
            f"best{at} = tl.max(peak{at}, 0)",
            f"best{at} = tl.where(tl.abs(best{at}) == float('inf'), 0.0, best{at})",
            f"scale{at} = {power}((peak{at} - best{at}) * {step.unit_of(form.step)})",
            f"peak{at} = tl.zeros([1], SUMS) + best{at}",
            f"tl.store(peak{at}_out + row + tl.arange(0, 1), peak{at})",
        ]
    for at, each in enumerate(form.step.sums):
        scaled = f"sum{at} * scale{each.scale}" if each.scale >= 0 else f"sum{at}"
        joined = f"tl.sum({scaled}, 0)" if each.kind == "sum" else f"tl.{each.kind[1:]}(sum{at}, 0)"
        lines.append(f"sum{at} = tl.zeros([1], SUMS) + {joined}")
        lines.append(f"tl.store(sum{at}_out + row + tl.arange(0, 1), sum{at})")
    return lines if form.product == -2 else [*lines, *_joined_d(form)]


def _joined_d(form: KernelForm) -> list[str]:
    scaled = f"part * scale{form.product}[:, None]" if form.product >= 0 else "part"
    lines = [
        "e = tl.program_id(1) * BE + tl.arange(0, BE)",
        "place = d_in + (share[:, None] * B * M + row) * E + e[None, :]",
        "part = tl.load(place, mask=there[:, None] & (e[None, :] < E), other=0.0)",
        f"acc = tl.sum({scaled}, 0)[None, :]",
    ]
    if form.fused:
        for at, each in enumerate(form.step.inputs):
            if each.small:
                lines += step.input_lines(at, each, _ONE_ROW)
        lines.append(f"acc = acc * {step.factor(form.step)}")
    return [*lines, "tl.store(d + row * E + e[None, :], acc.to(d.dtype.element_ty), mask=e[None, :] < E)"]
