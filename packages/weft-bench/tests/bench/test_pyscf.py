"""The suite `pyscf`: equations of gpu4pyscf, sized for molecules, and right."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch

from weft_bench.cases.pyscf import GRID, LARGEST, MOLECULES, MOST, equations, extents, pyscf
from weft_bench.peers.programs import CupyProgram
from weft_bench.programs import ProgramProblem
from weft_bench.suites import entries

CPU = torch.device("cpu")
TRIED = tuple(range(0, 1207, 25))


def test_all_equations_are_there_most_called_first() -> None:
    calls = [calls for calls, _ in equations()]
    assert len({equation for _, equation in equations()}) == len(calls) == 1207
    assert sum(calls) == 3567
    assert calls == sorted(calls, reverse=True)


def test_letters_stand_for_the_same_modes() -> None:
    assert extents("iajb,jb->ia", 100) == {"i": 20, "j": 20, "a": 80, "b": 80}  # occupied and virtual
    assert extents("ij,Adj->Adi", 100) == {"i": 100, "j": 100, "A": 8, "d": 3}
    assert extents("xpg,pg->xg", 100) == {"x": 3, "p": 100, "g": GRID}


@pytest.mark.parametrize("molecule", MOLECULES)
def test_no_case_is_too_large(molecule: str) -> None:
    for case in pyscf(molecule):
        assert max(torch.Size(shape).numel() for shape in case.shapes) <= LARGEST
        assert case.work <= MOST


@pytest.mark.parametrize("at", TRIED)
def test_equations_are_right(at: int) -> None:
    case = list(pyscf("medium"))[at].shrunk(1 << 14)
    problem = ProgramProblem(case)
    assert problem.check(problem.inputs(CPU, 1)).error(case.weft) <= 1


def test_the_suite_names_molecules_and_chooses_by_place() -> None:
    some = entries("pyscf", ["small", "large"], only=["000*"])
    assert [entry.group for entry in some] == ["small"] * 9 + ["large"] * 9
    assert some[0].case.name == "0001-112x"


def test_cupy_says_where_it_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(pyscf("small")).shrunk(1 << 10)
    tensors = ProgramProblem(case).inputs(CPU)
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert CupyProgram().prepare(case, tensors) == "CuPy is not installed"
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace())
    assert CupyProgram().prepare(case, tensors) == "it computes on a GPU"
