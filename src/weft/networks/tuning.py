"""The kernels of a network's steps made ready ahead of its calls: the best by prediction, or by measuring them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from weft.errors import call_context
from weft.networks.program import NetworkProgram
from weft.networks.steps import ContractionCall
from weft.networks.work import work_of
from weft.planner.planner import Choice
from weft.planner.target import target_of
from weft.plans.promoting import PromotingLaunch
from weft.plans.side_by_side import compiled
from weft.plans.tiers import ServiceRequest, tuned_service
from weft.tune.many import BUDGET, TuningReport, TuningTask, read_effort, tune_many


def warm(network: Any, tensors: Sequence[Any]) -> None:
    """Contract once, and have the best kernel for every step afterwards; those of a GPU are compiled side by side."""
    network(*tensors)
    program = network.program(network.operands(tensors)[: len(tensors)])
    found = [call.launch for call in program.calls.values() if isinstance(call.launch, PromotingLaunch)]
    launches = list(dict.fromkeys(found))
    if network.plan.settings.device.type == "cuda":
        compiled(target_of("triton", network.plan.settings.device), [launch.wanted for launch in launches])
    for launch in launches:
        launch.warm()
    if program.replay is not None:
        program.replay.forget()


def tune(network: Any, tensors: Sequence[Any], budget: Any, workers: Any) -> TuningReport:
    """`Network.tune`."""
    with call_context(lambda: "network.tune"):
        seconds, compilers = read_effort(budget, workers)
    report = TuningReport("network", seconds)
    operands = [operand.detach() for operand in network.operands(tensors)]
    if not network.plan.tree.steps:
        return report
    read = operands[: len(tensors)]
    program = network.program(read, measured=False)
    with call_context(lambda: "network.tune"):
        _tuned(network, program, operands, report, compilers)
    network.retain(read, program)
    return report


def first_tuned(network: Any, program: NetworkProgram, read: Sequence[torch.Tensor]) -> None:
    """Tune a program that was just made, for a network with ``tune="measure"``."""
    operands = [operand.detach() for operand in network.operands(read)]
    _tuned(network, program, operands, TuningReport("network", BUDGET), None)
    network.retain(read, program)


def _tuned(
    network: Any, program: NetworkProgram, operands: Sequence[torch.Tensor], report: TuningReport, workers: int | None
) -> None:
    """Measure what could serve the steps of a program, and let the fastest serve."""
    with program.lock:
        work = work_of(program, operands, network.place(), ())
        work.begin()
        work.slice(len(program.slices) - 1)  # all steps are prepared then, the last one as it adds to a sum
    calls: dict[tuple[Any, int | None], list[ContractionCall]] = {}
    times: dict[tuple[Any, int | None], int] = {}
    for step, count in program.prepared_calls():
        if step.variant.choice is not None:  # the reference backend chooses nothing
            place = step.variant.description, step.plan.request.workspace_limit
            calls.setdefault(place, []).append(step)
            times[place] = times.get(place, 0) + count
    tasks = {place: _task(steps[0], times[place]) for place, steps in calls.items()}
    try:
        tune_many(list(tasks.values()), report, workers)
    finally:
        launches: dict[int, Callable[..., None]] = {}
        for place, task in tasks.items():
            if (choice := report.found.get(task)) is not None:
                for step in calls[place]:
                    _take(step, choice, launches)
        program.exchange(launches)


def _task(step: ContractionCall, times: int) -> TuningTask:
    request = step.plan.request
    return TuningTask(
        step.variant.description, request.backend, request.target, request.workspace_limit, step.variant.choice, times
    )


def _take(step: ContractionCall, choice: Choice, launches: dict[int, Callable[..., None]]) -> None:
    """Let the fastest choice serve a step; launches that do not change by themselves go into `launches`."""
    if step.variant.choice.best.schedule == choice.best.schedule or id(step.launch) in launches:
        return
    if isinstance(step.launch, PromotingLaunch):
        step.launch.take(choice)
        return
    request, variant = step.plan.request, step.variant
    asked = ServiceRequest(
        variant.description, request.backend, request.target, request.workspace_limit, None, request.schedule
    )
    by = tuned_service(asked, choice)
    variant.served(by)
    variant.launch = launches[id(step.launch)] = by.launch
