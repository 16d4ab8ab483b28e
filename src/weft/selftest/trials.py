"""One case as tensors on a device, run on a schedule of its family, twice, and judged.

Tensors are made, and results judged, on the CPU: little else runs on a device than the kernel that is tested. Every
tensor is amid bytes that spell NaN, so that an element left unwritten shows, and so does what is read or written past
the ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

import torch

from weft.algebra import find
from weft.base.arrays import grad_mode
from weft.errors import UnsupportedError
from weft.fn import trace
from weft.machine.shortage import causes_of, is_of_memory, is_shortage
from weft.oracle import reference
from weft.oracle.bounds import expectation
from weft.oracle.judgement import error_over_bound
from weft.oracle.problem import memory_of
from weft.planner.planner import Choice
from weft.planner.registry import first_line
from weft.planner.request import HOOKS, hook_types
from weft.planner.schedule import Description, Ranked, Target
from weft.planner.validity import now
from weft.planner.verdicts import Verdict
from weft.selftest.case import FUNCTIONS, Case, PermuteCase, operands
from weft.selftest.cases import INEXACT, InPlaceCase, Trial
from weft.spec import Contraction, Layout, canonical, parse
from weft.spec.contraction import class_modes
from weft.spec.dtypes import resolve
from weft.spec.permutation import InPlace, Permutation, canonical_modes
from weft.testing import Guarded, poisoned, random_operand

SEED = 1


class TrialProblem:
    """Operands and a place for the result on a device, and what belongs there."""

    description: Any  # a `Contraction` or `Permutation`; an `InPlace` for a transposition in place

    def __init__(
        self,
        inputs: Sequence[torch.Tensor | None],  # on the CPU
        result: Guarded,
        wanted: torch.Tensor,
        bound: torch.Tensor | None,  # None: exact
        device: torch.device,
    ) -> None:
        self.inputs = [placed(x, device) if x is not None else None for x in inputs]
        self._given = [memory_of(x) if x is not None else None for x in inputs]
        self._clean = result
        self._memory = result.memory.to(device, copy=True)
        self.result = _seen_in(self._memory, result.tensor)
        self._wanted, self._bound = wanted, bound

    def run(self, launch: Callable[..., None]) -> None:
        """Fill the result's place with poison, and launch."""
        self._memory.copy_(self._clean.memory)
        self.launched(launch)

    def launched(self, launch: Callable[..., None]) -> None:
        raise NotImplementedError

    def fault(self) -> str | None:
        """The fault of a run in a few words, None without one; waits for the device."""
        after = self._memory.cpu()
        have = _seen_in(after, self._clean.tensor)
        wrong = have != self._wanted if self._bound is None else error_over_bound(have, self._wanted, self._bound) > 1
        if bool(wrong.any()):
            at = tuple(wrong.nonzero()[0].tolist())
            found, wanted = have[at].item(), self._wanted[at].item()
            return f"{int(wrong.sum())} of {wrong.numel()} elements wrong, {found} at {list(at)} and not {wanted}"
        try:
            Guarded(have, after, self._clean.guards, self._clean.poison).check_guards()
        except AssertionError as error:
            return str(error)
        for x, before in zip(self.inputs, self._given, strict=True):
            if x is not None and before is not None and not torch.equal(memory_of(x).cpu(), before):
                return "an operand was written"
        return None


class ContractionProblem(TrialProblem):
    def __init__(self, case: Case, device: torch.device) -> None:
        given = operands(case, seed=SEED, integers=True)
        result = poisoned(case.d_shape, case.dtypes[2], layout=case.layouts[3])
        scalars = case.alpha, case.beta if case.add else 0.0
        algebra = case.algebra if case.algebra != "plus_times" else None
        accumulate = resolve(*case.dtypes[:2], algebra=algebra).accumulate
        exact = not accumulate.is_floating_point and not accumulate.is_complex
        self._scalars = tuple(int(x.real) for x in scalars) if exact else scalars
        super().__init__(given, result, *_expected(case, *given), device)
        self.description = contraction_of(case, *map(_layout, (*self.inputs, self.result)))  # type: ignore[arg-type]

    def launched(self, launch: Callable[..., None]) -> None:
        launch(*self.inputs, self.result, *self._scalars)


class PermutationProblem(TrialProblem):
    def __init__(self, case: PermuteCase, device: torch.device) -> None:
        x = random_operand(case.shape, case.dtype, SEED, integers=True)
        wanted = reference.permute(case.equation, x, fn=FUNCTIONS[case.fn] if case.fn else None, out_dtype=case.d_dtype)
        super().__init__([x], poisoned(case.d_shape, case.d_dtype), wanted, None, device)
        self.description = permutation_of(case, Layout.of(self.inputs[0]), Layout.of(self.result))  # type: ignore[arg-type]

    def launched(self, launch: Callable[..., None]) -> None:
        launch(self.inputs[0], None, self.result, 1, 0)


class InPlaceProblem(TrialProblem):
    """The result's place holds the matrices themselves."""

    def __init__(self, case: InPlaceCase, device: torch.device) -> None:
        place = poisoned(case.shape, case.dtype)
        place.tensor.copy_(random_operand(case.shape, case.dtype, SEED, integers=True))
        after = place.tensor.clone()
        square = case.shape[1] == case.shape[2]
        (reference.square_ if square else reference.rectangular_)(after)
        super().__init__([], place, after, None, device)
        self.description = InPlace.of(self.result, (1, 2))

    def launched(self, launch: Callable[..., None]) -> None:
        launch(self.result)


def problem(case: Case | PermuteCase | InPlaceCase, device: torch.device) -> TrialProblem:
    """A case on a device."""
    if isinstance(case, Case):
        return ContractionProblem(case, device)
    return PermutationProblem(case, device) if isinstance(case, PermuteCase) else InPlaceProblem(case, device)


def contraction_of(case: Case, a: Layout, b: Layout, c: Layout | None, d: Layout) -> Contraction:
    """The canonical contraction that a call on a case's tensors makes."""
    algebra = find(case.algebra) if case.algebra != "plus_times" else None
    arithmetic = resolve(a.dtype, b.dtype, case.precision, case.accumulate, algebra.name if algebra else None)
    seen = hook_types((a.dtype, b.dtype), arithmetic)
    a_fn, b_fn, c_fn, epilogue = (
        trace(FUNCTIONS[name], (dtype,), hook=hook) if (name := getattr(case, hook)) else None
        for hook, dtype in zip(HOOKS, seen, strict=True)
    )
    return canonical(
        Contraction(
            modes=class_modes(case.notation, a, b, c, d, case.extents),
            a=a,
            b=b,
            c=c,
            d=d,
            arithmetic=arithmetic,
            a_fn=a_fn,
            b_fn=b_fn,
            c_fn=c_fn,
            epilogue=epilogue,
            algebra=algebra.traced(arithmetic.accumulate) if algebra is not None else None,
            text=str(case.equation),
        )
    )


def permutation_of(case: PermuteCase, x: Layout, d: Layout) -> Permutation:
    notation = parse(case.equation)
    extents = dict(zip(notation.inputs[0], case.shape, strict=True))
    fn = trace(FUNCTIONS[case.fn], (x.dtype,), hook="fn") if case.fn else None
    modes = canonical_modes(notation, x, None, d, extents)
    return Permutation(modes=modes, x=x, c=None, d=d, compute=x.dtype, fn=fn, text=case.equation)


def in_place(room: ModuleType, described: InPlace) -> Callable[..., None]:
    """The function of such a family that transposes matrices in place."""
    return room.square_ if described.square else room.rectangular_


def placed(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy of the tensor on a device, poison around it included."""
    return _seen_in(memory_of(tensor).to(device, copy=True), tensor)


def _seen_in(memory: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Bytes as a tensor with the layout that another has in its own."""
    return memory.view(like.dtype).as_strided(like.shape, like.stride(), like.storage_offset())


def _expected(
    case: Case, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The oracle's D, and the bound of what is not exact."""
    options = case.options()
    compute = partial(reference.contract, case.equation, a, b, c=c)
    if case.algebra == "log" or any(getattr(case, hook) in INEXACT for hook in HOOKS):
        value, bound = expectation(case.equation, a, b, c=c, **options)
        return value, bound
    return compute(**options), None


def _layout(tensor: torch.Tensor | None) -> Layout | None:
    return Layout.of(tensor) if tensor is not None else None


_COMPILERS = ("triton", "numba", "llvmlite")
RUNS = 2  # of each launch, the second on the heels of what the first has left


class Deferred(Exception):
    """A trial could not be run for now, for a reason that is no family's fault."""


def verdict(trial: Trial, backend: str, target: Target) -> Verdict:
    """Run a trial on the target's device. `Deferred` where memory is short or a CUDA graph is being captured.

    Whatever else is raised by planning, compiling or running counts as the family's failure, but only wrong values and
    what compilers say is true of later processes as well: another error may be of this one.
    """
    began = time.perf_counter()
    absent = reason = None
    passing = False
    try:
        with grad_mode(False), _on_the_cpu():
            absent, reason = _tried(trial, backend, target)
    except Exception as error:
        if is_of_memory(error) or "captur" in str(error):  # by another thread
            raise Deferred(first_line(error)) from None
        reason, passing = first_line(error), is_shortage(error) or not _is_compilers(error)
    return Verdict(reason, now(), time.perf_counter() - began, absent, passing)


def _is_compilers(error: BaseException) -> bool:
    """Whether a compiler has said it, or an error that it came of."""
    kinds = [kind for each in causes_of(error) for kind in type(each).__mro__]
    return any(kind.__module__.partition(".")[0] in _COMPILERS for kind in kinds)


def schedules(trial: Trial, description: Description, backend: str, target: Target) -> Choice | str:
    """The schedules that a trial stands for, the best priced first; or why its family has none here."""
    room: Any = import_module(trial.family)
    if (reason := room.supports(description, target)) is not None:
        return str(reason)
    found = [each for each in room.schedules(description, target).schedules if trial.runs(description, each)]
    if not found:
        return "no schedule of this kind is offered"
    priced = (Ranked(each, room.predict(description, each, target), room) for each in found)
    ranked = sorted(priced, key=lambda rank: rank.seconds)
    return Choice(description, backend, target, ranked[0], tuple(ranked))


def _on_the_cpu() -> AbstractContextManager[Any]:
    """Takes back a default device that the caller may have chosen for its own tensors; else costs nothing."""
    return nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu")


def _tried(trial: Trial, backend: str, target: Target) -> tuple[str | None, str | None]:
    """Why a trial cannot be run here, and what was wrong with it."""
    made = problem(trial.case, target.device)
    launch = _launch(trial, made, backend, target)
    if isinstance(launch, str):
        return launch, None
    for _ in range(RUNS):
        made.run(launch)
        if (fault := made.fault()) is not None:
            return None, fault
    return None, None


def _launch(trial: Trial, made: TrialProblem, backend: str, target: Target) -> Callable[..., None] | str:
    """The built launch of a trial; or why there is none."""
    if isinstance(trial.case, InPlaceCase):
        room: ModuleType = import_module(trial.family)
        return partial(_on, target, in_place(room, made.description))
    try:
        found = schedules(trial, made.description, backend, target)
        if isinstance(found, str):
            return found
        return partial(_on, target, found.built()[1])
    except UnsupportedError as error:  # of a step, or of what the device can hold
        return str(error)


def _on(target: Target, launch: Callable[..., None], *arguments: Any) -> None:
    """A launch on the device of the target, whichever is current."""
    if target.kind not in ("cuda", "hip"):
        launch(*arguments)
        return
    with torch.cuda.device(target.device):
        launch(*arguments)
