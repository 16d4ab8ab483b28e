"""A `DistributedPlan`: a contraction over ranks, planned once, to run on new parts again and again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from weft.api.selection import along_each, check_selected
from weft.base.arguments import addition
from weft.base.arrays import grad_mode
from weft.distributed.asked import RankRequest, asked_of, asking, check_part, is_dtensor, key_of, local
from weft.distributed.execution import Execution
from weft.distributed.gradients import RankGradients
from weft.distributed.lanes import HOST, Recorder, Timeline, noted, on
from weft.distributed.link import Link, read_link
from weft.distributed.moves import TensorRoute
from weft.distributed.placement import LocalBlock, Placed, Places, RankProblem, whole_shape
from weft.distributed.prediction import Prediction, predicted, ranked
from weft.distributed.ranks import Ranks
from weft.distributed.report import (
    BUDGET,
    MeasuredCalls,
    explained,
    measured_calls,
    on_paper,
    paper,
    sampled_of,
    title,
    warmed,
)
from weft.distributed.strategy import Strategy
from weft.errors import ArgumentError, ShapeError, call_context
from weft.oracle.validate import check_supported
from weft.planner.options import Options
from weft.planner.request import Request
from weft.planner.schedule import Scalar
from weft.plans.checks import check_addend
from weft.spec.arguments import read_flag
from weft.spec.dtypes import dtype_name
from weft.spec.notation import label_text


class DistributedPlan:
    """A contraction over the ranks of a group; made by `weft.distributed.plan`.

    `plan(a, b, c=None, alpha=1.0, beta=None, operands=None)` returns this rank's part of D. Every rank calls it, with
    parts that have the shapes and types that it was planned for. `prediction` is what was chosen and what it will take,
    `candidates` has all that was looked at, the fastest first.
    """

    def __init__(
        self, asked: RankRequest, problem: RankProblem, request: Request, ranks: Ranks, lines: tuple[Ranks, ...],
        link: Any, agree: bool, agree_backward: bool,
    ) -> None:  # fmt: skip
        self.problem, self.ranks, self.lines = problem, ranks, lines
        self.agree, self.agree_backward = agree, agree_backward
        self.link: Link = read_link(link, ranks, asked.a.device)
        self.asked, self.request, self._placed, self._like = asked, request, asked.placed, asked.tensors
        self._work = asked.work_of(problem, request)
        self._gradients = RankGradients(self)
        self.device = asked.a.device
        self.kernel = asked.kernel_of(problem, request, self.device)
        self.candidates: list[Prediction] = ranked(problem, self.kernel, self.link)
        self.prediction: Prediction = self.candidates[0]
        at = problem.at(ranks.rank)
        self._spans = [problem.range(label, problem.d.places, at) for label in problem.d.term]
        self.shape = tuple(span.extent for span in self._spans)
        self.dtypes = self._work.types

    def __call__(
        self, a: Any, b: Any, *, c: Any = None, alpha: Scalar = 1.0, beta: Scalar | None = None,
        operands: Mapping[str, Any] | None = None, validate: bool = False,
    ) -> Any:  # fmt: skip
        """This rank's part of D, from its parts of A, B, C (placed as D) and of operands.

        A DTensor where `a` is one. Of an epilogue that yields several values the result is a tuple. `validate` checks a
        sample of the whole D as for `weft.contract`: each rank judges the elements that it has. Raises what is wrong on
        any rank, on every rank.
        """
        return self._run(a, b, c, alpha, beta, operands, validate)

    def timeline(
        self, a: Any, b: Any, *, c: Any = None, alpha: Scalar = 1.0, beta: Scalar | None = None,
        operands: Mapping[str, Any] | None = None,
    ) -> Timeline:  # fmt: skip
        """Run twice and measure the second call on this rank: what travelled when, and what was contracted meanwhile.

        Every rank calls it. It waits for the device. Gradients are not recorded. `weft.profile` has all ranks.
        """
        return warmed(lambda recorder: self._run(a, b, c, alpha, beta, operands, recorder=recorder), self.device)

    def measure(
        self, a: Any, b: Any, *, c: Any = None, operands: Mapping[str, Any] | None = None, budget: float = BUDGET
    ) -> MeasuredCalls:
        """Calls of about `budget` seconds, and on every rank the timelines of all ranks: what `weft.profile` shows.

        Every rank calls it.
        """
        return measured_calls(
            lambda recorder: self._run(a, b, c, 1.0, 1.0, operands, recorder=recorder), self.device,
            self.ranks.exchanged, budget,
        )  # fmt: skip

    @property
    def about(self) -> str:
        """The equation, and over how many ranks."""
        return title(self.problem)

    def explain(self, ranks: int | None = None, link: Any = None, target: str | None = None) -> str:
        """The plan as text: what ranks share out, what travels in which parts, bytes on each link, timeline and bound.

        With `ranks`, a plan on paper: the same whole tensors, placed alike on so many ranks in one dimension, over
        `link` (a preset's name, as "nvlink+ib", or a `Link`), on GPUs such as this one or as `target` names ("h200",
        "sm_90"). It lists what it assumes.

        Of a plan that was made of tensors which require gradients it lists the steps of the backward pass, too, each
        with its own plan. No other rank is involved: a plan that no backward pass has used yet is what this rank
        predicts.
        """
        if ranks is None and link is None and target is None:
            text = explained(self.problem, self.prediction, self.candidates, self.link, self.kernel, self.ranks)
            return "\n".join([text, *self._gradients.described()])
        return on_paper(self.problem, *self._elsewhere(ranks, link), self.kernel, target)

    def predict(self, ranks: int | None = None, link: Any = None, target: str | None = None) -> Timeline:
        """The predicted timeline of rank 0; with arguments on paper, as for `explain`."""
        if ranks is None and link is None and target is None:
            return self.prediction.timeline
        return paper(self.problem, *self._elsewhere(ranks, link), self.kernel, target)[1][0].timeline

    def _elsewhere(self, ranks: Any, link: Any) -> tuple[int, Link]:
        """The number of ranks, and the link, of a plan on paper."""
        if ranks is not None and (isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1):
            raise ArgumentError(f"ranks is a number of ranks, 1 or more, not {ranks!r}")
        if len(self.problem.mesh) > 1 and ranks is not None:
            raise ArgumentError(
                f"a plan on paper has one dimension of ranks, this one has a mesh of {len(self.problem.mesh)}"
            )
        return ranks or self.problem.size, self.link if link is None else read_link(link, self.ranks, self.device)

    def forced(self, prediction: Prediction) -> DistributedPlan:
        """This plan by another of its `candidates`. Every rank takes the same one."""
        found = object.__new__(DistributedPlan)
        found.__dict__.update(self.__dict__)
        found.prediction = prediction
        found._gradients = RankGradients(found)
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

    def beside(
        self, text: str, a: torch.Tensor, b: torch.Tensor, placements: Mapping[str, Places],
        extents: Mapping[str, int], options: Options, alone: bool,
    ) -> DistributedPlan:  # fmt: skip
        """A plan of other tensors over the same ranks and link, which all ranks make at once, or this one `alone`.

        `a` and `b` are this rank's parts, of whole tensors that have each label at its extent. Its calls are those of a
        backward pass, on which ranks have agreed; on what follows of them they agree anew.
        """
        asked = asked_of(text, a, b, self.problem.mesh, placements, options)
        shapes = {key: tuple(extents[str(label)] for label in each.term) for key, each in asked.placed.items()}
        found = DistributedPlan(
            asked, *asked.problem_of(shapes), self.ranks, self.lines, self.link, False, self.agree_backward
        )
        if alone:
            return found
        return found.taking(self.ranks.exchanged(f"distributed.plan({text!r}): choice", found.choice())[0])

    @property
    def what(self) -> str:
        """The plan in messages."""
        return f"distributed.plan({self.asked.equation!r})"

    # -- a call --------------------------------------------------------------------------------------------------------

    def _run(
        self, a: Any, b: Any, c: Any, alpha: Scalar, beta: Scalar | None, operands: Mapping[str, Any] | None,
        validate: bool = False, recorder: Recorder | None = None,
    ) -> Any:  # fmt: skip
        what = self.what
        c, beta = addition(c, beta, None)
        with call_context(lambda: what):

            def check() -> tuple[dict[str, Any], Sequence[str]]:
                if read_flag("validate", validate):
                    check_supported(self.request)
                return self._checked(a, b, c, alpha, beta, operands)

            def same(found: tuple[dict[str, Any], Sequence[str]]) -> dict[str, Any]:
                """The backward pass moves the same tensors on every rank."""
                addend = found[0]["c"]
                return {
                    "alpha": alpha, "beta": beta, "validate": validate, "whether c is given": c is not None,
                    "which tensors require a gradient": ", ".join(found[1]) or "none",
                    "the type of c": None if addend is None else dtype_name(addend.dtype),
                }  # fmt: skip

            with noted(recorder, HOST, "agreement" if self.agree else "checks"):
                given, recorded = self.ranks.agreed(what, check, same) if self.agree else check()
            block = None
            if given["c"] is not None and (recorded or beta != 0 or self.asked.options.algebra is not None):
                block = self._addend(given["c"], what, self.agree or bool(recorded))
            sampled = None
            if validate:
                addend = block if beta != 0 else None
                with on(self.device), self.ranks.failing():
                    sampled = sampled_of(
                        self.problem, self.request, self.ranks, self.asked, given, addend, (alpha, beta)
                    )
            call = given["a"], given["b"], block, {name: given[key_of(name)] for name in self.asked.options.operands}
            if recorded:
                results = self._gradients.call(recorded, *call, alpha, beta)
            else:
                results = self.execute(*call, alpha, beta, recorder)
            if sampled is not None:
                judged, start = results[:1] if self.problem.pairs else results, [span.start for span in self._spans]
                self.ranks.agreed(f"{what}: validate", lambda: sampled.compare(judged, start))
        if self.problem.pairs:
            results = [results[0], *along_each(results[1], self.request)]
        kept = self._as_dtensors(results, a) if is_dtensor(a) else results
        if self.problem.pairs and len(kept) != 2:
            return kept[0], tuple(kept[1:])
        return kept[0] if len(kept) == 1 else tuple(kept)

    def execute(
        self, a: torch.Tensor, b: torch.Tensor, c: LocalBlock | None, operands: Mapping[str, torch.Tensor],
        alpha: Scalar, beta: Scalar, recorder: Recorder | None = None,
    ) -> list[torch.Tensor]:  # fmt: skip
        """This rank's part of each result, of parts that are checked; nothing is recorded for gradients."""
        launches = recorder if a.device.type == "cuda" else None  # on a CPU the host contracts by itself
        with on(a.device), self.ranks.failing(), grad_mode(False), noted(launches, HOST, "launches"):
            work = self._with_operands({name: each.detach() for name, each in operands.items()}, recorder)
            results = [torch.empty(self.shape, dtype=dtype, device=a.device) for dtype in self.dtypes]
            addend = None if c is None else replace(c, tensor=c.tensor.detach())
            Execution(
                self.prediction.strategy, self.ranks.rank, self.lines, work, a.detach(), b.detach(), addend, results,
                alpha, beta, recorder,
            ).run()  # fmt: skip
        return results

    def _checked(
        self, a: Any, b: Any, c: Any, alpha: Scalar, beta: Scalar, operands: Mapping[str, Any] | None
    ) -> tuple[dict[str, Any], Sequence[str]]:
        """This rank's parts by what they are called here, and which of them require gradients."""
        asked, found = self.asked, {"a": local("a", a), "b": local("b", b)}
        like = self._like
        for key, tensor in found.items():
            check_part(key, tensor, like[key], self._placed[key].term)
        asked.check_factors(self.request, c, alpha, beta)
        if asked.return_arg:
            check_selected(self.request, c is not None)
        addend = local("c", c) if c is not None else None
        if addend is not None:
            check_addend(addend.detach(), self.shape, self.request.arithmetic.accumulate, self.device)
        given: dict[str, Any] = {"a": None, "b": None, "c": addend, **like, **found}
        for name, value in (operands or {}).items():
            key, there = key_of(name), asked.options.operands
            if name not in there:
                raise ArgumentError(f"no operand of this plan is called {name!r}: it has {', '.join(there) or 'none'}")
            given[key] = local(key, value[1] if isinstance(value, (tuple, list)) else value)
            check_part(key, given[key], like[key], self._placed[key].term)
        return given, asking(given, asked.options.algebra)

    def _addend(self, c: torch.Tensor, what: str, agree: bool) -> LocalBlock:
        """C's part, and along which modes it is the same for all indices: that its shape on one rank may not tell."""
        problem, d = self.problem, self.problem.d
        every = self.ranks.exchanged(what, list(c.shape)) if agree else [list(c.shape)]
        places = [problem.at(rank) for rank in (range(len(every)) if agree else [self.ranks.rank])]
        broadcast = {
            label for dim, label in enumerate(d.term) for at, shape in zip(places, every, strict=True)
            if shape[dim] == 1 and problem.range(label, d.places, at).extent != 1
        }  # fmt: skip
        if agree:
            whole_shape(Placed("c", d.term, problem.addend(broadcast, d.places)[1]), every, problem.mesh)
        elif broadcast and any(c.shape[d.term.index(label)] != 1 for label in broadcast):
            raise ShapeError(f"c has no one extent along {', '.join(map(label_text, broadcast))}")
        return LocalBlock(c, d.term, {}, frozenset(broadcast))

    def _with_operands(self, given: Mapping[str, torch.Tensor], recorder: Recorder | None) -> Any:
        """The work with operands of functions whole on this rank: those that are placed are gathered."""
        problem, aux = self.problem, dict(self._work.aux)
        nowhere = (None,) * len(problem.mesh)
        for name, tensor in given.items():
            placed = self._placed[key_of(name)]
            key, term, places = placed.name, placed.term, placed.places
            if any(label is not None for label in places):
                route = TensorRoute(key, term, problem.shapes[key], places, nowhere, problem.mesh)
                with noted(recorder, "transfer", f"{key}: {route.said()}"):
                    tensor = route.run(tensor, problem.at(self.ranks.rank), self.lines)
            aux[name] = LocalBlock(tensor, term, {}, problem.repeated(term, tensor.shape))
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
