"""The text of a Triton kernel that joins the states of programs which share the columns of a row.

    peak = max_i peak[i]     scale[i] = exp(peak[i] - peak)     sum = sum_i sum[i] scale[i]     D = sum_i D[i] scale[i]
"""

from __future__ import annotations

from weft.cascades import step
from weft.cascades.kernel import KernelForm, jit_text
from weft.cascades.step import Words

_WORDS = Words("tl", "1", "1", "")
CONSTANTS = ("SHARES", "BE", "FACTOR", "SUMS")


def join_text(form: KernelForm) -> str:
    """The source of one `@triton.jit` function, for one row each and some columns of D; arguments as the kernel's."""
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
    if form.product != -2:
        lines += _of_d(form)
    given = ["d_in", "d", *(f"{name}_in" for name in step.kept(form.step)), *step.pointers(form.step)]
    return jit_text([*given, "shares", "B", "M", "E", *step.parameters(form.step)], CONSTANTS, lines)


def _of_d(form: KernelForm) -> list[str]:
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
                lines += step.input_lines(at, each, _WORDS)
        lines.append(f"acc = acc * {step.factor(form.step)}")
    return [*lines, "tl.store(d + row * E + e[None, :], acc.to(d.dtype.element_ty), mask=e[None, :] < E)"]
