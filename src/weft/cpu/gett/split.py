"""Sums in parts, for results of too few register blocks to give every thread one.

    W[part, ...] = sum over a part of k of a_fn(A) * b_fn(B)        parts side by side
    D[...] = epilogue(alpha * sum over parts of W + beta * c_fn(C))

The mode of k that is cut becomes two: the part, along which the loop around goes, and what is left. In another algebra
both steps reduce by its `reduce`, and the second combines nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from weft.fn import trace
from weft.planner.schedule import AuxTensors, Launch, Scalar
from weft.spec import Arithmetic, Contraction, Layout, Mode, Role, Strides

LEAST = 4096  # of k in each part
LABELS = ("part",)  # of the mode that parts are along


class Steps(NamedTuple):
    """The two contractions."""

    parts: Contraction
    whole: Contraction


def parts_of(contraction: Contraction, wanted: int) -> int:
    """Into how many parts, at most `wanted`, a sum is cut: they must divide the longest mode of k."""
    longest = max((mode.extent for mode in contraction.of_role(Role.K)), default=1)
    most = min(wanted, contraction.k // LEAST)
    return next((parts for parts in range(most, 1, -1) if longest % parts == 0), 1)


def steps_of(contraction: Contraction, parts: int) -> Steps:
    accumulate, algebra = contraction.arithmetic.accumulate, contraction.algebra
    kept = sorted(contraction.of_role(Role.BATCH, Role.M, Role.N), key=lambda mode: -mode.strides.d)
    between = Layout.contiguous((parts, *(mode.extent for mode in kept)), accumulate)
    steps = dict(zip(kept, between.strides[1:], strict=True))
    longest = max(contraction.of_role(Role.K), key=lambda mode: mode.extent)
    operands = tuple(each for each in contraction.aux if each.kind != "output")

    def read(mode: Mode) -> Strides:
        a, b, _, _, *aux = mode.strides
        return Strides(a, b, 0, steps.get(mode, 0), *aux[: len(operands)])

    modes = [mode._replace(strides=read(mode)) for mode in contraction.modes if mode is not longest]
    rest = longest.extent // parts
    modes.append(longest._replace(extent=rest, strides=read(longest)))
    apart = Strides(*(step * rest for step in read(longest)[:3]), between.strides[0], *(
        step * rest for step in read(longest).aux))  # fmt: skip
    modes.append(Mode(LABELS, parts, Role.BATCH, apart))
    first = replace(
        contraction, modes=tuple(modes), c=None, d=between, c_fn=None, epilogue=None, aux=operands, c_args=(),
        epilogue_args=(),
    )  # fmt: skip

    def gathered(mode: Mode) -> Mode:
        return mode._replace(role=Role.M, strides=Strides(steps[mode], 0, *mode.strides[2:]))

    along = Strides(between.strides[0], 0, 0, 0, *[0] * len(contraction.aux))
    if algebra is not None:
        left = trace(lambda x, y: x, (accumulate, accumulate), names=("y",), hook="combine")
        algebra = replace(algebra, combine=left, name=f"{algebra.name} of parts")
    second = replace(
        contraction, modes=(*map(gathered, kept), Mode(LABELS, parts, Role.K, along)), a=between,
        b=Layout((), (), accumulate), arithmetic=Arithmetic(accumulate, accumulate), a_fn=None, b_fn=None,
        conjugate_a=False, conjugate_b=False, a_args=(), b_args=(), algebra=algebra,
    )  # fmt: skip
    return Steps(first, second)


def split_schedule(contraction: Contraction, splits: int, item: int, best: Callable[[Contraction], Any]) -> Any:
    """The schedule of so many parts, by that of their contraction; the workspace has their sums, `item` bytes each."""
    found = best(steps_of(contraction, splits).parts)
    between = splits * contraction.batch * contraction.m * contraction.n * item
    return replace(found, splits=splits, workspace_bytes=found.workspace_bytes + between)


def launch_of(
    contraction: Contraction, schedule: Any, launch: Callable[..., Launch], best: Callable[[Contraction, int], Any]
) -> Launch:
    """The launch of a schedule, whose sums may be in parts; `best`: that of a contraction and so many threads."""
    if schedule.splits == 1:
        return launch(contraction, schedule)
    steps = steps_of(contraction, schedule.splits)
    parts, whole = replace(schedule, splits=1), best(steps.whole, schedule.threads)
    return SplitLaunch(steps, (launch(steps.parts, parts), launch(steps.whole, whole)))


class SplitLaunch:
    """Both steps, given launches of them."""

    def __init__(self, steps: Steps, launches: tuple[Callable[..., None], Callable[..., None]]) -> None:
        self._between, (self._parts, self._whole) = steps.parts.d, launches
        self._operands = len(steps.parts.aux)
        self._one = torch.ones((), dtype=self._between.dtype, device="cpu")
        self._alpha: Scalar = self._one.item()

    def __call__(
        self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, d: torch.Tensor, alpha: Scalar, beta: Scalar,
        aux: AuxTensors = (),
    ) -> None:  # fmt: skip
        between = torch.empty(self._between.shape, dtype=self._between.dtype, device="cpu")
        self._parts(a, b, None, between, self._alpha, self._alpha, aux[: self._operands])
        self._whole(between, self._one, c, d, alpha, beta, aux)
