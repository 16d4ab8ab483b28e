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
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from weft.base.arguments import addition, read_device, read_limit
from weft.base.arrays import as_results, as_tensor
from weft.base.figures import counted, duration, si
from weft.base.memory import check_room
from weft.distributed.asked import RankRequest, check_part
from weft.distributed.host_blocks import HostProblem, chosen_grid, copy_block, pinned
from weft.distributed.lanes import HOST, Lane, Recorder, Timeline, Token, done, noted, on
from weft.distributed.link import read_link
from weft.distributed.placement import LocalBlock, RankProblem, Span, Spans
from weft.distributed.report import BUDGET, MeasuredCalls, measured_calls, warmed
from weft.engine.ways import asked
from weft.errors import ArgumentError, UnsupportedError, call_context
from weft.oracle.validate import validated
from weft.planner.request import Request, Results
from weft.planner.schedule import Scalar
from weft.plans.checks import check_addend, check_outputs
from weft.spec.arguments import read_flag
from weft.spec.notation import label_text

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
        work = asked.work_of(problem, request)
        aux = {name: replace(block, tensor=block.tensor.to(device)) for name, block in work.aux.items()}
        for name, (modes, tensor) in asked.options.operands.items():
            repeated = problem.repeated(modes, tensor.shape)  # type: ignore[arg-type]
            aux[name] = LocalBlock(tensor.to(device), tuple(modes), {}, repeated)  # type: ignore[arg-type]
        self._work = replace(work, aux=aux)
        self.dtypes = work.types
        self.link = read_link(link, None, device)
        self.kernel = asked.kernel_of(problem, request, device)
        terms = {"a": problem.a.term, "b": problem.b.term, "d": problem.d.term}
        terms |= {"c": problem.d.term} if added else {}
        items = {**problem.items, "d": sum(dtype.itemsize for dtype in self.dtypes), "c": problem.items["sum"]}
        resident = sum(block.tensor.nbytes for block in aux.values())
        whole = HostProblem(terms, problem.extents, items, resident, self.dtypes != (work.sum_type,))
        self.grid, self._predicted = chosen_grid(whole, self.kernel, self.link, limit)

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
        return self._predicted

    @property
    def about(self) -> str:
        """The equation, and in how many steps."""
        grid = self.grid
        cuts = [f"'{label_text(label)}' in {cut}" for label, cut in grid.cuts.items() if cut > 1]
        said = ", ".join(cuts) or "everything at once"
        return f"{self._asked.equation} in {counted(grid.steps, 'step')} on {self.device}: {said}"

    def explain(self) -> str:
        """The blocks, the bytes that are copied, what is predicted, and what bounds it."""
        grid, found = self.grid, self._predicted
        limit = f" of memory_limit {si(self.limit, 'B')}" if self.limit is not None else ""
        lanes = ", ".join(f"{lane} {duration(found.busy(lane))}" for lane in found.lanes)
        return "\n".join([
            self.about,
            *(f"  {name.upper()}: {counted(grid.copied(name), 'block')} of "
              f"{si(grid.block(name) * grid.whole.items[name], 'B')} copied {'out' if name == 'd' else 'in'}"
              for name in sorted(grid.whole.terms)),
            f"memory {si(grid.memory(), 'B')}{limit}",
            f"link {self.link}",
            f"predicted {duration(found.seconds)}: {lanes}; {max(found.lanes, key=found.busy)} bounds it",
        ])  # fmt: skip

    def _run(
        self, a: Any, b: Any, c: Any, alpha: Scalar, beta: Scalar | None, out: Any, validate: bool = False,
        recorder: Recorder | None = None,
    ) -> Any:  # fmt: skip
        with call_context(lambda: f"distributed.plan({self._asked.equation!r})"):
            c, beta = addition(c, beta, out)
            with noted(recorder, HOST, "checks"):
                sources = {"a": as_tensor("a", a), "b": as_tensor("b", b)}
                refuse_gradients(**sources, c=c)
                check_part("a", sources["a"], self._asked.a, self._problem.a.term)
                check_part("b", sources["b"], self._asked.b, self._problem.b.term)
                addend = self._checked_addend(c, alpha, beta)
                read_flag("validate", validate)
                results = self._results(out, sources, addend)
            tensors = sources if addend is None else {**sources, "c": addend}

            def run() -> Results:
                if results[0].numel():
                    with on(self.device), ExitStack() as memory:
                        with noted(recorder, HOST, "pinning"):
                            memory.enter_context(pinned([*tensors.values(), *results], self.device))
                        _Pass(self, tensors, results, alpha, beta, recorder).run()
                return results[0] if len(results) == 1 else tuple(results)

            if not validate:
                found = run()
            else:
                operands = self._asked.options.tensors
                found = validated(self._request, run, sources["a"], sources["b"], addend, alpha, beta, operands)
        return out if out is not None else found

    def _checked_addend(self, c: Any, alpha: Scalar, beta: Scalar) -> torch.Tensor | None:
        self._asked.check_factors(self._request, c, alpha, beta)
        if c is None:
            return None
        if "c" not in self.grid.whole.terms:
            raise ArgumentError("the blocks were planned without c, which needs memory, too: plan with c=")
        addend = as_tensor("c", c)
        check_addend(addend, self.shape, self._request.arithmetic.accumulate, torch.device("cpu"))
        return None if beta == 0 and self._asked.options.algebra is None else addend

    def _results(
        self, out: Any, inputs: Mapping[str, torch.Tensor], addend: torch.Tensor | None
    ) -> Sequence[torch.Tensor]:
        if out is None:
            size = math.prod(self.shape) * max(dtype.itemsize for dtype in self.dtypes)
            check_room(torch.device("cpu"), size)
            # torch rounds pinned memory up to a power of two, which is much of a large tensor: that is registered.
            pin = self.device.type == "cuda" and size < _LARGE
            return [torch.empty(self.shape, dtype=dtype, pin_memory=pin, device="cpu") for dtype in self.dtypes]
        given = as_results(out)
        assert given is not None, "as out is not"
        several = self._request.outputs is not None
        check_outputs(given, self.shape, self.dtypes, several, torch.device("cpu"), inputs, addend)
        return given if isinstance(given, tuple) else [given]


class _Incoming:
    """A tensor in the machine's memory, and memory on the device for one or two blocks of it."""

    def __init__(self, source: LocalBlock, memory: Sequence[torch.Tensor]) -> None:
        self.source, self.memory = source, memory
        self.key: Any = None  # the indices of the newest block
        self.turn = -1  # its memory
        self.used = [-1, -1]  # the last steps that read what is in each memory
        self.ready: Token

    def copied(self, at: int, runs: Spans) -> LocalBlock:
        """The block of these indices in the memory whose turn it is."""
        source, term = self.source.cut(runs)
        place = self.memory[at][: source.numel()].view(source.shape)
        copy_block(place, source)
        starts = {label: run.start for label, run in runs.items() if label in term}
        return LocalBlock(place, term, starts, self.source.broadcast)


class _Pass:
    """One call: all steps in their order."""

    def __init__(
        self, plan: OutOfCorePlan, tensors: Mapping[str, torch.Tensor], results: Sequence[torch.Tensor], alpha: Scalar,
        beta: Scalar, recorder: Recorder | None,
    ) -> None:  # fmt: skip
        self.grid, self.work, self.device = plan.grid, plan._work, plan.device
        self.results, self.alpha, self.beta, self.recorder = results, alpha, beta, recorder
        whole, grid = self.grid.whole, self.grid
        self.extents, self.term = whole.extents, whole.terms["d"]
        self.incoming = {}
        for name, tensor in tensors.items():
            repeated = plan._problem.repeated(whole.terms[name], tensor.shape)
            memory = self._memory(grid.block(name), [tensor.dtype] * min(2, grid.parts(name)))
            self.incoming[name] = _Incoming(LocalBlock(tensor, whole.terms[name], {}, repeated), memory)
        self.tiles = [self._memory(grid.block("d"), self.work.types) for _ in range(min(2, grid.parts("d")))]
        self.sums = self._memory(grid.block("d"), [self.work.sum_type]) if grid.sums_apart else None
        self.computed: list[Token] = []

    def run(self) -> None:
        steps = self.grid.steps
        of_tile = steps // self.grid.parts("d")
        with Lane("copy in", self.device, self.recorder) as into, Lane("copy out", self.device, self.recorder) as back:
            needed = self._need(0, into)
            leaving: list[Token] = []
            for at in range(steps):
                here, needed = needed, self._need(at + 1, into) if at + 1 < steps else {}
                blocks = {name: token.wait() for name, token in here.items()}
                tile, k = divmod(at, of_tile)
                memory, runs = self.tiles[tile % len(self.tiles)], self.grid.runs(at)
                if k == 0 and tile >= len(self.tiles):
                    leaving[tile - len(self.tiles)].wait()
                with noted(self.recorder, "compute", f"step {at}", at):
                    self._compute(blocks, memory, runs, first=k == 0, last=k == of_tile - 1)
                self.computed.append(done(self.device))
                if k == of_tile - 1:
                    leave = partial(self._leave, memory, runs)
                    leaving.append(back.put(f"D: block {tile}", at, leave, [self.computed[at]]))
            for token in leaving[-len(self.tiles) :]:
                token.wait()
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

    def _memory(self, elements: int, dtypes: Sequence[torch.dtype]) -> list[torch.Tensor]:
        return [torch.empty(elements, dtype=dtype, device=self.device) for dtype in dtypes]

    def _need(self, at: int, lane: Lane) -> dict[str, Token]:
        """The blocks of a step, on their way where they are not there yet."""
        runs, found = self.grid.runs(at), {}
        for name, each in self.incoming.items():
            cut = set(each.source.term) - each.source.broadcast
            key = [run for label, run in runs.items() if label in cut]
            if key != each.key:
                each.key, each.turn = key, (each.turn + 1) % len(each.memory)
                used = each.used[each.turn]
                after = [self.computed[used]] if used >= 0 else []
                copied = partial(each.copied, each.turn, runs)
                each.ready = lane.put(f"{name.upper()}: block of step {at}", at, copied, after)
            each.used[each.turn] = at
            found[name] = each.ready
        return found

    def _compute(
        self, blocks: Mapping[str, LocalBlock], tile: Sequence[torch.Tensor], runs: Spans, *,
        first: bool, last: bool,
    ) -> None:  # fmt: skip
        out = [self._tile(memory, runs) for memory in tile]
        going_on = out if self.sums is None else [self._tile(self.sums[0], runs)]
        spans = {label: Span(0, extent) for label, extent in self.extents.items()}
        self.work.multiply(
            blocks["a"], blocks["b"], out if last else going_on, runs, spans=spans, alpha=self.alpha, beta=self.beta,
            addend=blocks.get("c") if first else going_on[0], first=first, last=last,
        )  # fmt: skip

    def _tile(self, memory: torch.Tensor, runs: Spans) -> LocalBlock:
        shape = [runs[label].extent if label in runs else self.extents[label] for label in self.term]
        starts = {label: runs[label].start for label in self.term if label in runs}
        return LocalBlock(memory[: math.prod(shape)].view(shape), self.term, starts)

    def _leave(self, tile: Sequence[torch.Tensor], runs: Spans) -> None:
        for memory, result in zip(tile, self.results, strict=True):
            copy_block(LocalBlock(result, self.term).cut(runs)[0], self._tile(memory, runs).tensor)


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
