"""The main job: the paper's fused example and the TCCG suite, each case held against the oracle and then timed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from weft import cases
from weft.api.contract import contract, plan
from weft.cases import Case, Operands
from weft.errors import NotationError, UnsupportedError, WorkspaceError
from weft.machine.ceilings import Ceilings
from weft.machine.counts import Work, contraction_work
from weft.machine.floor import contraction_floor
from weft.machine.roofline import Floor
from weft.machine.rotation import InputSet, Mode, cache_bytes, memory_bytes, rotation, touched_bytes
from weft.machine.timing import Timing, measure
from weft.planner.target import interpreting, resolve_backend
from weft.plans.contraction import Plan
from weft.testing import expectation, max_error_over_bound, poisoned

# D[abcde] = A[ecbfa] * elu(B[fd]), sections III and IV of Flexible Performant Tensor Contractions on GPUs.
EXAMPLE = cases.from_letters(
    "example", "ecbfa,fd->abcde", a=16, b=16, c=16, d=64, e=16, f=64,
    dtypes=(torch.float16, torch.float16, torch.float32), b_fn="elu",
)  # fmt: skip

CPU_WORK = 1 << 25  # multiply-adds of a case on a CPU: so the whole demo takes about a minute, of one core too
INTERPRETED_WORK = 1 << 12  # Triton's interpreter takes milliseconds for every tile
BUDGET = 0.15  # seconds of samples for one timing
_CHECKED_SEED, _TIMED_SEED = 1, 2  # the run that is checked and the run that is timed share no operand


@dataclass(frozen=True, slots=True)
class Settings:
    """Where and how large the demo runs."""

    device: torch.device
    backend: str  # resolved: never "auto"
    dtypes: tuple[torch.dtype, torch.dtype, torch.dtype]  # of A, B and D in the suite
    work: int | None  # most multiply-adds of a case; None leaves the published extents
    budget: float = BUDGET  # seconds of samples for one timing
    mode: Mode = "cold"

    @property
    def scaling(self) -> str:
        """What was done to the extents, for captions."""
        if self.work is None:
            return "as published"
        return f"shrunk by one factor a case, to at most {self.work:,} multiply-adds"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One case: what was computed, whether it was right, and how long it took."""

    case: Case
    plan: Plan
    error_over_bound: float  # largest over D: at most 1 is right; infinite where an element was not written
    failure: str  # "" for a right result
    floor: Floor | None  # None where the device's ceilings are not known
    ours: Timing | None = None  # None after a failure
    torch: Timing | None = None

    @property
    def work(self) -> Work:
        return contraction_work(self.plan.contraction)

    @property
    def compute_bound(self) -> bool:
        """Which side of the roof is lower for this case; the matrix side where the roof is not known."""
        return self.floor is None or self.floor.compute >= self.floor.memory

    @property
    def rate(self) -> float:
        """FLOP/s where compute binds, else compulsory bytes a second."""
        assert self.ours is not None
        return (self.work.flops if self.compute_bound else self.work.traffic) / self.ours.seconds

    @property
    def of_floor(self) -> float | None:
        """The floor over the time taken."""
        return self.floor.efficiency(self.ours.seconds) if self.floor is not None and self.ours is not None else None

    @property
    def speed_against_torch(self) -> float:
        """Above 1 where weft is faster."""
        assert self.ours is not None
        assert self.torch is not None
        return self.torch.seconds / self.ours.seconds


def settings_for(
    device: str | None = None,
    backend: str = "auto",
    work: int | None = None,
    budget: float = BUDGET,
    mode: Mode = "cold",
) -> Settings:
    """Fill in what was not asked for: a GPU where there is one, its published extents in fp16, scaled fp32 on a CPU.

    Raises `UnsupportedError` for a device that is not there or that the backend does not serve.
    """
    if device is None:
        device = "cuda" if torch.cuda.is_available() and backend != "cpu" else "cpu"
    try:
        place = torch.device(device)
    except RuntimeError:
        raise UnsupportedError(f"'{device}' is no device: cpu, cuda, cuda:1, ...") from None
    if place.type == "cuda" and (place.index or 0) >= torch.cuda.device_count():
        raise UnsupportedError(f"device '{device}' is not there: torch sees {torch.cuda.device_count()} GPUs")
    chosen = resolve_backend(backend, place)
    if place.type == "cuda":
        return Settings(place, chosen, (torch.float16, torch.float16, torch.float32), work, budget, mode)
    most = INTERPRETED_WORK if chosen == "triton" and interpreting() else CPU_WORK
    return Settings(place, chosen, (torch.float32,) * 3, work or most, budget, mode)


def select(text: str | None) -> tuple[Case, ...]:
    """The example and the suite, or those that `text` names: ``"1,4,20-30"``, ``"tccg-07"``, ``"example"``.

    Raises `NotationError` for what names none.
    """
    suite = cases.tccg()
    if text is None:
        return (EXAMPLE, *suite)
    named = {case.name: case for case in (EXAMPLE, *suite)}
    named |= {str(number): case for number, case in enumerate(suite, 1)}
    chosen: dict[str, Case] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        first, dash, last = part.partition("-")
        if dash and first.isdigit() and last.isdigit():
            names = [str(number) for number in range(int(first), int(last) + 1)]
        else:
            names = [part]
        if not names or any(name not in named for name in names):
            raise NotationError(f"case '{part}' is none of example, 1-{len(suite)}, {suite[0]} ... {suite[-1]}")
        chosen |= {named[name].name: named[name] for name in names}
    if not chosen:
        raise NotationError("no case is named")
    return tuple(chosen.values())


def fitted(case: Case, settings: Settings) -> Case:
    """`case` in the types and at the size of this run; the example keeps its own types."""
    if case is not EXAMPLE:
        case = replace(case, dtypes=settings.dtypes)
    return case if settings.work is None else cases.scaled(case, settings.work)


def run(
    chosen: Sequence[Case], settings: Settings, known: Ceilings | None, before: Callable[[Case], None]
) -> Iterator[Outcome]:
    """Every case in turn; `before` hears of each. A wrong result ends a case, not the run."""
    for case in chosen:
        before(case)
        yield run_case(fitted(case, settings), settings, known)


def run_case(case: Case, settings: Settings, known: Ceilings | None) -> Outcome:
    """Check one case, then time it. The two share nothing: other operands, another result."""
    try:
        given = cases.operands(case, device=settings.device, seed=_TIMED_SEED)
        planned = _plan(case, settings, given)
        error, failure = _check(case, settings)
        floor = contraction_floor(planned.contraction, known, in_graph=True) if known is not None else None
        outcome = Outcome(case, planned, error, failure, floor)
        if settings.device.type == "cuda":
            torch.cuda.empty_cache()  # the oracle's tables are large, and the timing asks how much memory is free
        return outcome if failure else _timed(outcome, given, settings)
    except torch.OutOfMemoryError as error:
        raise WorkspaceError(f"{case.name}: {settings.device} is out of memory") from error


def _check(case: Case, settings: Settings) -> tuple[float, str]:
    """Largest error over its bound, and what is wrong, if anything; D is written over poison."""
    given = cases.operands(case, device=settings.device, seed=_CHECKED_SEED)
    target = poisoned(case.d_shape, case.dtypes[2], device=settings.device)
    contract(case.equation, given.a, given.b, out=target.tensor, backend=settings.backend, **case.options())
    reference, bound = expectation(case.equation, given.a, given.b, **case.options())
    error = max_error_over_bound(target.tensor, reference, bound)
    try:
        target.check_guards()
    except AssertionError as written:
        return math.inf, str(written)
    if error <= 1:
        return error, ""
    if math.isfinite(error):
        return error, f"error {error:.3g} times its bound"
    return error, "elements that were not written, or not finite"


def _plan(case: Case, settings: Settings, given: Operands) -> Plan:
    options = {name: value for name, value in case.options().items() if name not in ("alpha", "beta", "c_fn")}
    return plan(case.equation, given.a, given.b, backend=settings.backend, **options)


def _timed(outcome: Outcome, given: Operands, settings: Settings) -> Outcome:
    """Both sides on the same rotating inputs."""
    case, device = outcome.case, settings.device

    def make() -> tuple[torch.Tensor, ...]:
        return given.a.clone(), given.b.clone(), torch.empty(case.d_shape, dtype=case.dtypes[2], device=device)

    sets = rotation(make, settings.mode, cache=cache_bytes(device), memory=_affordable(outcome, make(), settings)).sets
    # Fresh memory costs time on a CPU, and torch.einsum takes no `out`: there both sides allocate their result.
    reuse = device.type == "cuda"

    def by_weft(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
        return outcome.plan(a, b, out=d if reuse else None)

    ours, theirs = (
        measure(call, sets, device=device, mode=settings.mode, budget=settings.budget)
        for call in (by_weft, _by_torch(case))
    )
    return replace(outcome, ours=ours, torch=theirs)


def _affordable(outcome: Outcome, operands: InputSet, settings: Settings) -> int:
    """Bytes of input sets that the budget suffices to go through once.

    On a CPU that has other work calls take many times longer, and a timing goes through all sets at least five times.
    Where the sets become too few for a cold cache the timing's notes say so.
    """
    device = settings.device
    a, b, _ = operands
    trial = measure(lambda: outcome.plan(a, b), [()], device=device, mode="hot", rrs=math.inf, budget=0)
    fitting = max(2, int(settings.budget / trial.seconds))
    return min(memory_bytes(device), fitting * touched_bytes([operands]))


def _by_torch(case: Case) -> Callable[..., torch.Tensor]:
    """The same with torch.einsum: functions as kernels of their own, D made contiguous in its order.

    torch's D has the operands' type; it offers no other.
    """
    options = case.options()
    a_fn, b_fn, epilogue = (options[hook] for hook in ("a_fn", "b_fn", "epilogue"))

    def call(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
        a = a if a_fn is None else a_fn(a)
        b = b if b_fn is None else b_fn(b)
        result = torch.einsum(case.equation, a, b)
        return (result if epilogue is None else epilogue(result)).contiguous()

    return call
