"""The families of each backend: modules with the doors of `weft.planner.schedule.Family`.

They are imported when they are first asked: those of Triton must not be imported with weft.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from weft.planner.schedule import Description, Family
from weft.spec.permutation import Permutation

FAMILIES = {
    "triton": (
        "weft.gpu.blas.family",
        "weft.gpu.tma.family",
        "weft.gpu.warp_specialized.family",
        "weft.gpu.gett.family",
        "weft.gpu.semiring.family",
        "weft.gpu.simt.family",
        "weft.planner.pre_reduce",
        "weft.gpu.composite.ttgt",
        "weft.gpu.composite.scatter",
        "weft.gpu.composite.logsumexp",
        "weft.gpu.complex.direct",
        "weft.gpu.complex.real_forms",
    ),
    "cpu": ("weft.cpu.family", "weft.planner.pre_reduce"),
}
PERMUTATION_FAMILIES = {
    "triton": ("weft.gpu.permute.family", "weft.gpu.complex.pairs"),
    "cpu": ("weft.cpu.permute",),
}


def family_names(description: Description, backend: str) -> tuple[str, ...]:
    """The modules of the families that may serve what is described."""
    return (PERMUTATION_FAMILIES if isinstance(description, Permutation) else FAMILIES)[backend]


def families(description: Description, backend: str) -> list[Family]:
    """Those modules, imported."""
    found: list[Any] = [import_module(name) for name in family_names(description, backend)]
    return found
