"""The slices of one call as something that can be done one by one, stopped, written down and gone on with."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import torch

from weft.algebra import Algebra
from weft.api.permute import moved
from weft.errors import UnsupportedError
from weft.fn.triton_function import is_triton_function
from weft.library.views import DIMS, LONGEST
from weft.networks.checkpoint import HeldSums
from weft.networks.checks import watch_of
from weft.networks.program import NetworkProgram, Watch
from weft.networks.rescale import Scaling
from weft.networks.sums import SliceSums
from weft.planner.options import Options

Combine = Callable[[torch.Tensor, torch.Tensor], None]


class Strips(NamedTuple):
    """The slice whose last step is done in so many strips; `report` is called after each."""

    slice: int
    many: int
    report: Callable[[], None]


class Summing:
    """Sums of slices, in place. `partial` are the parts that are not finished here.

    What all slices share is done again where a run goes on: others may have used the arena since.
    """

    def __init__(
        self, program: NetworkProgram, tensors: Sequence[torch.Tensor], out: torch.Tensor, watch: Watch | None,
        partial: Collection[int], combine: Combine,
    ) -> None:  # fmt: skip
        self.program, self.out = program, out
        self.sums = SliceSums(program.plan, program.slices, out, partial)
        self.combine = combine
        self._tensors, self._watch = tensors, watch
        self._values: list[Any] = []
        self.strips: Strips | None = None

    @property
    def result(self) -> torch.Tensor:
        return self.out

    def begin(self) -> None:
        self._values = self.program.begin(self._tensors, self._watch)
        self._whole = self.program.cut(self._values)

    def slice(self, number: int) -> None:
        strips, values = self.strips, self._values
        if strips is None or number != strips.slice or self._watch is not None or not self.program.strips:
            self.program.slice(number, values, self.sums, self._whole, self._watch)
        else:
            self.program.slice_in_strips(number, values, self.sums, self._whole, strips.many, strips.report)

    def held(self) -> HeldSums:
        return HeldSums(dict(self.sums.held))

    def absorb(self, held: HeldSums) -> None:
        for number, value in held.parts.items():
            if number in self.sums.held:
                into = self.sums.held[number]
                self.combine(into, value.to(into.device).view(into.shape))
            else:
                self.sums.begin(number, value)

    def complete(self, number: int, total: torch.Tensor, rows: tuple[int, int] | None = None) -> None:
        """Put the whole sum of a part, or of these rows of it, into the result, through the last function."""
        place = self.sums.part(number)
        if rows is not None:
            place = place.narrow(0, *rows)
        if total.data_ptr() == place.data_ptr():
            return
        plan = self.program.plan
        finish(total.view(place.shape), place, plan.functions.get(plan.tree.root))


SliceWork = Summing | Scaling  # the program's lock is held while slices run


def work_of(
    program: NetworkProgram, operands: Sequence[torch.Tensor], place: torch.Tensor, partial: Collection[int]
) -> SliceWork:
    """The slices of a call into `place`."""
    settings = program.plan.settings
    if settings.strip_exponent:
        return Scaling(program, operands, place)
    combine = combine_of(settings.options.algebra) if partial else add
    return Summing(program, operands, place, watch_of(program.plan), partial, combine)


def finish(value: torch.Tensor, place: torch.Tensor, function: Callable[..., Any] | None) -> None:
    """A complete sum into its place, through the last step's function."""
    if function is None and place.dim() <= DIMS.get(place.device.type, LONGEST):
        place.copy_(value)
        return
    labels = tuple(range(place.dim()))
    options = Options(place.dtype, functions=(function, None, None, None), specialize="auto")
    moved((labels, labels), value, options, out=place)


def add(into: torch.Tensor, value: torch.Tensor) -> None:
    """The sum of plus-times."""
    into.add_(value)


def combine_of(found: Algebra | None) -> Combine:
    """A function that adds one partial sum to another, in place; `UnsupportedError` where torch cannot compute it."""
    if found is None:
        return add
    reduce = found.reduce
    if is_triton_function(reduce):
        raise UnsupportedError(
            f"partial sums of the algebra {found.name} cannot be added up: its reduction is written in Triton; give it "
            "as a function of torch operations"
        )

    def combine(into: torch.Tensor, value: torch.Tensor) -> None:
        into.copy_(reduce(into, value))

    return combine
