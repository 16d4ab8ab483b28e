"""A `DistributedPlan`: a contraction over ranks, planned once, to run on new parts again and again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from weft.algebra import Algebra
from weft.distributed.group.lanes import Recorder, on, wait_for
from weft.distributed.group.link import Link, read_link
from weft.distributed.group.ranks import Ranks
from weft.distributed.planned.blocks import Block
from weft.distributed.planned.kernel_model import Kernel
from weft.distributed.planned.moves import Route
from weft.distributed.planned.placement import Placed, held, whole_shape
from weft.distributed.planned.prediction import Prediction, predicted, ranked
from weft.distributed.planned.problem import Problem
from weft.distributed.planned.report import explained, on_paper
from weft.distributed.planned.strategy import Strategy
from weft.distributed.planned.timeline import Event, Timeline
from weft.distributed.run.asked import Asked, aux_block, check_part, is_dtensor, key_of, work_of
from weft.distributed.run.execution import Execution
from weft.errors import ArgumentError, ShapeError, call_context
from weft.planner.request import Request
from weft.planner.schedule import Scalar
from weft.planner.target import resolve_backend, target_of
from weft.spec.notation import Label, label_text


class DistributedPlan:
    """A contraction over the ranks of a group; made by `weft.distributed.plan`.

    `plan(a, b, c=None, alpha=1.0, beta=1.0, operands=None)` returns this rank's part of D. Every rank calls it, with
    parts that have the shapes and types that it was planned for. `prediction` is what was chosen and what it will take,
    `candidates` has all that was looked at, the fastest first.
    """

    def __init__(
        self, asked: Asked, problem: Problem, request: Request, ranks: Ranks, lines: tuple[Ranks, ...], link: Any,
        specialize: str, agree: bool,
    ) -> None:  # fmt: skip
        self.problem, self.ranks, self.agree = problem, ranks, agree
        self.link: Link = read_link(link, ranks, asked.a.device)
        self._asked, self._request, self._lines = asked, request, lines
        self._work = work_of(asked, problem, request, specialize)
        device, backend = asked.a.device, asked.options.backend
        target = target_of(resolve_backend(backend if backend != "reference" else "auto", device), device)
        arithmetic = request.arithmetic
        algebra: Algebra | None = asked.options.algebra
        self.kernel = Kernel(
            (problem.a.term, problem.b.term, problem.d.term), (asked.a.dtype, asked.b.dtype, arithmetic.accumulate),
            target, algebra, asked.options.precision,
        )  # fmt: skip
        self.candidates: list[Prediction] = ranked(problem, self.kernel, self.link)
        self.prediction: Prediction = self.candidates[0]
        at = problem.at(ranks.rank)
        self.shape = tuple(problem.range(label, problem.d.places, at).extent for label in problem.d.term)
        self.dtypes = self._work.types

    def __call__(
        self, a: Any, b: Any, *, c: Any = None, alpha: Scalar = 1.0, beta: Scalar = 1.0,
        operands: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        """This rank's part of D, from its parts of A, B, C (placed as D) and of operands.

        A DTensor where `a` is one. Of an epilogue that yields several values the result is a tuple. Raises what is
        wrong on any rank, on every rank.
        """
        return self._run(a, b, c, alpha, beta, operands, None)

    def timeline(
        self, a: Any, b: Any, *, c: Any = None, alpha: Scalar = 1.0, beta: Scalar = 1.0,
        operands: Mapping[str, Any] | None = None,
    ) -> Timeline:  # fmt: skip
        """Run twice and measure the second call on this rank: what travelled when, and what was contracted meanwhile.

        Every rank calls it. It waits for the device.
        """
        self._run(a, b, c, alpha, beta, operands, None)
        recorder = Recorder(self._asked.a.device)
        self._run(a, b, c, alpha, beta, operands, recorder)
        events = [Event(one.lane, one.name, one.begin, one.end) for one in recorder.finish()]
        return Timeline("measured", tuple(events))

    def explain(self, ranks: int | None = None, link: Any = None, target: str | None = None) -> str:
        """What ranks share out, what travels in which parts, bytes on each link, the predicted timeline, its bound.

        With `ranks`, a plan on paper: the same whole tensors, placed alike on so many ranks in one dimension, over
        `link` (a preset's name, as "nvlink+ib", or a `Link`), on GPUs such as this one or as `target` names ("h200",
        "sm_90"). It lists what it assumes.
        """
        if ranks is None and link is None and target is None:
            return explained(self.problem, self.prediction, self.candidates, self.link, self.kernel, self.ranks)
        if ranks is not None and (isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1):
            raise ArgumentError(f"ranks is a number of ranks, 1 or more, not {ranks!r}")
        if len(self.problem.mesh) > 1 and ranks is not None:
            raise ArgumentError(
                f"a plan on paper has one dimension of ranks, this one has a mesh of {len(self.problem.mesh)}"
            )
        chosen = read_link(link, self.ranks, self._asked.a.device) if link is not None else self.link
        return on_paper(self.problem, ranks or self.problem.size, chosen, self.kernel, target)

    def predict(self, ranks: int | None = None, link: Any = None, target: str | None = None) -> Timeline:
        """The predicted timeline of rank 0; with arguments on paper, as for `explain`."""
        if ranks is None and link is None and target is None:
            return self.prediction.timeline
        from weft.distributed.planned.report import paper

        chosen = read_link(link, self.ranks, self._asked.a.device) if link is not None else self.link
        return paper(self.problem, ranks or self.problem.size, chosen, self.kernel, target)[1][0].timeline

    def forced(self, prediction: Prediction) -> DistributedPlan:
        """The same plan by another of its `candidates`. Every rank takes the same one."""
        found = object.__new__(DistributedPlan)
        found.__dict__.update(self.__dict__)
        found.prediction = prediction
        return found

    def choice(self) -> list[Any]:
        """The chosen way as numbers, which another rank can read."""
        labels, strategy = self.problem.labels, self.prediction.strategy
        places = [None if label is None else labels.index(label) for label in (*strategy.split, strategy.loop)]
        return [places, strategy.parts]

    def taking(self, choice: list[Any]) -> DistributedPlan:
        """This plan by the way that another rank has chosen."""
        if choice == self.choice():
            return self
        (*split, loop), parts = choice
        label = [None if at is None else self.problem.labels[at] for at in (*split, loop)]
        strategy = Strategy(self.problem, tuple(label[:-1]), label[-1], parts)
        return self.forced(predicted(strategy, self.kernel, self.link))

    # -- a call --------------------------------------------------------------------------------------------------------

    def _run(
        self, a: Any, b: Any, c: Any, alpha: Scalar, beta: Scalar, operands: Mapping[str, Any] | None,
        recorder: Recorder | None,
    ) -> Any:  # fmt: skip
        what = f"distributed.plan({self._asked.equation!r})"
        with call_context(lambda: what):

            def check() -> tuple[Any, ...]:
                return self._checked(a, b, c, alpha, beta, operands)

            if self.agree:
                x, y, addend, given = self.ranks.agreed(
                    what, check, lambda _: {"alpha": alpha, "beta": beta, "whether c is given": c is not None}
                )
            else:
                x, y, addend, given = check()
            block = None
            if addend is not None and not (beta == 0 and self._asked.options.algebra is None):
                block = self._addend(addend, what)
            with on(x.device), self.ranks.failing():
                work = self._with_operands(given)
                results = [torch.empty(self.shape, dtype=dtype, device=x.device) for dtype in self.dtypes]
                Execution(
                    self.prediction.strategy, self.ranks.rank, self._lines, work, x, y, block, results, alpha, beta,
                    recorder,
                ).run()  # fmt: skip
        kept = self._as_dtensors(results, a) if is_dtensor(a) else results
        return kept[0] if len(kept) == 1 else tuple(kept)

    def _checked(
        self, a: Any, b: Any, c: Any, alpha: Scalar, beta: Scalar, operands: Mapping[str, Any] | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, dict[str, torch.Tensor]]:
        from weft.distributed.run.asked import _local
        from weft.plans.checks import check_unscaled, checked_scalar

        asked, problem = self._asked, self.problem
        x, y = _local("a", a), _local("b", b)
        for tensor, placed, like in ((x, problem.a, asked.a), (y, problem.b, asked.b)):
            check_part(placed.name, tensor, like, placed.term)
        accumulate = self._request.arithmetic.accumulate
        if asked.options.algebra is not None:
            check_unscaled(asked.options.algebra.name, alpha, beta)
        for name, value in (("alpha", alpha), ("beta", beta)):
            checked_scalar(name, value, accumulate)
        if c is None and beta not in (0, 1):
            raise ShapeError(f"beta={beta!r} has no c to multiply: pass c")
        addend = _local("c", c) if c is not None else None
        if addend is not None:
            self._check_addend(addend)
        given = dict(asked.options.tensors)
        for name, value in (operands or {}).items():
            if name not in given:
                raise ArgumentError(f"no operand of this plan is called {name!r}: it has {', '.join(given) or 'none'}")
            pair = value[1] if isinstance(value, (tuple, list)) else value
            tensor = _local(f"operand '{name}'", pair)
            check_part(f"operand '{name}'", tensor, given[name], self._term(name))
            given[name] = tensor
        return x, y, addend, given

    def _check_addend(self, c: torch.Tensor) -> None:
        from weft.plans.checks import check_addend

        check_addend(c, self.shape, self._request.arithmetic.accumulate, self._asked.a.device)

    def _addend(self, c: torch.Tensor, what: str) -> Block:
        """C's part, and along which modes it is the same for all indices: that its shape on one rank may not tell."""
        problem, d = self.problem, self.problem.d
        every = self.ranks.exchanged(what, list(c.shape)) if self.agree else None
        broadcast: set[Label] = set()
        for dim, label in enumerate(d.term):
            for rank, shape in enumerate(every if every is not None else [list(c.shape)]):
                at = problem.at(rank if every is not None else self.ranks.rank)
                if shape[dim] == 1 and held(label, problem.extents[label], d.places, problem.mesh, at).extent != 1:
                    broadcast.add(label)
        if every is not None:
            places = tuple(None if label in broadcast else label for label in d.places)
            whole_shape(Placed("c", d.term, places), every, problem.mesh)
        elif broadcast and any(c.shape[d.term.index(label)] != 1 for label in broadcast):
            raise ShapeError(f"c has no one extent along {', '.join(map(label_text, broadcast))}")
        return Block(c, d.term, {}, frozenset(broadcast))

    def _term(self, name: str) -> tuple[Label, ...]:
        return tuple(self._asked.options.operands[name][0])  # type: ignore[arg-type]

    def _with_operands(self, given: Mapping[str, torch.Tensor]) -> Any:
        """The work with operands of functions whole on this rank: those that are placed are gathered."""
        problem, aux = self.problem, dict(self._work.aux)
        nowhere = (None,) * len(problem.mesh)
        for name, tensor in given.items():
            term, places = self._term(name), self._asked.places[key_of(name)]
            if any(label is not None for label in places):
                key = key_of(name)
                route = Route(key, term, problem.shapes[key], places, nowhere, problem.mesh)
                tensor = route.run(tensor, problem.at(self.ranks.rank), self._lines, wait_for)
            aux[name] = aux_block(name, term, tensor, problem)
        return replace(self._work, aux=aux)

    def _as_dtensors(self, results: list[torch.Tensor], a: Any) -> list[Any]:
        from torch.distributed.tensor import DTensor, Replicate, Shard

        d = self.problem.d
        placements = [Replicate() if label is None else Shard(d.term.index(label)) for label in d.places]
        shape = torch.Size(self.problem.shapes["d"])
        stride = torch.empty(shape, device="meta").stride()
        return [
            DTensor.from_local(one, a.device_mesh, placements, run_check=False, shape=shape, stride=stride)
            for one in results
        ]

