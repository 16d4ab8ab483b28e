"""The texts of two small Triton kernels around those for gradients: what is known of each row, and dA rounded.

    known      total = sum_e dD D,  of_factor = total / factor,  grad of each sum = OF_SUMS(..., of_factor)
    rounded    dA = (sums of dA) * alpha, of sums that lie in tiles as the registers of warp groups do

A program is `folded` where all that it sums and multiplies has one peak and a positive factor: exponentials over

    shift = peak - log(factor)

have the factor in them, and gradients of sums are divided by it. A row whose factor is 0 adds nothing: shift is inf.
"""

from __future__ import annotations

from typing import NamedTuple

from weft.cascades import step
from weft.cascades.kernel import PLACE, indented, jit_text
from weft.cascades.step import TRITON, StepForm

KNOWN_CONSTANTS = ("BM", "BE", "FACTOR", "OF_SUMS", "SUMS")
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


class KnownForm(NamedTuple):
    """All that the text depends on; the inputs of the step are those that lack columns."""

    step: StepForm
    folded: bool


def known_text(form: KnownForm) -> str:
    """The source of one `@triton.jit` function, named by a digest of itself."""
    given = ["d", "out", *step.operands(form.step), *(f"{name}_of" for name in step.kept(form.step))]
    given += [*(f"{name}_out" for name in _found(form)), "B", "M", "E", *step.parameters(form.step)]
    return jit_text(given, KNOWN_CONSTANTS, _lines(form))


def _found(form: KnownForm) -> list[str]:
    """Names of what is known of each row then."""
    shifts = [f"shift{at}" for at in range(len(form.step.peaks)) if form.folded]
    return [*shifts, *(f"grad{at}" for at in range(len(form.step.sums))), *([] if form.folded else ["factor"])]


def _lines(form: KnownForm) -> list[str]:
    peaks, sums = range(len(form.step.peaks)), range(len(form.step.sums))
    lines = [*PLACE, "m = tile * BM + tl.arange(0, BM)", "m_in = m < M", "row = batch * M + m"]
    lines += [line for at, each in enumerate(form.step.inputs) for line in step.input_lines(at, each, TRITON)]
    lines += [f"{name} = tl.load({name}_of + row, mask=m_in, other=1.0)" for name in step.kept(form.step)]
    lines += ["total = tl.zeros([BM], SUMS)", "for e0 in tl.range(0, E, BE):"]
    lines += indented([
        "e = e0 + tl.arange(0, BE)", "there = m_in[:, None] & (e < E)[None, :]",
        "at = row[:, None] * E + e[None, :]",
        "one = tl.load(d + at, mask=there, other=0.0).to(SUMS)",
        "total += tl.sum(one * tl.load(out + at, mask=there, other=0.0).to(SUMS), 1)",
    ])  # fmt: skip
    given = [f"v{at}" for at in range(len(form.step.inputs))] + [f"{name}[:, None]" for name in step.kept(form.step)]
    lines += [
        f"factor = tl.broadcast(FACTOR({', '.join(given)}), total[:, None])[0]",
        "of_factor = tl.where(factor == 0, 0.0, total[:, None] / factor)",
    ]
    if sums:
        lines.append(f"{', '.join(f'grad{at}' for at in sums)} = OF_SUMS({', '.join([*given, 'of_factor'])})")
        lines += [f"grad{at} = tl.broadcast(grad{at}, factor)[0]" for at in sums]
    if form.folded:
        lines.append("live = factor > 0")
        lines += [
            f"shift{at} = tl.where(live, peak{at}[:, None] - libdevice.log(factor), float('inf'))" for at in peaks
        ]
        lines += [f"grad{at} = tl.where(live, grad{at} / factor, 0.0)" for at in sums]
    return [*lines, *(f"tl.store({name}_out + row[:, None], {name}, mask=m_in[:, None])" for name in _found(form))]
