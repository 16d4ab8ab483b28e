"""Many contractions by torch's operations: pairs in turn, or all that are alike stacked and multiplied at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from weft.errors import UnsupportedError
from weft.library import family
from weft.planner.schedule import Launch, Target
from weft.spec import Contraction, Layout, Mode, Role, Strides, canonical

STACKED = 4  # pairs that are alike, from which copies cost less than calls,
SMALL = 1 << 14  # where no tensor of them has more elements

Layouts = tuple[Layout, Layout, Layout]  # of A, B and D


@dataclass(frozen=True, slots=True)
class _Together:
    """Pairs that are alike, by their places in the group, and what computes them: all at once, or each by itself."""

    places: tuple[int, ...]
    stacked: bool
    launch: Launch
    shape: tuple[int, ...]  # of each result
    dtype: torch.dtype


class LibraryGroupLaunch:
    """A launch on lists of A's, B's and D's tensors, each as long as the group. `add`: it adds to D.

    `describe` returns the contraction of one pair of these layouts; its D is C as well where it adds.
    """

    def __init__(
        self,
        describe: Callable[[Layouts], Contraction],
        layouts: Sequence[Layouts],
        target: Target,
        add: bool = False,
    ) -> None:
        alike: dict[Layouts, list[int]] = {}
        for at, each in enumerate(layouts):
            alike.setdefault(each, []).append(at)
        self._add = add
        self._parts = [_together(describe, each, tuple(at), target, add) for each, at in alike.items()]

    def __str__(self) -> str:
        return f"library: {len(self._parts)} kinds of pairs by torch"

    def __call__(self, a: Sequence[Tensor], b: Sequence[Tensor], d: Sequence[Tensor]) -> None:
        for part in self._parts:
            if part.stacked:
                self._at_once(part, a, b, d)
                continue
            for at in part.places:
                part.launch(a[at], b[at], d[at] if self._add else None, d[at], 1, 1 if self._add else 0)

    def _at_once(self, part: _Together, a: Sequence[Tensor], b: Sequence[Tensor], d: Sequence[Tensor]) -> None:
        x, y = (torch.stack([every[at] for at in part.places]) for every in (a, b))
        results = x.new_empty((len(part.places), *part.shape), dtype=part.dtype)
        part.launch(x, y, None, results, 1, 0)
        places = [d[at] for at in part.places]
        (torch._foreach_add_ if self._add else torch._foreach_copy_)(places, list(results.unbind()))


def _together(
    describe: Callable[[Layouts], Contraction], layouts: Layouts, places: tuple[int, ...], target: Target, add: bool
) -> _Together:
    described = describe(layouts)
    sizes = [math.prod(layout.shape) for layout in layouts]
    rounded_twice = add and described.d.dtype != described.arithmetic.accumulate
    stacks = min(sizes) > 0 and max(sizes) <= SMALL and len(places) >= STACKED
    stacks = stacks and not described.aux and not rounded_twice
    if stacks:
        x, y, d = (Layout.contiguous(layout.shape, layout.dtype) for layout in layouts)
        described = _stacked(describe((x, y, d)), len(places))
    found = family.choice(described, "cpu" if target.kind == "cpu" else "triton", target)
    if isinstance(found, str):
        raise UnsupportedError(found)
    return _Together(places, stacks, found.build(), layouts[2].shape, layouts[2].dtype)


def _stacked(described: Contraction, count: int) -> Contraction:
    """So many of the same, one after the other in memory, as one contraction."""
    layouts = described.a, described.b, described.d
    steps = [math.prod(layout.shape) for layout in layouts]
    a, b, d = (Layout.contiguous((count, *layout.shape), layout.dtype) for layout in layouts)
    pair = Mode(("pair",), count, Role.BATCH, Strides(steps[0], steps[1], 0, steps[2]))
    return canonical(replace(described, modes=(pair, *described.modes), a=a, b=b, d=d, c=None))
