"""Contractions of tensors that a device's memory does not hold: blocks are copied while others are contracted.

    copy in   the blocks that step i + 1 needs      a lane
    compute   step i                                the caller's stream, or thread
    copy out  a block of D that is complete         a lane

On a CPU the lanes are threads that copy within its memory, so that the same program runs, and is tested, anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from weft.base.arrays import as_results, as_tensor
from weft.base.devices import read_device
from weft.base.factors import addition
from weft.base.figures import counted, duration, read_limit, si
from weft.distributed.group.lanes import Lane, Recorder, Token, done, noted, noted_host, on
from weft.distributed.group.link import Link, read_link
from weft.distributed.out_of_core.copies import copy_block, pinned
from weft.distributed.out_of_core.grid import ROLES, Estimate, Grid, HostProblem, chosen_grid
from weft.distributed.planned.blocks import LabelRun, LocalBlock
from weft.distributed.planned.kernel_model import KernelModel
from weft.distributed.planned.placement import Placed
from weft.distributed.planned.problem import RankProblem
from weft.distributed.planned.timeline import Timeline
from weft.distributed.run.asked import RankRequest, aux_block, check_part, work_of
from weft.distributed.run.selecting import BUDGET, MeasuredCalls, measured_calls, warmed
from weft.distributed.run.work import PartWork
from weft.errors import ArgumentError, ShapeError, UnsupportedError, call_context
from weft.oracle.validate import validated
from weft.planner.request import Request, Results
from weft.planner.schedule import Scalar
from weft.planner.target import resolve_backend, target_of
from weft.plans.derivatives import asked
from weft.spec.arguments import read_flag
from weft.spec.notation import Label, label_text

BOTH = ("a_fn", "b_fn")
_LARGE = 1 << 30  # bytes


class OutOfCorePlan:
    """A contraction in blocks that fit a device; made by `weft.distributed.plan` with `device=`.

    `plan(a, b, c=None, alpha=1.0, beta=None, out=None)`: tensors in the machine's memory; D is made there, or written
    to `out`. Pinned tensors (`tensor.pin_memory()`) are copied while kernels run, as they are; others are registered
    for the time of the call.
    """

    def __init__(
        self, asked: RankRequest, problem: RankProblem, request: Request, device: torch.device, limit: int | None,
        link: Any, added: bool,
    ) -> None:  # fmt: skip
        self.device, self.limit = device, limit
        self.shape = problem.shapes["d"]
        self._asked, self._problem, self._request = asked, problem, request
        self._work = _on(work_of(asked, problem, request), asked, problem, device)
        self.dtypes = self._work.types
        self.link: Link = read_link(link, None, device)
        backend = asked.options.backend
        self.kernel = KernelModel(
            (problem.a.term, problem.b.term, problem.d.term),
            (asked.a.dtype, asked.b.dtype, request.arithmetic.accumulate),
            target_of(resolve_backend(backend if backend != "reference" else "auto", device), device),
            asked.options.algebra, asked.options.precision,
        )  # fmt: skip
        terms = {"a": problem.a.term, "b": problem.b.term, "d": problem.d.term}
        resident = sum(block.tensor.nbytes for block in self._work.aux.values())
        items = {**problem.items, "d": sum(dtype.itemsize for dtype in self.dtypes), "c": problem.items["sum"]}
        if added:
            terms["c"] = problem.d.term
        whole = HostProblem(terms, problem.extents, items, resident, self.dtypes != (self._work.sum_type,))
        chosen = chosen_grid(whole, self.kernel, self.link, limit)
        self.grid: Grid = chosen[0]
        self.estimate: Estimate = chosen[1]

    def __call__(
        self, a: Any, b: Any, *, c: Any = None, alpha: Scalar = 1.0, beta: Scalar | None = None, out: Any = None,
        validate: bool = False,
    ) -> Any:  # fmt: skip
        """D, in the machine's memory. Waits until it is there. `validate` checks a sample of it as for `weft.contract`.
        """
        return self._run(a, b, c, alpha, beta, out, validate)

    def timeline(
        self, a: Any, b: Any, *, c: Any = None, alpha: Scalar = 1.0, beta: Scalar | None = None, out: Any = None
    ) -> Timeline:
        """Run twice and measure the second call: what was copied when, and what was contracted meanwhile."""
        return warmed(lambda recorder: self._run(a, b, c, alpha, beta, out, recorder=recorder), self.device)

    def measure(self, a: Any, b: Any, *, c: Any = None, out: Any = None, budget: float = BUDGET) -> MeasuredCalls:
        """Calls of about `budget` seconds, and the timeline of one of them: what `weft.profile` shows."""
        return measured_calls(
            lambda recorder: self._run(a, b, c, 1.0, None, out, recorder=recorder), self.device,
            lambda _, value: [value], budget,
        )  # fmt: skip

    def predict(self) -> Timeline:
        """The predicted timeline, with a bar for each lane as long as it is busy: blocks in first, the last one out."""
        return self.estimate.timeline

    @property
    def about(self) -> str:
        """The equation, and in how many steps."""
        grid = self.grid
        cuts = [
            f"'{label_text(grid.labels[role])}' ({role}) in {grid.cuts[role]}" for role in ROLES if grid.cuts[role] > 1
        ]
        said = ", ".join(cuts) if cuts else "everything at once"
        return f"{self._asked.equation} in {counted(grid.steps, 'step')} on {self.device}: {said}"

    def explain(self) -> str:
        """The blocks, the bytes that are copied, what is predicted, and what bounds it."""
        grid, found = self.grid, self.estimate
        times = grid.copied_in()
        size = {name: grid.block(term) * grid.whole.items[name] for name, term in grid.whole.terms.items()}
        lines = [
            self.about,
            *(f"  {name.upper()}: {counted(many, 'block')} of {si(size[name], 'B')} copied in"
              for name, many in times.items()),
            f"  D: {counted(grid.tiles, 'block')} of {si(size['d'], 'B')} copied out",
            f"memory {si(grid.memory(), 'B')}"
            + (f" of memory_limit {si(self.limit, 'B')}" if self.limit is not None else ""),
            f"link {self.link}",
            f"predicted {duration(found.seconds)}: compute {duration(found.compute)}, in {duration(found.copy_in)}, "
            f"out {duration(found.copy_out)}, first and last block {duration(found.exposed)}; {found.bounds} bounds it",
        ]
        return "\n".join(lines)

    def _run(
        self, a: Any, b: Any, c: Any, alpha: Scalar, beta: Scalar | None, out: Any, validate: bool = False,
        recorder: Recorder | None = None,
    ) -> Any:  # fmt: skip
        with call_context(lambda: f"distributed.plan({self._asked.equation!r})"):
            c, beta = addition(c, beta, out)
            with noted_host(recorder, "checks"):
                x, y = as_tensor("a", a), as_tensor("b", b)
                refuse_gradients(a=x, b=y, c=c)
                check_part("a", x, self._asked.a, self._problem.a.term)
                check_part("b", y, self._asked.b, self._problem.b.term)
                addend = self._checked_addend(c, alpha, beta)
                read_flag("validate", validate)
                results = self._results(out, {"a": x, "b": y, "c": addend})

            def run() -> Results:
                self._pass(x, y, addend, results, alpha, beta, recorder)
                return results[0] if len(results) == 1 else tuple(results)

            operands = self._asked.options.tensors
            found = validated(self._request, run, x, y, addend, alpha, beta, operands) if validate else run()
        return out if out is not None else found

    def _pass(
        self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, results: Sequence[torch.Tensor],
        alpha: Scalar, beta: Scalar, recorder: Recorder | None,
    ) -> None:  # fmt: skip
        """All blocks of tensors that are checked."""
        if not results[0].numel():
            return
        tensors = [a, b, *results, *([c] if c is not None else [])]
        with on(self.device), ExitStack() as memory:
            with noted_host(recorder, "pinning"):
                memory.enter_context(pinned(tensors, self.device))
            _Pass(self, a, b, c, results, alpha, beta, recorder).run()

    def _checked_addend(self, c: Any, alpha: Scalar, beta: Scalar) -> torch.Tensor | None:
        from weft.plans.checks import check_addend, check_unscaled, checked_scalar

        accumulate, algebra = self._request.arithmetic.accumulate, self._asked.options.algebra
        if algebra is not None:
            check_unscaled(algebra.name, alpha, beta)
        checked_scalar("alpha", alpha, accumulate)
        checked_scalar("beta", beta, accumulate)
        if c is None:
            if beta not in (0, 1):
                raise ShapeError(f"beta={beta!r} has no c to multiply: pass c")
            return None
        if "c" not in self.grid.whole.terms:
            raise ArgumentError("the blocks were planned without c, which needs memory, too: plan with c=")
        addend = as_tensor("c", c)
        check_addend(addend, self.shape, accumulate, torch.device("cpu"))
        return None if beta == 0 and algebra is None else addend

    def _results(self, out: Any, inputs: Mapping[str, torch.Tensor | None]) -> list[torch.Tensor]:
        if out is None:
            # torch rounds pinned memory up to a power of two, which is much of a large tensor: that is registered.
            small = math.prod(self.shape) * max(dtype.itemsize for dtype in self.dtypes) < _LARGE
            pin = self.device.type == "cuda" and small
            return [torch.empty(self.shape, dtype=dtype, pin_memory=pin, device="cpu") for dtype in self.dtypes]
        from weft.plans.checks import check_outputs

        given = as_results(out)
        assert given is not None, "as out is not"
        read = {name: tensor for name, tensor in inputs.items() if tensor is not None and name != "c"}
        several = self._request.outputs is not None
        check_outputs(given, self.shape, self.dtypes, several, torch.device("cpu"), read, inputs["c"])
        return list(given) if isinstance(given, tuple) else [given]


def _on(work: PartWork, asked: RankRequest, problem: RankProblem, device: torch.device) -> PartWork:
    """The work with operands of functions on the device, whole."""
    aux = {name: replace(block, tensor=block.tensor.to(device)) for name, block in work.aux.items()}
    for name, (modes, tensor) in asked.options.operands.items():
        aux[name] = aux_block(name, tuple(modes), tensor.to(device), problem)  # type: ignore[arg-type]
    return replace(work, aux=aux)


@dataclass
class _Slot:
    """Memory on the device for one block; `key` names the block stored there, `used` is the last step that reads it."""

    memory: torch.Tensor
    key: Any = None
    used: int = -1
    ready: Token | None = None
    block: LocalBlock | None = None


class _Pass:
    """One call: all steps in their order."""

    def __init__(
        self, plan: OutOfCorePlan, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None,
        results: Sequence[torch.Tensor], alpha: Scalar, beta: Scalar, recorder: Recorder | None,
    ) -> None:  # fmt: skip
        self.grid, self.work, self.device = plan.grid, plan._work, plan.device
        self.results, self.alpha, self.beta, self.recorder = results, alpha, beta, recorder
        problem = plan._problem
        self.placed = {"a": problem.a, "b": problem.b, "c": Placed("c", problem.d.term, ()), "d": problem.d}
        self.extents = problem.extents
        self.sources = {"a": a, "b": b} | ({"c": c} if c is not None else {})
        self.order = list(self.grid.order())
        self.computed: list[Token] = []

    def run(self) -> None:
        grid, item = self.grid, self.grid.whole
        slots = {
            name: [_Slot(self._memory(grid.block(item.terms[name]), [source.dtype])[0])
                   for _ in range(min(2, grid.parts(name)))]
            for name, source in self.sources.items()
        }  # fmt: skip
        size = grid.block(item.terms["d"])
        tiles = [self._memory(size, self.work.types) for _ in range(min(2, grid.tiles))]
        sums = self._memory(size, [self.work.sum_type]) if grid.sums_apart else None
        with Lane("copy in", self.device, self.recorder) as into, Lane("copy out", self.device, self.recorder) as back:
            needed = [self._need(0, slots, into)]
            leaving: dict[int, Token] = {}
            for at, step in enumerate(self.order):
                if at + 1 < len(self.order):
                    needed.append(self._need(at + 1, slots, into))
                blocks = {name: self._there(slot) for name, slot in needed[at].items()}
                tile = at // grid.cuts["k"]
                memory = tiles[tile % len(tiles)]
                if tile - len(tiles) in leaving:
                    leaving.pop(tile - len(tiles)).wait()
                runs = self._runs(step)
                with noted(self.recorder, "compute", f"step {at}", at):
                    self._compute(at, blocks, memory, sums, runs)
                self.computed.append(done(self.device))
                if at % grid.cuts["k"] == grid.cuts["k"] - 1:
                    leaving[tile] = back.put(
                        f"D: block {tile}", at, partial(self._leave, memory, runs), [self.computed[at]]
                    )
            for token in leaving.values():
                token.wait()
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

    def _memory(self, elements: int, dtypes: Sequence[torch.dtype]) -> list[torch.Tensor]:
        return [torch.empty(elements, dtype=dtype, device=self.device) for dtype in dtypes]

    def _runs(self, step: tuple[int, int, int, int]) -> dict[Label, LabelRun]:
        """The indices of the cut labels in a step."""
        grid = self.grid
        return {
            grid.labels[role]: LabelRun.of(grid.span(role, at))
            for role, at in zip(ROLES, step, strict=True) if role in grid.labels
        }  # fmt: skip

    # -- operands ------------------------------------------------------------------------------------------------------

    def _need(self, at: int, slots: Mapping[str, list[_Slot]], lane: Lane) -> dict[str, tuple[_Slot, Any]]:
        """The blocks of a step, on their way where they are not there yet."""
        runs = self._runs(self.order[at])
        found = {}
        for name, own in slots.items():
            block = self._source(name)
            term = self.placed[name].term
            key = tuple(runs[label] for label in runs if label in term and label not in block.broadcast)
            slot = next((one for one in own if one.key == key), None)
            if slot is None:
                slot = min(own, key=lambda one: one.used)
                after = [self.computed[slot.used]] if 0 <= slot.used < len(self.computed) else []
                source, _ = block.cut(runs)
                slot.key = key
                place = slot.memory[: source.numel()].view(source.shape)
                what = f"{name.upper()}: block of step {at}"
                slot.ready = lane.put(what, at, partial(copy_block, place, source), after)
                starts = {label: runs[label].start for label in runs if label in term}
                slot.block = LocalBlock(place, term, starts, block.broadcast)
            slot.used = at
            found[name] = slot, slot.block
        return found

    def _source(self, name: str) -> LocalBlock:
        tensor, term = self.sources[name], self.placed[name].term
        broadcast = frozenset(
            label for label, extent in zip(term, tensor.shape, strict=True) if extent == 1 and self.extents[label] != 1
        )
        return LocalBlock(tensor, term, {}, broadcast)

    def _there(self, found: tuple[_Slot, Any]) -> LocalBlock:
        slot, block = found
        if slot.ready is not None:
            slot.ready.wait()
        return block

    # -- D -------------------------------------------------------------------------------------------------------------

    def _compute(
        self, at: int, blocks: Mapping[str, LocalBlock], tile: Sequence[torch.Tensor], sums: list[torch.Tensor] | None,
        runs: Mapping[Label, LabelRun],
    ) -> None:  # fmt: skip
        last_of_tile = self.grid.cuts["k"] - 1
        first, last = at % (last_of_tile + 1) == 0, at % (last_of_tile + 1) == last_of_tile
        out = [self._tile(memory, runs) for memory in tile]
        going_on = out if sums is None else [self._tile(sums[0], runs)]
        addend = blocks.get("c") if first else going_on[0]
        hooks = [*BOTH, *(["c_fn"] if first and addend is not None else []), *(["epilogue"] if last else [])]
        spans = {label: LabelRun(0, extent) for label, extent in self.extents.items()}
        self.work.multiply(
            blocks["a"], blocks["b"], out if last else going_on, dict(runs), spans=spans, addend=addend,
            alpha=self.alpha, beta=self.beta if first else 1.0, hooks=hooks,
        )  # fmt: skip

    def _tile(self, memory: torch.Tensor, runs: Mapping[Label, LabelRun]) -> LocalBlock:
        term = self.placed["d"].term
        shape = [runs[label].length if label in runs else self.extents[label] for label in term]
        count = 1
        for extent in shape:
            count *= extent
        starts = {label: runs[label].start for label in term if label in runs}
        return LocalBlock(memory[:count].view(shape), term, starts)

    def _leave(self, tile: Sequence[torch.Tensor], runs: Mapping[Label, LabelRun]) -> None:
        term = self.placed["d"].term
        here = {label: run for label, run in runs.items() if label in term}
        for memory, result in zip(tile, self.results, strict=True):
            copy_block(LocalBlock(result, term).cut(here)[0], self._tile(memory, runs).tensor)


def read_place(device: Any, limit: Any) -> tuple[torch.device, int | None]:
    """The device, and the most bytes to take there: by default nine tenths of what is free on a GPU."""
    place, found = read_device(device), read_limit(limit)
    if found is None and place.type == "cuda":
        from weft.machine.rotation import free_bytes

        found = int(0.9 * free_bytes(place))
    return place, found


def refuse_gradients(**given: Any) -> None:
    for name, value in given.items():
        if asked(value):
            raise UnsupportedError(
                f"{name} requires a gradient: with device= there is none (over ranks there is), detach {name}"
            )


def refuse_ranks(**given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            raise ArgumentError(f"device= is for tensors that one device does not hold, {name}= for several ranks")

