"""A case as a runner sees it: the tensors of one call, whether a result is right, what to write down of it.

    ContractionProblem    a `weft_bench.cases.Case`: ways are called as run(a, b, c, d); also of kind "call"
    GatedProblem          one product of a layer of two, forward and backward: run(x, gate, up, g)
    GradientProblem       the same, forward and backward: run(a, b, c, g), g the gradient of D
    PermutationProblem    a `PermuteCase`:     run(x, d)
    TransposeProblem      the same, in place:  run(x)
    SmallProblem          a `SmallCase`:       run(a, b, c, x, d); a task has some of these
    NetworkProblem        a `NetworkCase`:     run(*operands), see `weft_bench.networks`
    CascadeProblem        a `CascadeCase`:     run(*tensors), see `weft_bench.cascades`
    ProgramProblem        a `ProgramCase`:     run(*tensors), see `weft_bench.programs`

`PROBLEMS` names the one for each kind of suite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from weft.api.contract import plan
from weft.errors import WeftError
from weft.machine.ceilings import Ceilings
from weft.machine.counts import Work, contraction_work, permutation_work
from weft.machine.roofline import Floor, contraction_floor, work_floor
from weft.selftest.case import PermuteCase
from weft.spec import Layout
from weft.testing import poisoned, random_operand
from weft_bench.cascades import CascadeProblem
from weft_bench.cases import FUNCTIONS, Case, operands
from weft_bench.checking import ContractionCheck, PermutationCheck, TransposeCheck
from weft_bench.gated_check import GatedCheck
from weft_bench.gradient_check import GradientCheck
from weft_bench.networks import NetworkProblem
from weft_bench.peers.gated import GatedTensors
from weft_bench.peers.registry import Tensors
from weft_bench.programs import ProgramProblem
from weft_bench.records import CaseRecord
from weft_bench.small import SmallProblem

if TYPE_CHECKING:
    from weft_bench.entry import Entry

_CONTRACTION_BYTES = 24  # for each element of A, B and D: three input sets, random numbers and guards as they are made
_MOVED_COPIES = 6  # of a tensor that is moved: input sets, guards, the expected result


class PermutationTensors(NamedTuple):
    """The tensors of one call of a permutation."""

    x: torch.Tensor
    d: torch.Tensor


class TransposeTensors(NamedTuple):
    """The tensors of one call of a transposition in place."""

    x: torch.Tensor


class Check(Protocol):
    """Whether a way is right on one set of tensors, which the check keeps."""

    def error(self, run: Callable[..., torch.Tensor], stored: torch.dtype | None) -> float:
        """The largest error of `run` over its bound; `AssertionError` where that is over 1.

        `stored` is the type in which the contender holds sums before the epilogue, where it does.
        """


class Problem(Protocol):
    """A case as the runner sees it."""

    @property
    def memory(self) -> int:
        """Bytes that inputs and their check take, about."""

    def inputs(self, device: torch.device, seed: int = 0) -> Any:
        """One set of tensors, a named tuple: the arguments of a way. `seed` chooses their values."""

    def check(self, tensors: Any) -> Check:
        """How results on `tensors` are judged; they belong to the check from then on."""

    def record(self, entry: Entry, tensors: Any, ceilings: Ceilings | None) -> CaseRecord:
        """All that is known of the case before anybody runs it."""


@dataclass(frozen=True)
class ContractionProblem:
    """A contraction."""

    case: Case

    @property
    def memory(self) -> int:
        return _CONTRACTION_BYTES * sum(math.prod(shape) for shape in (*self.case.shapes, self.case.d_shape))

    def inputs(self, device: torch.device, seed: int = 0) -> Tensors:
        case = self.case
        given = operands(case, device=device, seed=seed)
        place = poisoned(case.d_shape, case.dtypes[2], layout=case.layouts[3], device=device)
        return Tensors(given.a, given.b, given.c, place.tensor)

    def check(self, tensors: Tensors) -> Check:
        return ContractionCheck(self.case, tensors)

    def record(self, entry: Entry, tensors: Tensors, ceilings: Ceilings | None) -> CaseRecord:
        case = self.case
        modes, work, floor = _contraction_counts(case, tensors, ceilings)
        hooks = ("a_fn", "b_fn", "c_fn", "epilogue")
        functions = {hook: getattr(case, hook) for hook in hooks if getattr(case, hook)}
        if case.algebra != "plus_times":
            functions["algebra"] = case.algebra
        return CaseRecord(
            name=case.name,
            group=entry.group,
            base=entry.base,
            equation=str(case.notation),
            extents=[(str(label), extent) for label, extent in case.extents.items()],
            dtypes=tuple(_short(dtype) for dtype in case.dtypes),
            precision=_short(case.precision) if case.precision is not None else "",
            functions=functions,
            layouts=case.layouts,
            scaled=entry.scaled,
            modes=modes,
            work=work,
            floor=floor,
        )


@dataclass(frozen=True)
class GradientProblem(ContractionProblem):
    """The forward and the backward pass of a contraction; work and floor are those of its three contractions."""

    def inputs(self, device: torch.device, seed: int = 0) -> Tensors:
        case = self.case
        given = operands(case, device=device, seed=seed)
        return Tensors(*given, random_operand(case.d_shape, case.dtypes[2], 3 * seed + 99, device=device))

    def check(self, tensors: Tensors) -> Check:
        return GradientCheck(self.case, tensors)

    def record(self, entry: Entry, tensors: Tensors, ceilings: Ceilings | None) -> CaseRecord:
        found = super().record(entry, tensors, None)
        found.work = {name: 3 * count for name, count in found.work.items()}
        return found


@dataclass(frozen=True)
class GatedProblem(GradientProblem):
    """``silu(x @ gate.T) * (x @ up.T)``, forward and backward: run(x, gate, up, g). Weights are as in a layer."""

    def inputs(self, device: torch.device, seed: int = 0) -> GatedTensors:  # type: ignore[override]
        x_shape, w_shape = self.case.shapes
        scale = w_shape[-1] ** -0.5
        shapes = (x_shape, w_shape, w_shape, self.case.d_shape)
        x, gate, up, g = (
            random_operand(shape, self.case.dtypes[0], 4 * seed + at, device=device) for at, shape in enumerate(shapes)
        )
        return GatedTensors(x, gate * scale, up * scale, g)

    def check(self, tensors: GatedTensors) -> GatedCheck:  # type: ignore[override]
        return GatedCheck(tensors)

    def record(self, entry: Entry, tensors: GatedTensors, ceilings: Ceilings | None) -> CaseRecord:  # type: ignore[override]
        """Work is that of two layers."""
        x, _, up, g = tensors
        found = super().record(entry, Tensors(x, up, None, g), None)
        found.work = {name: 2 * count for name, count in found.work.items()}
        return found


@dataclass(frozen=True)
class PermutationProblem:
    """A permutation out of place."""

    case: PermuteCase

    @property
    def memory(self) -> int:
        return _MOVED_COPIES * self.case.bytes

    def inputs(self, device: torch.device, seed: int = 0) -> PermutationTensors:
        place = poisoned(self.case.d_shape, self.case.d_dtype, device=device)
        return PermutationTensors(self.case.operand(device=device, seed=seed), place.tensor)

    def check(self, tensors: PermutationTensors) -> Check:
        case = self.case
        function = FUNCTIONS[case.fn] if case.fn else None
        value = function(tensors.x) if function else tensors.x
        return PermutationCheck(tensors, value.to(case.d_dtype), case.dims)

    def record(self, entry: Entry, tensors: PermutationTensors, ceilings: Ceilings | None) -> CaseRecord:
        work = permutation_work(Layout.of(tensors.x), Layout.of(tensors.d))
        return _moving_record(self.case, entry, work, ceilings, tensors.x.device)


@dataclass(frozen=True)
class TransposeProblem:
    """A transposition in place. Every call reads and writes the whole matrix once, as the count has it."""

    case: PermuteCase

    @property
    def memory(self) -> int:
        return _MOVED_COPIES * self.case.bytes

    def inputs(self, device: torch.device, seed: int = 0) -> TransposeTensors:
        return TransposeTensors(self.case.operand(device=device, seed=seed))

    def check(self, tensors: TransposeTensors) -> Check:
        return TransposeCheck(tensors.x)

    def record(self, entry: Entry, tensors: TransposeTensors, ceilings: Ceilings | None) -> CaseRecord:
        half = self.case.bytes // 2
        work = Work(flops=0, function_flops=0, read_a=half, read_b=0, read_c=0, write_d=half)
        return _moving_record(self.case, entry, work, ceilings, tensors.x.device)


#: By the kind of a suite.
PROBLEMS: Mapping[str, Callable[[Any], Problem]] = {
    "contraction": ContractionProblem,
    "call": ContractionProblem,
    "gradient": GradientProblem,
    "gated": GatedProblem,
    "permutation": PermutationProblem,
    "in place": TransposeProblem,
    "small": SmallProblem,
    "network": NetworkProblem,
    "cascade": CascadeProblem,
    "program": ProgramProblem,
}


def copied_set(tensors: Any) -> Any:
    """A set like `tensors` at other addresses: the same values, laid out the same, with the same memory around."""
    found = [x if x is None else _elsewhere(x) for x in tensors]
    return tensors._make(found) if hasattr(tensors, "_make") else tuple(found)


def _elsewhere(x: torch.Tensor) -> torch.Tensor:
    plain = x.conj() if x.is_conj() else x  # without the bit, which `set_` would drop
    memory = plain.untyped_storage().clone()
    found = torch.empty(0, dtype=x.dtype, device=x.device)
    found.set_(memory, plain.storage_offset(), plain.shape, plain.stride())
    return found.conj() if x.is_conj() else found


def _moving_record(
    case: PermuteCase, entry: Entry, work: Work, ceilings: Ceilings | None, device: torch.device
) -> CaseRecord:
    """With ceilings the floor also says what the bytes would take at the rate of a copy ("copy", seconds)."""
    floor: dict[str, Any] = {}
    if ceilings is not None:
        floor = _floor(work_floor(work, ceilings, in_graph=device.type == "cuda"))
        floor["copy"] = work.traffic / ceilings.copy
    return CaseRecord(
        name=case.name,
        group=entry.group,
        base=entry.base,
        equation=case.equation,
        extents=list(zip(case.equation.partition("->")[0], case.shape, strict=True)),
        dtypes=(_short(case.dtype), _short(case.d_dtype)),
        precision="",
        functions={"fn": case.fn} if case.fn else {},
        layouts=("contiguous", "contiguous"),
        scaled=entry.scaled,
        modes={},
        work={"flops": 0, "function_flops": 0, "bytes": work.traffic},
        floor=floor,
    )


def _contraction_counts(
    case: Case, tensors: Tensors, ceilings: Ceilings | None
) -> tuple[dict[str, int], dict[str, int], dict[str, Any]]:
    """Products of extents, flops and bytes, and the floor; empty where weft cannot read the case."""
    options = case.options()
    del options["alpha"]
    beta = options.pop("beta")
    a, b, c, d = tensors
    try:
        contraction = plan(case.equation, a, b, c=c, out=d, backend="reference", **options).contraction
    except WeftError:
        return {}, {}, {}
    work = contraction_work(contraction, beta=beta)
    modes = {"m": contraction.m, "n": contraction.n, "k": contraction.k, "batch": contraction.batch}
    counted = {"flops": work.flops, "function_flops": work.function_flops, "bytes": work.traffic}
    if ceilings is None:
        return modes, counted, {}
    return modes, counted, _floor(contraction_floor(contraction, ceilings, beta=beta, in_graph=a.device.type == "cuda"))


def _floor(floor: Floor) -> dict[str, Any]:
    causes = {name: seconds for name, seconds in asdict(floor).items() if math.isfinite(seconds)}
    return {"seconds": floor.seconds, "binds": floor.binds, **causes}


def _short(value: torch.dtype | str) -> str:
    return str(value).removeprefix("torch.")
