"""Networks as the runner sees them: the operands of one slice, what is right, and what is written down of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from weft.machine.ceilings import Ceilings
from weft.networks.public import network
from weft.networks.report import growth
from weft_bench.cases.networks import NetworkCase
from weft_bench.checking import WrongResult
from weft_bench.records import CaseRecord

if TYPE_CHECKING:
    from weft_bench.entry import Entry


# Of a result: some hundred steps, each of which loses some eps of its sums.
LOSS = {"ieee": 1e-3, "ieee_bound": 1e-3, "tf32": 5e-2}


class NetworkTensors(tuple[torch.Tensor, ...]):
    """The operands of one call, as many as the network has."""

    __slots__ = ()

    @classmethod
    def _make(cls, tensors: Iterable[torch.Tensor]) -> NetworkTensors:
        return cls(tensors)


@dataclass(frozen=True)
class NetworkProblem:
    """One slice of a network. Ways are called as run(*operands)."""

    case: NetworkCase

    @property
    def memory(self) -> int:
        return 8 * self.case.largest

    def inputs(self, device: torch.device, seed: int = 0) -> NetworkTensors:
        return NetworkTensors(self.case.operands(device=device, seed=seed))

    def check(self, tensors: NetworkTensors) -> NetworkCheck:
        return NetworkCheck(self.case, tensors)

    def record(self, entry: Entry, tensors: NetworkTensors, ceilings: Ceilings | None) -> CaseRecord:
        case = self.case
        return CaseRecord(
            name=case.name,
            group=entry.group,
            base=entry.base,
            equation=case.equation,
            extents=[],
            dtypes=(str(case.dtype).removeprefix("torch."),),
            precision=case.precision or "",
            functions={},
            layouts=(),
            scaled=entry.scaled,
            modes={},
            work={"flops": 2 * case.work, "function_flops": 0, "bytes": case.traffic},
            floor={},
        )


class NetworkCheck:
    """Holds results against the same path in float64: within the bound of `weft.networks.report`, and, as that is wide
    for a tree of many steps, within `LOSS` of what they come to, in root mean square."""

    def __init__(self, case: NetworkCase, tensors: NetworkTensors) -> None:
        self._tensors, self._name = tensors, case.name
        planned = planned_network(case, tensors)
        contract = float64_reference(case)
        self._expected = contract([tensor.double() for tensor in tensors])
        relative, low = growth(planned.plan)
        self._bound = relative * contract([tensor.double().abs() for tensor in tensors]) + low
        self._loss = LOSS[case.precision or "ieee"] * float((self._expected**2).mean().sqrt())

    def error(self, run: Callable[..., torch.Tensor], stored: torch.dtype | None) -> float:
        away = (run(*self._tensors).double() - self._expected).abs()
        worst = max(float((away / self._bound).max()), float((away**2).mean().sqrt()) / self._loss)
        if not worst <= 1:
            raise WrongResult(worst, f"{self._name} of {len(self._tensors)} operands")
        return worst


def planned_network(case: NetworkCase, tensors: Iterable[torch.Tensor], **keywords: Any) -> Any:
    """`weft.network` along the case's path."""
    if case.precision is not None:
        keywords["precision"] = case.precision
    return network(case.terms, *tensors, output=case.output, optimize=ssa_tree(case), **keywords)


def ssa_tree(case: NetworkCase) -> Any:
    """The case's path as a tree of cotengra, whose labels are symbols."""
    import cotengra
    from opt_einsum import get_symbol

    inputs = ["".join(map(get_symbol, term)) for term in case.terms]
    sizes = {get_symbol(label): extent for label, extent in enumerate(case.extents)}
    output = "".join(map(get_symbol, case.output))
    return cotengra.ContractionTree.from_path(inputs, output, sizes, ssa_path=case.path)


def float64_reference(case: NetworkCase) -> Callable[[list[torch.Tensor]], torch.Tensor]:
    """The case by torch through cotengra."""
    tree = ssa_tree(case)

    def contract(operands: list[torch.Tensor]) -> torch.Tensor:
        found: torch.Tensor = tree.contract(operands)
        return found

    return contract
