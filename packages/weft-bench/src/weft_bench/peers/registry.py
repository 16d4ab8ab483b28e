"""Who is measured: weft and its peers, each an adapter with the same two doors.

`prepare` looks at one case and one set of tensors and answers with the ways to compute it, or with a sentence that
says why it cannot. A way's `run` computes it on any set of tensors that lie like those. Several ways (cuTENSOR's
algorithms) are all checked and tried; the fastest counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from weft.errors import UnsupportedError, WeftError
from weft.spec import Label
from weft_bench.cases import Case
from weft_bench.records import CONTRACT, INVARIANT, MODEL, SAME

if TYPE_CHECKING:
    from weft.plans.contraction import Plan

Call = Callable[..., torch.Tensor]  # on the tensors of one set, in their order


class Tensors(NamedTuple):
    """The tensors of one call of a contraction; `d` is where the result may be written."""

    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor | None
    d: torch.Tensor


@dataclass(frozen=True)
class Way:
    """One way to compute a case.

    `run` takes the tensors of a set, in a contraction ``run(a, b, c, d)``, and returns the result: `d` itself, or a
    tensor of its own. It is what is checked. `timed`, where given, is what is timed: the same work, with its result in
    memory that the call allocates.
    """

    label: str
    run: Call
    about: Mapping[str, Any] = field(default_factory=dict)  # JSON values worth recording: schedule, workspace
    timed: Call | None = None


@dataclass(frozen=True)
class Prepared:
    """The ways a contender found for one case."""

    ways: Sequence[Way]
    refused: Mapping[str, str] = field(default_factory=dict)  # ways that cannot do it, with the reason
    stored: torch.dtype | None = None  # the sum is rounded to this type before more is done with it; None: it is not
    note: str = ""
    yardstick: Set[str] = frozenset()  # labels: other ways count where their error is not above the largest of these


class Contender(Protocol):
    """One side of a comparison."""

    name: str

    def prepare(self, case: Any, tensors: Any) -> Prepared | str:
        """Ways to compute `case` on tensors that lie as these do, or a sentence that says why there is none."""

    def settings(self, case: Any) -> AbstractContextManager[Any]:
        """The settings to be switched while `case` is prepared, checked and timed."""


class Weft:
    """weft itself, planned once for each case. `tune` and `backend` go to `weft.plan`.

    With `allocates` the timed call makes the memory of its result, as a peer does that takes no ``out``.
    """

    name = "weft"

    def __init__(self, tune: str | None = None, backend: str = "auto", *, allocates: bool = False) -> None:
        self._tune, self._backend, self._allocates = tune, backend, allocates
        self.planned: Plan | None = None  # for the case that was prepared last
        self._schedule: str | None = None  # that is forced

    def prepare(self, case: Case, tensors: Tensors) -> Prepared | str:
        from weft.api.contract import plan

        self.planned = None
        a, b, c, d = tensors
        name = case.c_as
        given = case.with_operand(c) if name and c is not None else case.options()
        options: dict[str, Any] = {**given, "backend": self._backend, "tune": self._tune, "schedule": self._schedule}
        options |= self.more(case)
        alpha, beta = options.pop("alpha"), options.pop("beta")
        try:
            planned = plan(case.equation, a, b, c=None if name else c, out=d, **options)
        except UnsupportedError as error:
            return first_line(error)
        self.planned = planned

        def run(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, d: torch.Tensor | None) -> torch.Tensor:
            result: torch.Tensor = planned(a, b, c=c, alpha=alpha, beta=beta, out=d)
            return result

        def run_with_operand(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = planned(a, b, alpha=alpha, out=d, operands={name: c})
            return result

        schedule = str(planned.schedule) if planned.schedule is not None else None
        about = {"schedule": schedule, "workspace bytes": planned.workspace_bytes, **kernel_facts(planned)}
        if name:
            return Prepared([Way("", run_with_operand, about)])
        allocating = (lambda a, b, c, d: run(a, b, c, None)) if self._allocates else None
        return Prepared([Way("", run, about, allocating)])

    def more(self, case: Case) -> dict[str, Any]:
        """Options of the plan besides the case's own."""
        return {}

    def settings(self, case: Case) -> AbstractContextManager[Any]:
        return nullcontext()


def kernel_facts(planned: Plan) -> dict[str, Any]:
    """The SM resources of a plan's kernels, and their waves, where they are loaded on a GPU; else nothing."""
    if planned._request.target.kind != "cuda":
        return {}
    try:
        found = [kernel.to_dict() for kernel in planned.kernels]
    except UnsupportedError:  # no such SM in the table
        return {}
    return {"kernels": found} if found else {}


class WeftModel(Weft):
    """weft with the plans that its cost model alone chooses, whatever tuning has found."""

    name = MODEL

    def __init__(self) -> None:
        super().__init__(tune="model")


class WeftSame(Weft):
    """weft with functions in the very schedule that it has without them, as figures 2 to 4 of the GETT paper ask."""

    name = SAME

    def prepare(self, case: Case, tensors: Tensors) -> Prepared | str:
        self._schedule = None
        plain = super().prepare(replace(case, a_fn=None, b_fn=None, c_fn=None, epilogue=None), tensors)
        if isinstance(plain, str):
            return plain
        self._schedule = plain.ways[0].about["schedule"]
        return super().prepare(case, tensors)


class WeftInvariant(Weft):
    """weft with the same bits of D whatever the extents of A's own modes."""

    name = INVARIANT

    def prepare(self, case: Case, tensors: Tensors) -> Prepared | str:
        return super().prepare(case, tensors) if invariant_modes(case) else "A has no mode of its own in D"

    def more(self, case: Case) -> dict[str, Any]:
        return {"invariant": invariant_modes(case)}


def invariant_modes(case: Case) -> list[Label]:
    """The modes of A and D that B does not have."""
    (first, second), output = case.notation.inputs, case.notation.output
    return [label for label in first if label in output and label not in second]


def contender(name: str, kind: str = "contraction", *, tune: str | None = None, quick: bool = False) -> Contender:
    """The contender called `name` for a suite's `kind`: "weft" or another of ``PEERS[kind]``.

    `tune` goes to `weft.plan`; `quick` lets cuTENSOR try fewer modes. `WeftError` for another name.
    """
    known = PEERS[kind]
    if name not in known:
        raise WeftError(f"no peer is called '{name}': there are {', '.join(each for each in known if each != 'weft')}")
    module, made = known[name]
    options: dict[str, Any] = {}
    if name == "cutensor":
        options["quick"] = quick
    elif name == "weft" and tune is not None:
        if kind not in ("contraction", "network"):
            raise WeftError(f"tune='{tune}': only plans of contractions and networks are tuned")
        options["tune"] = tune
    found: Contender = getattr(import_module(f"weft_bench.peers.{module}"), made)(**options)
    return found


def default_peers(device: torch.device, kind: str = "contraction") -> tuple[str, ...]:
    """Who stands beside weft when nobody is named."""
    wanted = ("cutensor", "torch") if device.type == "cuda" else ("torch", "ttgt", "numpy", "opt_einsum")
    return tuple(name for name in wanted if name in PEERS[kind])


def first_line(error: BaseException) -> str:
    """An error as one sentence."""
    text = str(error).strip().partition("\n")[0]
    return text if isinstance(error, WeftError) and text else f"{type(error).__name__}: {text}"


#: By the kind of a suite and by name: the module of this package and the class.
PEERS: dict[str, dict[str, tuple[str, str]]] = {
    "contraction": {
        "weft": ("registry", "Weft"),
        "cutensor": ("cutensor", "Cutensor"),
        "torch": ("pytorch", "Einsum"),
        "cublas": ("pytorch", "MatrixProduct"),
        "compile": ("pytorch", "CompiledEinsum"),
        "ttgt": ("pytorch", "Ttgt"),
        "numpy": ("arrays", "NumpyEinsum"),
        "opt_einsum": ("arrays", "OptEinsum"),
        MODEL: ("registry", "WeftModel"),
        SAME: ("registry", "WeftSame"),
        INVARIANT: ("registry", "WeftInvariant"),
    },
    "gradient": {
        "weft": ("gradients", "WeftGradients"),
        "torch": ("gradients", "TorchGradients"),
        "compile": ("gradients", "CompiledGradients"),
    },
    "gated": {
        "weft": ("gated", "WeftGate"),
        "weft-compiled": ("gated", "CompiledWeftGate"),
        "torch": ("gated", "TorchGate"),
        "compile": ("gated", "CompiledGate"),
    },
    "permutation": {
        "weft": ("permutations", "WeftPermute"),
        "cutensor": ("cutensor_permute", "CutensorPermute"),
        "torch": ("permutations", "TorchPermute"),
        "numpy": ("permutations", "NumpyPermute"),
    },
    "call": {
        "weft": ("calls", "PlanCall"),
        CONTRACT: ("calls", "ContractCall"),
        "torch": ("calls", "EinsumCall"),
        "weft-compiled": ("calls", "CompiledContractCall"),
        "compile": ("calls", "CompiledEinsumCall"),
    },
    "small": {
        "weft": ("small", "WeftSmall"),
        "torch": ("small", "TorchLoop"),
        "bmm": ("small", "TorchBatched"),
        "operator": ("small", "MadeOperator"),
    },
    "network": {
        "weft": ("networks", "WeftNetwork"),
        "torch": ("networks", "TorchNetwork"),
        "cutensornet": ("cutensornet", "CutensornetPeer"),
    },
    "cascade": {
        "weft": ("cascades", "WeftCascade"),
        "torch": ("cascades", "TorchCascade"),
        "sdpa": ("cascades", "TorchAttention"),
        "flex": ("cascades", "FlexCascade"),
        "compile": ("cascades", "CompiledCascade"),
        "blocks": ("cascades", "BlocksCascade"),
    },
    "program": {
        "weft": ("programs", "WeftProgram"),
        "torch": ("programs", "TorchProgram"),
        "compile": ("programs", "CompiledProgram"),
        "cupy": ("programs", "CupyProgram"),
    },
    "in place": {
        "weft": ("permutations", "WeftTranspose"),
        "torch": ("permutations", "TorchTranspose"),
    },
}
