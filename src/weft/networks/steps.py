"""One step of a network: a contraction planned for the layouts of the step's tensors, and its launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from weft.api.lookup import find_plan
from weft.networks.tree import TreeStep
from weft.planner.options import Options
from weft.plans.bound import BoundCall
from weft.plans.checks import checked_scalar
from weft.plans.contraction import Plan
from weft.plans.intermediates import step_options
from weft.plans.promoting import PromotingLaunch
from weft.plans.tiers import Wanted

Terms = tuple[Sequence[int], Sequence[int], Sequence[int]]
StepTensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor]  # A, B, C and D
Numbers = Mapping[str, tuple[int, torch.Tensor]]  # operands of a step's functions, with their places among the values
NONE: Numbers = MappingProxyType({})


@dataclass(frozen=True)
class StepOptions:
    """The options of every step of a network."""

    options: Options = field(default_factory=Options)
    halves: bool = False  # all operands of the network are of float16

    def having(self, **functions: Callable[..., Any] | None) -> StepOptions:
        return replace(self, options=self.options.having(**functions))

    def of(self, a: torch.dtype, b: torch.dtype) -> Options:
        """The options of a step whose operands have these types."""
        return step_options(self.options, a, b, self.halves)


class ContractionCall(NamedTuple):
    """A step that is ready to run: `launch(a, b, c, d, alpha, beta)` on the values of nodes."""

    launch: Callable[..., None]
    left: int
    right: int
    node: int
    one: Any  # alpha, in the accumulator's kind of number
    zero: Any
    aux: tuple[int, ...]  # of operands of functions: their places among the values
    variant: Any  # of the plan: its choice and tier
    plan: Plan

    @property
    def settled(self) -> ContractionCall:
        """The call with the kernels that serve now, which are not exchanged for others."""
        return self._replace(launch=self.launch.now) if isinstance(self.launch, PromotingLaunch) else self

    def run(self, values: Sequence[Any]) -> None:
        """The step on the values of its nodes."""
        if self.aux:
            self.into(values, None, values[self.node], self.zero)
        else:
            self.launch(values[self.left], values[self.right], None, values[self.node], self.one, self.zero)

    def into(self, values: Sequence[Any], c: Any, d: Any, beta: Any) -> None:
        """The step into a place, with `beta` times C."""
        aux = (tuple([values[place] for place in self.aux]),) if self.aux else ()
        self.launch(values[self.left], values[self.right], c, d, self.one, beta, *aux)

    def bound(self, values: Sequence[Any], place: Any = None) -> BoundCall:
        """The step bound to the values of its nodes; `place`: where its result goes, by default the node's value."""
        place = values[self.node] if place is None else place
        arguments = (values[self.left], values[self.right], None, place, self.one, self.zero)
        return BoundCall(self.plan.request.text, self.launch, arguments, place)


def prepared(
    step: TreeStep, orders: Mapping[int, Sequence[int]], tensors: StepTensors, asked: StepOptions,
    operands: Numbers = NONE,
) -> ContractionCall:  # fmt: skip
    """A step planned for the layouts of its tensors; `orders` are of the labels of nodes. Equal steps share a plan."""
    plan, beside = _planned(step, orders, tensors, asked, operands)
    variant = plan.launch(*tensors, beside)
    accumulate = plan.contraction.arithmetic.accumulate
    one, zero = checked_scalar("alpha", 1, accumulate), checked_scalar("beta", 0, accumulate)
    aux = tuple([operands[each.name][0] for each in variant.description.aux])
    launch = variant.launch if tensors[3].numel() else _nothing
    return ContractionCall(launch, step.left, step.right, step.node, one, zero, aux, variant, plan)


def wanted(
    step: TreeStep, orders: Mapping[int, Sequence[int]], tensors: StepTensors, asked: StepOptions,
    operands: Numbers = NONE,
) -> Wanted | None:  # fmt: skip
    """The request that `prepared` would build a plan from; None where that plan is built already."""
    plan, beside = _planned(step, orders, tensors, asked, operands)
    return plan.wanted(*tensors, beside)


def _planned(
    step: TreeStep, orders: Mapping[int, Sequence[int]], tensors: StepTensors, asked: StepOptions, operands: Numbers
) -> tuple[Plan, Mapping[str, torch.Tensor]]:
    """The plan of a step, and the operands of its functions."""
    terms, (a, b, _, d) = (orders[step.left], orders[step.right], orders[step.node]), tensors
    named = {name: ("", tensor) for name, (_, tensor) in operands.items()}
    options = replace(asked.of(a.dtype, b.dtype), out_dtype=d.dtype, operands=named)
    return find_plan(renamed(terms), a, b, options), options.tensors


def renamed(terms: Terms) -> Terms:
    """Labels in the order in which they first stand: equal steps of different labels are one contraction."""
    numbers: dict[int, int] = {}
    for term in terms:
        for label in term:
            numbers.setdefault(label, len(numbers))
    first, second, third = (tuple(numbers[label] for label in term) for term in terms)
    return first, second, third


def as_launched(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor as launches see it: its memory as stored. The plan knows whether it is conjugated."""
    return tensor.conj() if tensor.is_conj() else tensor


def _nothing(*_: Any) -> None:
    """The launch of an empty result: it does nothing."""
