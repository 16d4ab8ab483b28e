"""Cases as tensors on a device, their descriptions, and what is wrong with a result.

Tensors are made, and results judged, on the CPU: little else runs on a device than the kernel that is tested. Every
tensor is amid bytes that spell NaN, so that an element left unwritten shows, and so does what is read or written past
the ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import Any

import torch

from weft.algebra import find
from weft.fn import trace
from weft.oracle import permuting, reference
from weft.oracle.bounds import expectation
from weft.oracle.judgement import error_over_bound
from weft.oracle.problem import memory_of
from weft.planner.request import HOOKS
from weft.selftest.case import FUNCTIONS, Case, PermuteCase, operands
from weft.selftest.cases import INEXACT, InPlaceCase
from weft.spec import Contraction, Layout, canonical, parse
from weft.spec.contraction import class_modes
from weft.spec.dtypes import resolve, value_type
from weft.spec.permutation import Permutation, canonical_modes
from weft.spec.transpose import InPlace
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
        wanted = permuting.permute(case.equation, x, fn=FUNCTIONS[case.fn] if case.fn else None, out_dtype=case.d_dtype)
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
        (permuting.square_ if square else permuting.rectangular_)(after)
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
    product, total = arithmetic.product, arithmetic.accumulate
    seen = (value_type(a.dtype, product), value_type(b.dtype, product), total, total)
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
            algebra=algebra.traced(total) if algebra is not None else None,
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
