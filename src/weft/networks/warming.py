"""The kernels of a network's steps made ready ahead of its calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from weft.networks.program import NetworkProgram
from weft.planner.target import target_of
from weft.plans.promoting import PromotingLaunch
from weft.plans.side_by_side import compiled


def warm(network: Any, tensors: Sequence[Any]) -> None:
    """Contract once, and have the best kernel for every step afterwards; those of a GPU are compiled side by side."""
    network(*tensors)
    program = network.program(network.operands(tensors)[: len(tensors)])
    launches = list(dict.fromkeys(_launches(program)))
    if network.settings.device.type == "cuda":
        compiled(target_of("triton", network.settings.device), [launch.wanted for launch in launches])
    for launch in launches:
        launch.warm()
    if program.replay is not None:
        program.replay.forget()


def _launches(program: NetworkProgram) -> Iterator[PromotingLaunch]:
    """Launches of steps that may change to better kernels."""
    for call in program.calls.values():
        if isinstance(call.launch, PromotingLaunch):
            yield call.launch
