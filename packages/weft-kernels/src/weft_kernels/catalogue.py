"""Which kernels the pack has: the shape-generic ones that ordinary calls take, and those that their self-test runs."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from itertools import chain
from typing import Any, NamedTuple

import torch

from weft.api import warm
from weft.api.contract import plan
from weft.api.describe import TARGETS
from weft.gpu.common import cubins
from weft.gpu.common.launch import KernelLaunch, collected
from weft.planner.planner import Choice
from weft.planner.registry import AT_HAND
from weft.planner.schedule import Description, Ranked, Target
from weft.planner.target import standing_for
from weft.plans.handful import shapes_of
from weft.selftest.cases import trials_of
from weft.selftest.gate import parts
from weft.spec import Contraction

# GPUs that kernels are built for, by compute capability. Another one of a capability takes what fits of them.
DEVICES = {capability: TARGETS[f"sm_{capability}"] for capability in (80, 86, 89, 90, 100)}

# Types of operands and of D, where it has another, and the precision of products, where it is not the usual.
_TYPES: tuple[tuple[torch.dtype, torch.dtype | None, str | None], ...] = (
    (torch.float32, None, None), (torch.float16, None, None), (torch.bfloat16, None, None), (torch.float64, None, None),
    (torch.float32, None, "tf32"), (torch.float16, torch.float32, None), (torch.bfloat16, torch.float32, None),
    (torch.int8, torch.int32, None), (torch.int32, None, None), (torch.int64, None, None),
)  # fmt: skip
_MOVED = (torch.uint8, torch.float16, torch.float32, torch.float64, torch.complex128)  # of each size of elements
MOVES = """
ab->ba a=40,b=40
ab->ba a=2048,b=2048
abc->bac a=12,b=12,c=12
abc->bac a=512,b=512,c=16
abc->bac a=128,b=128,c=128
abc->cba a=65,b=129,c=255
abcd->dbca a=7,b=7,c=7,d=7
abcd->dbca a=48,b=48,c=48,d=48
"""


class Task(NamedTuple):
    """A schedule to be compiled, and its kernels by their keys."""

    description: Description
    rank: Ranked
    kernels: dict[str, KernelLaunch]


def tasks(target: Target, sampled: bool = True) -> list[Task]:
    """Schedules whose kernels are all that is wanted, each kernel once. `sampled`: those of random shapes, too."""
    known: set[str] = set()
    found = []
    for description, rank in chain(warm.tasks(_described(sampled), target), _tested(target)):
        kernels = kernels_of(description, rank, target)
        if not known.issuperset(kernels):
            known.update(kernels)
            found.append(Task(description, rank, kernels))
    return found


def kernels_of(description: Description, rank: Ranked, target: Target) -> dict[str, KernelLaunch]:
    """The kernels of a schedule that weft can load without Triton, by their keys."""
    with collected() as made:
        rank.build(description, target)
    return {key: launch for launch in made if (key := cubins.key_of(launch)) is not None}


def _described(sampled: bool) -> Iterator[Description]:
    """Contractions and permutations that are planned to find the kernels."""
    for types in _TYPES:
        yield from _handful(*types)
    yield from warm.described(warm.read_equations(MOVES, _MOVED), warm.DTYPES if sampled else ())


def _handful(dtype: torch.dtype, out: torch.dtype | None, precision: str | None) -> Iterator[Contraction]:
    a, b = (torch.empty(4, 4, dtype=dtype, device="meta") for _ in range(2))
    like = plan("mk,kn->mn", a, b, out_dtype=out, precision=precision, backend="reference").contraction
    return shapes_of(like)


def _tested(target: Target) -> Iterator[tuple[Description, Ranked]]:
    """Schedules that the self-test of these families runs."""
    problems, runs = import_module("weft.selftest.problems"), import_module("weft.selftest.trials")
    for family in dict.fromkeys(name for names in AT_HAND["triton"].values() for name in names):
        for trial in trials_of(family, "triton"):
            with standing_for(target):
                description = problems.problem(trial.case, torch.device("cpu")).description
                found: Any = runs.schedules(trial, description, "triton", target)
            for name, described, schedule in parts(found) if isinstance(found, Choice) else ():
                step = import_module(name)
                if hasattr(step, "structures"):  # not the vendor's library, nor what puts steps together
                    yield described, Ranked(schedule, 0.0, step)
