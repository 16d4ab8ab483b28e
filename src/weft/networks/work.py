"""The slices of one call as something that can be done one by one, stopped, written down and gone on with.

They run one after the other, for as long as it takes: with progress, Ctrl-C between two of them, and a state on disk.
Ctrl-C waits for the end of a slice, part of which may be added; `go_on` takes up from there. Where there is a
checkpoint a request to end (SIGTERM) waits likewise, and the state is written first. On a GPU the host stays a few
slices ahead and no more, so that what it says and writes is near to what is done.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from weft.algebra import Algebra
from weft.api.permute import moved
from weft.base.log import warn
from weft.errors import ArgumentError, UnsupportedError
from weft.fn.pointwise import is_triton_function
from weft.library.views import DIMS, LONGEST
from weft.networks.checkpoint import Checkpoint, HeldSums, Saved, done
from weft.networks.memory import part
from weft.networks.program import NetworkProgram, SumPlace
from weft.networks.rescale import scale_and_exponent
from weft.networks.steps import ContractionCall
from weft.planner.options import Options
from weft.plans.intermediates import WIDER
from weft.tune.progress import quiet, shown

EVERY = 60.0  # seconds between states on disk
_AHEAD = 16  # slices that the host may be ahead of a GPU
Combine = Callable[[torch.Tensor, torch.Tensor], Any]


class _Slices:
    """The slices of a call. What all of them share is done again where a run goes on: others may have used the arena
    since."""

    def __init__(self, program: NetworkProgram, tensors: Sequence[torch.Tensor], out: torch.Tensor) -> None:
        self.program, self.out = program, out
        self._tensors, self._values = tensors, list[Any]()

    def begin(self) -> None:
        self._values = self.program.begin(self._tensors)
        self._whole = self.program.cut(self._values)

    def one_by_one(self) -> Iterator[tuple[ContractionCall, Callable[[], None]]]:
        """The steps of the last slice, as `NetworkProgram.one_by_one` has them."""
        return self.program.one_by_one(self._tensors, self.place(len(self.program.slices) - 1))

    def place(self, number: int) -> SumPlace:
        """Where slice `number` goes."""
        plan = self.program.plan
        made = torch.empty(plan.shape(plan.tree.root), dtype=plan.dtype, device=self.program.device)
        return SumPlace(made, None, True)


class Summing(_Slices):
    """Sums of slices, in place.

    A part of the result whose slices all run here one after the other is added up in the memory of the result and
    finished by its last slice. A part that is shared with other ranks, or that a checkpoint may have to hold, is a
    *partial* sum: its function waits for the others. Half precision is added up in float32.
    """

    def __init__(
        self, program: NetworkProgram, tensors: Sequence[torch.Tensor], out: torch.Tensor,
        partial: Collection[int] = (),
    ) -> None:  # fmt: skip
        """`partial` are the numbers of parts that are not finished here."""
        super().__init__(program, tensors, out)
        plan, tree = program.plan, program.plan.tree
        self.combine = combine_of(plan.settings.options.algebra) if partial else torch.Tensor.add_
        self._into, self._term, self._summed = tree.graph.result.view(out), tree.graph.output, tree.summed
        self._partial = frozenset(partial)
        self._in_place = out.dtype not in WIDER and tree.root not in plan.functions
        self._wide: torch.Tensor | None = None
        if self._summed > 1 and out.dtype in WIDER and len(self._partial) < tree.slices // self._summed:
            self._wide = self._new()
        self.sums: dict[int, torch.Tensor] = {}  # partial sums that have begun

    @property
    def result(self) -> torch.Tensor:
        return self.out

    def part(self, number: int) -> torch.Tensor:
        """A part of the result."""
        return part(self._into, self._term, self.program.slices[number * self._summed])

    def slice(self, number: int) -> None:
        self.program.slice(number, self._values, self.place(number), self._whole)

    def place(self, number: int) -> SumPlace:
        at, turn = divmod(number, self._summed)
        if at in self._partial:
            begun = at in self.sums
            held = self.sums[at] if begun else self._begun(at)
            return SumPlace(held, held if begun else None, False)
        place = self.part(at)
        first, last = turn == 0, turn == self._summed - 1
        sum_of = self._wide if self._wide is not None else place
        return SumPlace(place if last else sum_of, None if first else sum_of, last)

    def _begun(self, number: int) -> torch.Tensor:
        self.sums[number] = self.part(number) if self._in_place else self._new()
        return self.sums[number]

    def _new(self) -> torch.Tensor:
        plan, dtype = self.program.plan, self.out.dtype
        return torch.empty(plan.shape(plan.tree.root), dtype=WIDER.get(dtype, dtype), device=self.out.device)

    def finish(self) -> None:
        """Make the result of sums whose last slices did not."""
        for number, total in self.sums.items():
            self.complete(number, total)

    def held(self) -> HeldSums:
        return HeldSums(dict(self.sums))

    def absorb(self, held: HeldSums) -> None:
        for number, value in held.parts.items():
            if number in self.sums:
                into = self.sums[number]
                self.combine(into, value.to(into.device).view(into.shape))
            else:
                into = self._begun(number)
                into.copy_(value.reshape(into.shape))

    def complete(self, number: int, total: torch.Tensor) -> None:
        """Put the whole sum of a part into the result, through the last function."""
        place = self.part(number)
        if total.data_ptr() == place.data_ptr():
            return
        plan = self.program.plan
        finish(total.view(place.shape), place, plan.functions.get(plan.tree.root))


class Scaling(_Slices):
    """Sums of slices over one power of ten."""

    def __init__(self, program: NetworkProgram, tensors: Sequence[torch.Tensor], out: torch.Tensor) -> None:
        super().__init__(program, tensors, out)
        kind = program.plan.result_memory.sum_type(program.plan.tree)
        self.sums = torch.zeros(out.shape, dtype=kind, device=out.device) if kind != out.dtype else out.zero_()
        self.exponent = torch.full((), -math.inf, dtype=torch.float64, device=out.device)  # to the base of two

    def slice(self, number: int) -> None:
        plan, values, place = self.program.plan, self._values, self.place(number)
        self.program.slice(number, values, place, self._whole)
        # The result is scaled by its own power of two where it is added; all others were as they were read.
        scale, exponent = scale_and_exponent(values[plan.tree.root + 1 :])
        result = plan.tree.graph.result
        into = part(result.view(self.sums), result.term, self.program.slices[number])
        self._add(into, place.into.mul_(scale.to(place.into.dtype)), exponent)

    def _add(self, into: torch.Tensor, values: torch.Tensor, exponent: torch.Tensor) -> None:
        """Add values times 2**exponent to a part of the sums, which have one exponent for all."""
        found, real = torch.maximum(self.exponent, exponent), self.sums.dtype.to_real()
        self.sums *= torch.exp2(self.exponent - found).to(real)
        into += values.to(into.dtype) * torch.exp2(exponent - found).to(real)
        self.exponent = found

    def finish(self) -> None:
        """Nothing is left: `result` is the sums."""

    def held(self) -> HeldSums:
        return HeldSums({0: self.sums}, float(self.exponent))

    def absorb(self, held: HeldSums) -> None:
        if held.exponent is None or held.exponent == -math.inf:
            return  # of no slice
        value = held.parts[0].to(self.sums.device).view(self.sums.shape)
        self._add(self.sums, value, torch.full_like(self.exponent, held.exponent))

    def scaled_to(self, exponent: float) -> None:
        """Let the sum stand over 2**exponent, which is no less than its own."""
        if exponent == -math.inf:
            return
        factor = torch.exp2(self.exponent - exponent)
        self.sums *= factor.to(self.sums.dtype.to_real())
        self.exponent.fill_(exponent)

    @property
    def result(self) -> tuple[torch.Tensor, torch.Tensor]:
        """``(mantissa, exponent)``: the result over 10**exponent in its place, a float64 tensor of no dimension."""
        if self.sums is not self.out:
            self.out.copy_(self.sums)
        return self.out, self.exponent * math.log10(2.0)


SliceWork = Summing | Scaling  # the program's lock is held while slices run


def work_of(
    program: NetworkProgram, operands: Sequence[torch.Tensor], place: torch.Tensor, partial: Collection[int]
) -> SliceWork:
    """The slices of a call into `place`."""
    if program.plan.settings.strip_exponent:
        return Scaling(program, operands, place)
    return Summing(program, operands, place, partial)


def finish(value: torch.Tensor, place: torch.Tensor, function: Callable[..., Any] | None) -> None:
    """A complete sum into its place, through the last step's function."""
    if function is None and place.dim() <= DIMS.get(place.device.type, LONGEST):
        place.copy_(value)
        return
    labels = tuple(range(place.dim()))
    options = Options(place.dtype, functions=(function, None, None, None), specialize="auto")
    moved((labels, labels), value, options, out=place)


def combine_of(found: Algebra | None) -> Combine:
    """A function that adds one partial sum to another, in place; `UnsupportedError` where torch cannot compute it."""
    if found is None:
        return torch.Tensor.add_
    reduce = found.reduce
    if is_triton_function(reduce):
        raise UnsupportedError(
            f"partial sums of the algebra {found.name} cannot be added up: its reduction is written in Triton; give it "
            "as a function of torch operations"
        )

    def combine(into: torch.Tensor, value: torch.Tensor) -> None:
        into.copy_(reduce(into, value))

    return combine


class Keeper:
    """Writes the state of a run to its file of a checkpoint."""

    def __init__(self, checkpoint: Checkpoint, name: str, includes: Sequence[str], before: Sequence[int], every: float):
        """`includes` are the files whose sums the run begins with, `before` the slices that are in them."""
        self._checkpoint, self._name = checkpoint, name
        self._includes, self._before = list(includes), list(before)
        self._every, self._last = every, time.monotonic()
        self._written = -1

    def first(self, work: SliceWork) -> None:
        """Write the state that the run begins with; `ArgumentError` where that cannot be done."""
        try:
            self._write(work, ())
        except OSError as error:
            raise ArgumentError(f"the checkpoint {self._checkpoint.folder} cannot be written: {error}") from error

    @property
    def due(self) -> bool:
        """Whether the last state is old enough for another."""
        return time.monotonic() - self._last >= self._every

    def save(self, work: SliceWork, done: Sequence[int]) -> None:
        """Write; a disk that is full costs a warning, not the run."""
        if len(done) == self._written:
            return
        try:
            self._write(work, done)
        except OSError as error:
            warn(f"the checkpoint {self._checkpoint.folder} cannot be written: {error}")

    def _write(self, work: SliceWork, done: Sequence[int]) -> None:
        self._checkpoint.write(self._name, work.held(), [*self._before, *done], self._includes)
        self._written, self._last = len(done), time.monotonic()


class Slices:
    """The slices of one call, some of which are done: what Ctrl-C leaves and `resume()` goes on with."""

    visible = True  # whether progress is shown

    def __init__(self, work: SliceWork, numbers: Sequence[int], *, before: int = 0) -> None:
        """`before` counts slices of earlier runs, for the bar."""
        self.work, self.numbers = work, numbers
        self.keeper: Keeper | None = None
        self.done = 0
        self._before = before

    def take_up(self, checkpoint: Checkpoint, rank: int, run: int, files: Sequence[Saved], every: float) -> None:
        """Begin with the sums of these files, and write a file of this process's own."""
        for file in files:
            self.work.absorb(checkpoint.read(file.name))
        includes, before = [file.name for file in files], done(files)
        self.keeper = Keeper(checkpoint, f"{run:06}-{rank}.npz", includes, before, every)
        self.keeper.first(self.work)

    def result(self) -> Any:
        """The result, slices being shown as they are done where the network shows progress."""
        plan = self.work.program.plan
        with shown("slices") if plan.settings.progress and self.visible else nullcontext(quiet) as report:
            return self.go_on(lambda done: report("contracting", done, plan.tree.slices))

    def go_on(self, report: Callable[[int], None]) -> Any:
        """The result, once all slices are done that are not. After each `report` hears how many are, those of earlier
        runs too."""
        self.run(report)
        self.work.finish()
        return self.work.result

    def look(self) -> None:
        """Called after each slice: what it raises ends the run, and the state is written then."""

    def run(self, report: Callable[[int], None]) -> None:
        """The slices that are not done."""
        work, keeper = self.work, self.keeper
        with work.program.lock, _put_off(keeper is not None) as interrupted:
            pace = _Pace(work.program.device)
            work.begin()
            for number in self.numbers[self.done :]:
                work.slice(number)
                self.done += 1
                pace.wait()
                report(self._before + self.done)
                if keeper is not None and keeper.due:
                    self._save()
                try:
                    self.look()
                    interrupted(self._save)
                except BaseException:
                    self._save()
                    raise
            self._save()

    def _save(self) -> None:
        if self.keeper is not None:
            self.keeper.save(self.work, self.numbers[: self.done])


class _Pace:
    """Keeps the host near the device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._events: deque[Any] = deque()

    def wait(self) -> None:
        if self._device.type != "cuda" or torch.cuda.is_current_stream_capturing():
            return
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        self._events.append(event)
        if len(self._events) > _AHEAD:
            self._events.popleft().synchronize()


@contextmanager
def _put_off(terminations: bool) -> Iterator[Callable[[Callable[[], None]], None]]:
    """Ctrl-C is put off until the function that this yields is called: never amid a slice, part of which may be added.

    `terminations`: SIGTERM, too. Once what the function is given has been called, the signal is raised again for the
    handler of before, be it Python's or the program's own. A signal that the program ignores stays ignored, and one
    that it handles outside Python its own. Only Python's main thread hears of signals; elsewhere nothing is put off.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda save: None
        return
    asked: list[int] = []

    def look(save: Callable[[], None]) -> None:
        if not asked:
            return
        number = asked.pop(0)
        save()
        ours = signal.signal(number, before[number])
        signal.raise_signal(number)
        signal.signal(number, ours)

    numbers = (signal.SIGINT, signal.SIGTERM) if terminations else (signal.SIGINT,)
    before: dict[int, Any] = {
        number: signal.signal(number, lambda found, frame: asked.append(found))
        for number in numbers if signal.getsignal(number) not in (signal.SIG_IGN, None)
    }  # fmt: skip
    try:
        yield look
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
