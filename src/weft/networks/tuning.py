"""The kernels of a network's steps made ready ahead of its calls: the best by prediction, or by measuring them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from weft.errors import call_context
from weft.networks.program import NetworkProgram
from weft.networks.steps import ContractionCall
from weft.networks.work import work_of
from weft.planner.target import target_of
from weft.planner.validity import outdate
from weft.plans.promoting import PromotingLaunch
from weft.plans.side_by_side import compiled
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
        measured(network, program, operands, report, compilers)
    return report


def measured(
    network: Any, program: NetworkProgram, operands: Sequence[torch.Tensor], report: TuningReport | None = None,
    workers: int | None = None,
) -> NetworkProgram:  # fmt: skip
    """Measure what could serve the steps of a program: the fastest is stored, and taken by the one that is returned."""
    report = TuningReport("network", BUDGET) if report is None else report
    with program.lock:
        work = work_of(program, operands, network.place(), ())
        work.begin()
        work.slice(len(program.slices) - 1)  # all steps are prepared then, the last one as it adds to a sum
    steps: dict[tuple[Any, int | None], ContractionCall] = {}
    times: dict[tuple[Any, int | None], int] = {}
    for step, count in program.prepared_calls():
        if step.variant.choice is not None:  # the reference backend chooses nothing
            place = step.variant.description, step.plan.request.workspace_limit
            steps.setdefault(place, step)
            times[place] = times.get(place, 0) + count
    tune_many([_task(step, times[place]) for place, step in steps.items()], report, workers)
    if report.changed:
        outdate()  # so that steps are planned anew, by what was measured now or earlier
    return network.program(operands[: len(network.plan.folded.given)], measured=False)


def _task(step: ContractionCall, times: int) -> TuningTask:
    request = step.plan.request
    return TuningTask(
        step.variant.description, request.backend, request.target, request.workspace_limit, step.variant.choice, times
    )
