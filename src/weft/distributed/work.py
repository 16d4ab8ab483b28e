"""Computations on parts: products with functions, sums that go on from part to part, and what follows a sum.

And one call on one rank: its tensors, and which of their indices this rank has.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch

from weft.algebra import Algebra
from weft.api.einsum import lone, of_one
from weft.api.entry import contraction
from weft.api.lookup import one_of
from weft.base.arrays import grad_mode
from weft.distributed.lanes import Lane, Recorder
from weft.distributed.moves import TensorRoute
from weft.distributed.placement import LocalBlock, Places, Span, Spans
from weft.distributed.ranks import Ranks
from weft.distributed.strategy import Strategy, steps_of
from weft.planner.options import Options
from weft.planner.request import HOOKS
from weft.planner.schedule import Scalar
from weft.spec import Notation
from weft.spec.notation import Label

_one_at_a_time = threading.Lock()  # on a CPU: a lane reduces by the same kernels, which have all cores to themselves


@dataclass(frozen=True)
class RankWork:
    """The functions of a call and what they take, ready for any part of it.

    `taken` has for each hook the names that its function takes; `aux` has for each name a block of the whole tensor
    (of an index: its coordinates, so that a part sees those of the whole). `options` are those of every contraction.
    """

    taken: Mapping[str, tuple[str, ...]]
    aux: Mapping[str, LocalBlock]
    options: Options
    sum_type: torch.dtype
    types: tuple[torch.dtype, ...]  # of D and of what else the epilogue yields
    term: tuple[Label, ...]  # of D
    largest: bool = False  # of an algebra that selects, with indices: whether the larger value is kept

    @property
    def functions(self) -> Mapping[str, Any]:
        """The functions by their hooks."""
        return dict(zip(HOOKS, self.options.functions, strict=True))

    @property
    def algebra(self) -> Algebra | None:
        return self.options.algebra

    def multiply(
        self, a: LocalBlock, b: LocalBlock, out: Sequence[LocalBlock], runs: Spans, *, spans: Spans,
        addend: LocalBlock | None, alpha: Scalar, beta: Scalar, first: bool, last: bool,
    ) -> None:  # fmt: skip
        """One contraction of the indices `runs` of the loop's label, into the same of `out`.

        `spans` are the indices that this rank computes of every label, for operands of functions. C is added to the
        `first` part of a sum, and to the others the sum so far; the epilogue is of the `last`.
        """
        x, term_a = a.cut(runs)
        y, term_b = b.cut(runs)
        c, beta = self._cut(addend, runs), beta if first else 1.0
        hooks = ("a_fn", "b_fn", *(["c_fn"] if first and addend is not None else []), *(["epilogue"] if last else []))
        options = self._taking(self.options, {**spans, **runs}, hooks)
        self._call((term_a, term_b), x, y, c, [one.cut(runs) for one in out], alpha, beta, options)

    def finish(
        self, sums: torch.Tensor, out: Sequence[torch.Tensor], spans: Spans, addend: LocalBlock | None, alpha: Scalar,
        beta: Scalar,
    ) -> None:  # fmt: skip
        """D from complete sums: alpha, C, the epilogue. `spans` are the indices that `sums` has of every label."""
        bare = self.functions["epilogue"] is None and addend is None and (alpha == 1 or self.algebra is not None)
        if bare:
            out[0].copy_(sums)
            return
        hooks = ("c_fn", "epilogue") if addend is not None else ("epilogue",)
        options, places = self._taking(self._after(), spans, hooks), [(one, self.term) for one in out]
        c = self._cut(addend, spans)
        self._call((self.term, ()), sums, one_of(self.sum_type, sums.device), c, places, alpha, beta, options)

    def select(self, a: LocalBlock, b: LocalBlock, spans: Spans) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Values as they are selected of these indices, and their index along each reduced mode, counted from here."""
        (x, term_a), (y, term_b) = a.cut({}), b.cut({})
        options = replace(self._taking(self.options, spans, ("a_fn", "b_fn")), out_dtype=self.sum_type)
        with _guard(x), grad_mode(False):
            values, places = contraction((term_a, term_b, self.term), x, y, options, return_arg=True)
        return values, list(places) if isinstance(places, tuple) else [places]

    def reduced(self, pieces: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """The algebra's reduction of sums over the first dimension; of selected values with their indices the best."""
        if len(pieces) == 2:
            return best(pieces[0], pieces[1], self.largest)
        (sums,) = pieces
        labels = tuple(range(sums.dim()))
        with _guard(sums), grad_mode(False):
            return (of_one(Notation((labels,), labels[1:]), sums, replace(self._after(), out_dtype=self.sum_type)),)

    def _after(self) -> Options:
        """Options of what is done to sums: a value alone, reduced as the algebra does."""
        algebra, own = self.algebra, self.options
        return Options(
            accumulate=self.sum_type, algebra=None if algebra is None else lone(algebra), backend=own.backend,
            specialize=own.specialize,
        )  # fmt: skip

    def _cut(self, addend: LocalBlock | None, runs: Spans) -> torch.Tensor | None:
        """C's elements of these indices."""
        if addend is None:
            return None
        return addend.cut_addend({label: run for label, run in runs.items() if label in self.term})

    def _taking(self, options: Options, runs: Spans, hooks: Sequence[str]) -> Options:
        """Options with the functions of `hooks` alone, and the operands that they take."""
        functions = {hook: function for hook, function in self.functions.items() if hook in hooks}
        names = dict.fromkeys(name for hook in functions for name in self.taken[hook])
        cuts = {name: self.aux[name].cut(runs) for name in names}
        return replace(
            options, functions=tuple(map(functions.get, HOOKS)),
            operands={name: (term, tensor) for name, (tensor, term) in cuts.items()},
        )  # fmt: skip

    def _call(
        self, terms: tuple[Any, Any], a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None,
        out: Sequence[tuple[torch.Tensor, Any]], alpha: Scalar, beta: Scalar, options: Options,
    ) -> None:  # fmt: skip
        places = tuple(tensor for tensor, _ in out)
        target = places if len(places) > 1 else places[0]
        if self.algebra is not None:
            alpha = beta = 1.0
        options = replace(options, out_dtype=None)
        with _guard(a), grad_mode(False):
            contraction((*terms, out[0][1]), a, b, options, c, alpha, beta if c is not None else 1.0, target)


def _guard(tensor: torch.Tensor) -> AbstractContextManager[Any]:
    return _one_at_a_time if tensor.device.type == "cpu" else nullcontext()


def best(values: torch.Tensor, places: torch.Tensor, largest: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Along the first dimension: the larger (or smaller) value, NaN before all others; of equals the first index."""
    found, at = values[0], places[0]
    for value, place in zip(values[1:], places[1:], strict=True):
        equal = (value == found) | (value.isnan() & found.isnan())
        ahead = value > found if largest else value < found
        ahead = torch.where(equal, place < at, ahead | (value.isnan() & ~found.isnan()))
        ahead = (place >= 0) & (ahead | (at < 0))
        found, at = torch.where(ahead, value, found), torch.where(ahead, place, at)
    return found, at


@dataclass
class RankCall:
    """The tensors of one call on one rank; C is None where it is not read."""

    strategy: Strategy
    rank: int
    lines: Sequence[Ranks]
    work: RankWork
    a: torch.Tensor
    b: torch.Tensor
    c: LocalBlock | None
    results: Sequence[torch.Tensor]
    alpha: Scalar = 1.0
    beta: Scalar = 1.0
    recorder: Recorder | None = None

    def __post_init__(self) -> None:
        self.problem = self.strategy.problem
        self.at = self.problem.at(self.rank)
        self.device = self.a.device
        self.label = self.strategy.loop
        self.steps = steps_of(self.strategy, self.rank)
        self.lane: Lane

    def moved(self, route: TensorRoute, tensor: torch.Tensor) -> torch.Tensor:
        """This rank's part under the route's target."""
        return route.run(tensor, self.at, self.lines)

    def spans(self, places: Places) -> dict[Label, Span]:
        """The indices of every label that this rank has under `places`."""
        problem = self.problem
        return {label: problem.range(label, places, self.at) for label in problem.extents}

    def block(
        self, tensor: torch.Tensor, spans: Spans, term: Sequence[Label] | None = None,
        broadcast: Collection[Label] = (),
    ) -> LocalBlock:  # fmt: skip
        """A tensor that holds these indices; of D's labels where it has no others."""
        term = self.problem.d.term if term is None else tuple(term)
        return LocalBlock(tensor, tuple(term), {one: spans[one].start for one in term}, frozenset(broadcast))

    @property
    def finished_as(self) -> Places:
        """The placement of D when the epilogue is applied: the final one, if nothing of it moves after its sums."""
        strategy = self.strategy
        if (strategy.reductions or self.problem.pairs) and not strategy.leaving.moves:
            return self.problem.d.places
        return strategy.summed

    def empty(self, spans: Spans, dtypes: Sequence[torch.dtype]) -> list[torch.Tensor]:
        shape = [spans[label].extent for label in self.problem.d.term]
        return [torch.empty(shape, dtype=dtype, device=self.device) for dtype in dtypes]

    def in_results(self, spans: Spans) -> list[torch.Tensor]:
        """Views of those indices of D's part."""
        there = self.spans(self.problem.d.places)
        runs = {label: spans[label] for label in self.problem.d.term}
        return [self.block(tensor, there).cut(runs)[0] for tensor in self.results]
