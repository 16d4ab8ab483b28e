"""The slices of one call as something that can be done one by one, stopped, written down and gone on with."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from weft.algebra import Algebra
from weft.api.permute import moved
from weft.errors import UnsupportedError
from weft.fn.triton_function import is_triton_function
from weft.library.views import DIMS, LONGEST
from weft.networks.checkpoint import HeldSums
from weft.networks.program import NetworkProgram, Watch
from weft.networks.sums import SliceSums
from weft.planner.options import Options

Combine = Callable[[torch.Tensor, torch.Tensor], None]


class Strips(NamedTuple):
    """The slice whose last step is done in so many strips; `report` is called after each."""

    slice: int
    many: int
    report: Callable[[], None]


class SliceWork(Protocol):
    """The slices of a call, as a long run drives them."""

    @property
    def program(self) -> NetworkProgram:
        """The steps; its lock is held while slices run."""

    @property
    def result(self) -> Any:
        """The result of the call."""

    def begin(self) -> None:
        """Do what all slices share. Also where a run goes on: others may have used the arena since."""

    def slice(self, number: int) -> None:
        """Add one slice to the sums."""

    def held(self) -> HeldSums:
        """The partial sums as they are."""

    def absorb(self, held: HeldSums) -> None:
        """Add partial sums of an earlier run."""


class Summing:
    """Sums of slices, in place. `partial` are the parts that are not finished here."""

    def __init__(
        self, program: NetworkProgram, tensors: Sequence[torch.Tensor], out: torch.Tensor, watch: Watch | None,
        partial: Collection[int] = (), combine: Combine | None = None,
    ) -> None:  # fmt: skip
        self.program, self.out = program, out
        self.sums = SliceSums(program.division, out, partial)
        self.combine = combine or add
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
        scheme = self.program.scheme
        finish(total.view(place.shape), place, scheme.functions.get(scheme.tree.root))


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
