"""The pictures of docs/architecture.md against the code: rooms by imports, the path of a call by following one."""

from __future__ import annotations

import graphlib
import importlib
import sys
from collections.abc import Iterator
from functools import cache
from types import FrameType
from typing import Any

import pytest
import torch

import weft
from pages import DOCS, docs_module
from weft.planner import promotion
from weft.planner.registry import FAMILIES

pictures = docs_module("pictures")
STEPS = [(kind, step) for kind in ("known", "first") for step in pictures.path_of(kind)]


def test_pictures_are_up_to_date() -> None:
    """`python docs/pictures.py` draws them anew."""
    page = (DOCS / "architecture.md").read_text()
    assert pictures.redrawn(page) == page


def test_layers_put_every_room_above_what_it_imports() -> None:
    imports = pictures.room_imports()
    height = {room: at for at, layer in enumerate(pictures.layers(imports)) for room in layer}
    assert height.keys() == imports.keys()
    for room, others in imports.items():
        assert all(height[other] < height[room] for other in others)


def test_a_cycle_of_rooms_cannot_be_drawn() -> None:
    with pytest.raises(graphlib.CycleError):
        pictures.draw_rooms({"errors": {"spec"}, "spec": {"errors"}})


def test_imports_within_functions_and_for_types_count() -> None:
    known = pictures.modules()
    found = pictures.imported(known["weft.planner.planner"], known)
    assert {"weft.errors"} <= found


@pytest.mark.parametrize(("kind", "step"), STEPS, ids=[f"{kind} {step['name']}" for kind, step in STEPS])
def test_steps_have_names_that_exist(kind: str, step: dict[str, str]) -> None:
    parts = step["name"].split(".")
    for at in range(len(parts) - 1, 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:at]))
        except ModuleNotFoundError:
            continue
        for part in parts[at:]:
            found = getattr(found, part)
        assert callable(found)
        return
    raise AssertionError(step["name"])


class Followed:
    """What of weft a call enters: every function in order, and for each the functions of weft that led to it."""

    def __init__(self) -> None:
        self.entered: list[str] = []
        self.stacks: dict[str, list[str]] = {}

    def __enter__(self) -> Followed:
        sys.setprofile(self._seen)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _seen(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and (name := named(frame)) is not None:
            self.entered.append(name)
            if name not in self.stacks:
                self.stacks[name] = [inner for outer in above(frame) if (inner := named(outer)) is not None][::-1]


def above(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def named(frame: FrameType) -> str | None:
    """The dotted name of a frame's function, within another that of the outer one; None outside of weft."""
    module = frame.f_globals.get("__name__", "")
    return f"{module}.{frame.f_code.co_qualname.partition('.<locals>')[0]}" if module.split(".")[0] == "weft" else None


@cache
def follow(backend: str) -> tuple[Followed, Followed]:
    """A call that is new, and the same again."""
    equation = "XYk,kZ->ZXY" if backend == "cpu" else "XYl,lZ->ZXY"  # one that was read before is not read again
    a, b = torch.randn(2, 3, 4), torch.randn(4, 2)  # few elements: interpreted programs are followed, too
    if backend == "cpu":  # numba's compiler is not to be followed
        weft.contract("XYm,mZ->ZXY", a, b, b_fn=torch.relu, backend=backend)
    calls = Followed(), Followed()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(promotion, "FASTER", 1.0)  # of so few elements no kernel is much faster than another
        for call in calls:
            with call:
                weft.contract(equation, a, b, b_fn=torch.relu, backend=backend)
    return calls


@pytest.mark.keeps
@pytest.mark.parametrize("backend", ["cpu", "triton"])
@pytest.mark.parametrize("kind", ["first", "known"])
def test_a_call_takes_the_path(backend: str, kind: str) -> None:
    if backend == "triton":
        pytest.importorskip("triton")
    first, known = follow(backend)
    entered = iter((first if kind == "first" else known).entered)
    for step in pictures.path_of(kind):
        if step.get("on", backend) == backend:
            assert step["name"] in entered, step["name"]


@pytest.mark.keeps
def test_the_path_of_a_known_call_leaves_out_no_frame() -> None:
    """On the GPU's backend, where a call's time on the host matters."""
    pytest.importorskip("triton")
    _, known = follow("triton")
    path = [step["name"] for step in pictures.path_of("known") if step.get("on", "triton") == "triton"]
    assert known.stacks[path[-1]] == path


def test_families_have_a_row_each() -> None:
    """The table of docs/planning.md names the module of each."""
    page = (DOCS / "planning.md").read_text()
    for module in {module for modules in FAMILIES.values() for module in modules}:
        assert f"| `src/{module.replace('.', '/')}.py` |" in page
