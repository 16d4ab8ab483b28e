"""The text of a Triton kernel for a cascade of one pass: S tile by tile, its function, and the product with C.

A program has a tile of rows m and goes along the columns n. Peaks, sums and the rows of D stay in registers. The
function comes as Triton functions that weft writes of its graph: `FIRST` makes the values whose peaks are needed,
`REST` those that are summed and multiplied, `SETTLED` the same where every condition on coordinates holds. Columns
come in three stretches: with conditions, without, with.

    s = q k^T * alpha                        (BM, BN)
    new = max(peak, max_n FIRST(s))          (BM,)       r = exp(peak - new)
    p, v, ... = REST(s, new)                 (BM, BN)
    acc = acc * r + p c                      (BM, BE)    sum = sum * r + sum_n v
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple


class InputText(NamedTuple):
    """An operand or coordinate: which of batch, m and n its labels are of, a group for each label, in order."""

    groups: tuple[str, ...]
    coordinate: bool


class KernelForm(NamedTuple):
    """All that the text of a kernel depends on."""

    inputs: tuple[InputText, ...]
    peaks: int
    sums: tuple[tuple[str, int], ...]  # "sum", "amax" or "amin", and the peak that a sum is over, or -1
    product: int  # the peak that the product with C is over, -1 for none; -2 where there is no C
    fused: bool  # D is multiplied with its factor and rounded; else it stays as it was summed
    few: int  # terms of S where they are few and multiplied one by one, else 0
    single: bool  # C has one column, which is summed and not multiplied as a matrix
    splits: bool  # columns are shared by several programs, whose states are joined afterwards


CONSTANTS = (
    "BM", "BN", "BK", "BE", "FIRST", "FIRST_SETTLED", "REST", "SETTLED", "FACTOR", "SUMS", "PRODUCT", "PRECISION",
)  # fmt: skip


def kernel_text(form: KernelForm) -> str:
    """The source of one `@triton.jit` function, named by a digest of itself."""
    body = _body(form)
    digest = hashlib.sha256(body.encode()).hexdigest()[:16]
    return f"@triton.jit\ndef cascade_{digest}({', '.join(_parameters(form))}):\n{body}"


def _parameters(form: KernelForm) -> list[str]:
    found = ["a", "b", "c", "d"]
    found += [f"x{at}" for at, each in enumerate(form.inputs) if not each.coordinate]
    found += [f"peak{at}_out" for at in range(form.peaks)]
    found += [f"sum{at}_out" for at in range(len(form.sums))]
    found += ["stretches", "alpha", "B", "M", "N", "K", "E", "sa_b", "sa_m", "sa_k", "sb_b", "sb_n", "sb_k"]
    found += ["sc_b", "sc_n", "sc_e"]
    for at, each in enumerate(form.inputs):
        for label in range(len(each.groups)):
            found += [f"x{at}_div{label}", f"x{at}_ext{label}", f"x{at}_step{label}"]
    return [*found, *(f"{name}: tl.constexpr" for name in CONSTANTS)]


def _body(form: KernelForm) -> str:
    lines = [
        "rows = tl.cdiv(M, BM)",
        "tile = rows - 1 - tl.program_id(0) % rows",
        "batch = (tl.program_id(0) // rows).to(tl.int64)",
        "m = tile * BM + tl.arange(0, BM)",
        "k = tl.arange(0, BK)",
        "e = tl.arange(0, BE)",
        "m_in = m < M",
        "a += batch * sa_b",
        *_rows_of_a(form),
        "b += batch * sb_b",
        "c += batch * sc_b",
        *_gather(form, ("batch", "m")),
        *(f"peak{at} = tl.full([BM], float('-inf'), SUMS)" for at in range(form.peaks)),
        *(f"sum{at} = tl.full([BM], {_start(kind)}, SUMS)" for at, (kind, _) in enumerate(form.sums)),
    ]
    if form.product != -2:
        lines.append("acc = tl.zeros([BM, BE], SUMS)")
    lines.append("stretches += (tl.program_id(1) * rows + tile) * 4")
    lines += [f"at{place} = tl.load(stretches + {place})" for place in range(4)]
    for start, stop, inside in (("at0", "at1", False), ("at1", "at2", True), ("at2", "at3", False)):
        lines.append(f"for n0 in tl.range({start}, {stop}, BN):")
        lines += [f"    {line}" for line in _step(form, inside)]
    lines += _stores(form)
    return "".join(f"    {line}\n" for line in lines)


def _rows_of_a(form: KernelForm) -> list[str]:
    """The tile's rows of A, all terms of them; by term where they are few."""
    if form.few:
        place = "a + m.to(tl.int64) * sa_m"
        return [f"q{at} = tl.load({place} + {at} * sa_k, mask=m_in, other=0.0).to(SUMS)" for at in range(form.few)]
    return [
        "q = tl.load(a + m.to(tl.int64)[:, None] * sa_m + k[None, :] * sa_k, "
        "mask=m_in[:, None] & (k[None, :] < K), other=0.0)"
    ]


def _start(kind: str) -> str:
    return {"sum": "0.0", "amax": "float('-inf')", "amin": "float('inf')"}[kind]


def _gather(form: KernelForm, groups: Sequence[str]) -> list[str]:
    """The values of inputs whose labels are of `groups` alone: loaded before the loop."""
    return [line for at, each in enumerate(form.inputs) if not _moves(each) for line in _input(at, each)]


def _moves(each: InputText) -> bool:
    return "n" in each.groups


def _input(at: int, each: InputText) -> list[str]:
    """A value along (BM, BN), of extent 1 where it lacks m or n."""
    shown = {"batch": "batch", "m": "m[:, None]", "n": "n[None, :]"}
    places = []
    for label, group in enumerate(each.groups):
        place = f"({shown[group]} // x{at}_div{label} % x{at}_ext{label})"
        places.append(place if each.coordinate else f"{place} * x{at}_step{label}")
    index = " + ".join(places) or "0"
    if each.coordinate:
        return [f"v{at} = tl.broadcast_to(({index}).to(tl.int32), {_shape(each)})"]
    masks = [mask for group, mask in (("m", "m_in[:, None]"), ("n", "n_in[None, :]")) if group in each.groups]
    mask = f", mask={' & '.join(masks)}, other=0" if masks else ""
    return [f"v{at} = tl.broadcast_to(tl.load(x{at} + ({index}){mask}), {_shape(each)})"]


def _shape(each: InputText) -> str:
    return f"[{'BM' if 'm' in each.groups else '1'}, {'BN' if 'n' in each.groups else '1'}]"


def _step(form: KernelForm, inside: bool) -> list[str]:
    """One tile of S. `inside`: all its columns are there, and conditions on coordinates hold."""
    lines = ["n = n0 + tl.arange(0, BN)", "n_in = n < N"]
    mask = "(k[:, None] < K)" if inside else "n_in[None, :] & (k[:, None] < K)"
    if form.few:
        mask = "" if inside else ", mask=n_in, other=0.0"
        terms = []
        for at in range(form.few):
            lines.append(f"r{at} = tl.load(b + n.to(tl.int64) * sb_n + {at} * sb_k{mask}).to(SUMS)")
            terms.append(f"q{at}[:, None] * r{at}[None, :]")
        lines.append(f"s = ({' + '.join(terms)}) * alpha")
    else:
        lines += [
            f"right = tl.load(b + n.to(tl.int64)[None, :] * sb_n + k[:, None] * sb_k, mask={mask}, other=0.0)",
            "s = tl.dot(q.to(PRODUCT), right.to(PRODUCT), input_precision=PRECISION, out_dtype=SUMS) * alpha",
        ]
    for at, each in enumerate(form.inputs):
        if _moves(each):
            lines += _input(at, each)
    values = ", ".join(["s", *(f"v{at}" for at in range(len(form.inputs)))])
    if form.peaks:
        names = ", ".join(f"e{at}" for at in range(form.peaks))
        lines.append(f"{names}{',' if form.peaks == 1 else ''} = {'FIRST_SETTLED' if inside else 'FIRST'}({values})")
    for at in range(form.peaks):
        if not inside:
            lines.append(f"e{at} = tl.where(n_in[None, :], e{at}, float('-inf'))")
        lines += [
            f"new{at} = tl.maximum(peak{at}, tl.max(e{at}, 1))",
            f"safe{at} = tl.where(tl.abs(new{at}) == float('inf'), 0.0, new{at})",
            f"scale{at} = tl.exp(peak{at} - safe{at})",
            f"peak{at} = new{at}",
        ]
    count = len(form.sums) + (form.product != -2)
    values = ", ".join([values, *(f"safe{at}[:, None]" for at in range(form.peaks))])
    names = ", ".join(f"w{at}" for at in range(count))
    lines.append(f"{names}{',' if count == 1 else ''} = {'SETTLED' if inside else 'REST'}({values})")
    for at, (kind, scale) in enumerate(form.sums):
        value = f"tl.broadcast_to(w{at}, [BM, BN]).to(SUMS)"
        if not inside:
            value = f"tl.where(n_in[None, :], {value}, {_start(kind)})"
        if kind == "sum":
            scaled = f"sum{at} * scale{scale}" if scale >= 0 else f"sum{at}"
            lines.append(f"sum{at} = {scaled} + tl.sum({value}, 1)")
        else:
            best = ("tl.maximum", "tl.max") if kind == "amax" else ("tl.minimum", "tl.min")
            lines.append(f"sum{at} = {best[0]}(sum{at}, {best[1]}({value}, 1))")
    if form.product != -2:
        lines += _multiply(form, f"w{count - 1}", inside)
    return lines


def _multiply(form: KernelForm, value: str, inside: bool) -> list[str]:
    mask = "(e[None, :] < E)" if inside else "n_in[:, None] & (e[None, :] < E)"
    weight = f"tl.broadcast_to({value}, [BM, BN])"
    if not inside:
        weight = f"tl.where(n_in[None, :], {weight}, 0.0)"
    scaled = f"acc * scale{form.product}[:, None]" if form.product >= 0 else "acc"
    if form.single:
        mask = "" if inside else ", mask=n_in, other=0.0"
        return [
            f"third = tl.load(c + n.to(tl.int64) * sc_n{mask}).to(SUMS)",
            f"acc = {scaled} + tl.sum({weight} * third[None, :], 1)[:, None]",
        ]
    return [
        f"third = tl.load(c + n.to(tl.int64)[:, None] * sc_n + e[None, :] * sc_e, mask={mask}, other=0.0)",
        f"acc = tl.dot({weight}.to(PRODUCT), third.to(PRODUCT), {scaled}, input_precision=PRECISION, out_dtype=SUMS)",
    ]


def _stores(form: KernelForm) -> list[str]:
    lines = ["row = (tl.program_id(1) * B + batch) * M + m"]
    if not form.splits:
        lines += [f"peak{at} = tl.where(tl.abs(peak{at}) == float('inf'), 0.0, peak{at})" for at in range(form.peaks)]
    lines += [f"tl.store(peak{at}_out + row, peak{at}, mask=m_in)" for at in range(form.peaks)]
    lines += [f"tl.store(sum{at}_out + row, sum{at}, mask=m_in)" for at in range(len(form.sums))]
    if form.product == -2:
        return lines
    if form.fused:
        small = [f"v{at}" for at, each in enumerate(form.inputs) if not _moves(each)]
        states = [f"peak{at}[:, None]" for at in range(form.peaks)]
        states += [f"sum{at}[:, None]" for at in range(len(form.sums))]
        lines.append(f"acc = acc * FACTOR({', '.join([*small, *states])})")
    lines.append(
        "tl.store(d + row[:, None] * E + e[None, :], acc.to(d.dtype.element_ty), "
        "mask=m_in[:, None] & (e[None, :] < E))"
    )
    return lines
