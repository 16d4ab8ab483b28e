"""Equations of gpu4pyscf, quantum chemistry on GPUs, in float64 with the extents of three molecules.

`data/gpu4pyscf.json` has the 1207 distinct equations of its calls, most called first. Their extents are not in the
source: here a letter stands for the same kind of mode in all equations, and a molecule says how long it is. Where a
tensor or all modes together would be too large, all but the smallest modes are cut by halves.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import Any

import torch
from torch import Tensor

import weft
from weft_bench.cases.programs import ProgramCase

MOLECULES = {"small": 100, "medium": 400, "large": 1000}  # atomic orbitals
ATOM = 12  # orbitals of one
GRID = 1 << 14  # points of a block
KEPT = 3  # extents up to this are not cut
LARGEST, MOST = 1 << 26, 1 << 38  # elements of a tensor, and of the space of all modes
#: Three directions, their derivatives and small sets; two spins; atoms. All other letters are orbitals.
DIRECTIONS, SPINS, ATOMS, POINTS, AUXILIARY = "xyzdeftDEF", "sw", "ABC", "gG", "LPQ"
OCCUPIED, VIRTUAL = "ijkl", "abc"  # in equations that have both


@cache
def equations() -> tuple[tuple[int, str], ...]:
    """How many calls have an equation, and the equation."""
    file = resources.files("weft_bench").joinpath("data", "gpu4pyscf.json")
    return tuple((calls, equation) for calls, equation in json.loads(file.read_text())["equations"])


def extents(equation: str, orbitals: int) -> dict[str, int]:
    """The extent of each letter for a molecule of so many orbitals."""
    labels = sorted({*equation} - {*",->"})
    excited = any(label in labels for label in OCCUPIED) and any(label in labels for label in VIRTUAL)
    found = {label: _extent(label, orbitals, excited) for label in labels}
    while _too_large(equation, found):
        found = {label: extent if extent <= KEPT else math.ceil(extent / 2) for label, extent in found.items()}
    return found


def _extent(label: str, orbitals: int, excited: bool) -> int:
    fixed = {DIRECTIONS: 3, SPINS: 2, ATOMS: max(2, orbitals // ATOM), POINTS: GRID, AUXILIARY: 3 * orbitals}
    for letters, extent in fixed.items():
        if label in letters:
            return extent
    if excited and label in OCCUPIED + VIRTUAL:
        return orbitals // 5 if label in OCCUPIED else orbitals - orbitals // 5
    return orbitals


def _too_large(equation: str, found: dict[str, int]) -> bool:
    terms = equation.replace("->", ",").split(",")
    largest = max(math.prod(found[label] for label in term) for term in terms)
    return largest > LARGEST or math.prod(found.values()) > MOST


def pyscf(molecule: str) -> Iterator[ProgramCase]:
    """All equations for one molecule, named by their place in the list and the calls that have them."""
    for place, (calls, equation) in enumerate(equations(), 1):
        yield _case(f"{place:04}-{calls}x", molecule, equation)


def _case(name: str, molecule: str, equation: str) -> ProgramCase:
    tensors = {f"t{at}": modes for at, modes in enumerate(equation.partition("->")[0].split(","))}

    def run(*given: Tensor, **how: Any) -> Tensor:
        found: Tensor = weft.einsum(equation, *given, **how)
        return found

    def plain(*given: Tensor) -> Tensor:
        return torch.einsum(equation, *given).contiguous()

    return ProgramCase(
        name, molecule, equation, run, plain, tensors, extents(equation, MOLECULES[molecule]),
        dict.fromkeys(tensors, "randn"), dtype=torch.float64, sums=True,
    )  # fmt: skip
