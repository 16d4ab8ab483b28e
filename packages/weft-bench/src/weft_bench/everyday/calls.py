"""How a case of the everyday set is called: by weft as a user calls it, by weft's plans, and by torch.

Every call takes all tensors of the case: operands first, those of the fused function last; of a group a, b of the first
pair, then of the second. What weft imports when it is first called is not imported here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import weft
from weft.base.kept import constant
from weft.errors import UnsupportedError
from weft_bench.cases.everyday import EverydayCase

Call = Callable[..., Any]
Tensors = Sequence[torch.Tensor]


def tensors_of(case: EverydayCase, device: torch.device | str, seed: int = 0) -> list[torch.Tensor]:
    """Normal random values, laid out as the case says."""
    shapes = case.shapes()
    layouts = [*case.layouts, *["contiguous"] * len(shapes)]
    return [
        weft.testing.random_operand(shape, case.dtype, 1000 * seed + at, layout=layout, device=device)
        for at, (shape, layout) in enumerate(zip(shapes, layouts, strict=False))
    ]


def torch_call(case: EverydayCase) -> Call:
    """torch's plain way; its result is contiguous, as weft's is."""
    if case.plain is not None:
        return case.plain
    if case.steps:
        return lambda *tensors: _in_steps(case, torch.einsum, tensors)
    alpha, function = case.options.get("alpha", 1.0), case.fused.epilogue if case.fused else None

    def call(*tensors: torch.Tensor) -> torch.Tensor:
        value = torch.einsum(case.equation, *tensors[: case.count])
        value = value * alpha if alpha != 1 else value
        return (function(value, *tensors[case.count :]) if function else value).contiguous()

    return call


def weft_call(case: EverydayCase, **how: Any) -> Call:
    """weft without a plan: `contract`, `permute`, `einsum` or `grouped`, with the keywords `how` besides."""
    if case.task == "group":
        return lambda *tensors: weft.grouped(case.equation, _pairs(tensors), **how)
    if case.task == "steps":
        return lambda *tensors: _in_steps(case, weft.contract, tensors, **how)
    if case.task == "move":
        function = case.fused.epilogue if case.fused else None
        return lambda x: weft.permute(x, case.equation, fn=function, **how)
    if case.task == "einsum":
        return lambda *tensors: weft.einsum(case.equation, *tensors, **how)
    options = {**_options(case), **how}
    named = case.fused.operands if case.fused else {}
    if not named:
        return lambda a, b: weft.contract(case.equation, a, b, **options)

    def call(a: torch.Tensor, b: torch.Tensor, *others: torch.Tensor) -> Any:
        operands = {name: (modes, x) for (name, modes), x in zip(named.items(), others, strict=True)}
        return weft.contract(case.equation, a, b, operands=operands, **options)

    return call


@dataclass(frozen=True)
class Planned:
    """A case by plans of one kind: the call, and the plans in the order in which it runs them.

    `checked` is the same call with ``validate=True``, where plans of that kind have it.
    """

    call: Call
    plans: tuple[Any, ...]
    checked: Call | None = None

    @property
    def predicted(self) -> float | None:
        """Seconds of one call, as the cost model has it for what serves now; None where it says nothing."""
        found = [_predicted(plan) for plan in self.plans]
        return None if any(each is None for each in found) else sum(each for each in found if each is not None)

    @property
    def schedule(self) -> str:
        """The schedules that serve now."""
        return "; ".join(str(getattr(plan, "schedule", "") or "") for plan in self.plans).strip("; ")

    @property
    def tier(self) -> str:
        """The tiers of what serves now; empty for networks and groups."""
        single = [plan._first().tier for plan in self.plans if isinstance(plan, weft.Plan | weft.PermutePlan)]
        return ", ".join(dict.fromkeys(tier.name for tier in single if tier is not None))


def planned(case: EverydayCase, tensors: Tensors, specialize: str, **how: Any) -> Planned:
    """The case by plans, with the keywords `how` besides. `UnsupportedError` where there is none of that kind."""
    if case.task == "group":
        if specialize != "now":
            raise UnsupportedError("groups have one kind of plan")
        group = weft.plan_grouped(case.equation, _pairs(tensors), **how)
        return Planned(lambda *given: group(_pairs(given)), (group,))
    how = {"specialize": specialize, **how}
    if case.task == "move":
        function = case.fused.epilogue if case.fused else None
        moving = weft.plan_permute(tensors[0], case.equation, fn=function, **how)
        return Planned(moving, (moving,))
    if case.task == "steps":
        return _planned_steps(case, tensors, how)
    if case.count > 2:
        network = weft.network(case.equation, *tensors, **how)
        return Planned(network, (network,))
    if case.count == 1:
        one = constant(1, tensors[0].dtype, tensors[0].device)  # what `weft.einsum` multiplies by
        term, output = case.equation.split("->")
        alone = weft.plan(f"{term},->{output}", tensors[0], one, **how)
        return Planned(lambda x: alone(x, one), (alone,), lambda x: alone(x, one, validate=True))
    return _planned_pair(case, tensors, how)


def _planned_pair(case: EverydayCase, tensors: Tensors, how: dict[str, Any]) -> Planned:
    options = {**_options(case), **how}
    alpha = options.pop("alpha", 1.0)
    named = case.fused.operands if case.fused else {}
    if named:
        options["operands"] = {
            name: (modes, x) for (name, modes), x in zip(named.items(), tensors[case.count :], strict=True)
        }
    plan = weft.plan(case.equation, *tensors[: case.count], **options)

    def calls(**said: Any) -> Call:
        said |= {"alpha": alpha} if alpha != 1 else {}
        if not named:
            return lambda a, b: plan(a, b, **said)
        return lambda a, b, *others: plan(a, b, operands=dict(zip(named, others, strict=True)), **said)

    return Planned(calls(), (plan,), calls(validate=True))


def _planned_steps(case: EverydayCase, tensors: Tensors, how: dict[str, Any]) -> Planned:
    plans: list[Any] = []

    def remembered(step: str, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        plans.append(weft.plan(step, a, b, **how))
        return torch.einsum(step, a, b).contiguous()

    _in_steps(case, remembered, tensors)

    def calls(**said: Any) -> Call:
        def call(*given: torch.Tensor) -> Any:
            value = given[0]
            for plan, operand in zip(plans, given[1:], strict=True):
                value = plan(value, operand, **said)
            return value

        return call

    return Planned(calls(), tuple(plans), calls(validate=True))


def _predicted(plan: Any) -> float | None:
    if isinstance(plan, weft.Network):
        return float(plan.report()["seconds"])
    return plan.report().predicted_seconds if isinstance(plan, weft.Plan | weft.PermutePlan) else None


def _options(case: EverydayCase) -> dict[str, Any]:
    found = dict(case.options)
    if case.fused is not None:
        found["epilogue"] = case.fused.epilogue
        if case.fused.indices:
            found["indices"] = dict(case.fused.indices)
    return found


def _in_steps(case: EverydayCase, contract: Call, tensors: Tensors, **how: Any) -> Any:
    value: Any = tensors[0]
    for step, operand in zip(case.steps, tensors[1:], strict=True):
        value = contract(step, value, operand, **how)
    return value


def _pairs(tensors: Tensors) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return list(zip(tensors[::2], tensors[1::2], strict=True))
