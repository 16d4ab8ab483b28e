"""Tensors of more modes than torch's operations take on a GPU: 25 that do not join."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

import weft
from library.calls import case, check, check_permutation, moved, run
from weft.library import permutations, views
from weft.planner.schedule import Target

MOST = 5  # of what stands in for a GPU
_VIEWS = ("as_strided", "permute", "expand", "view", "unbind", "select", "transpose", "empty", "new_empty")


class Counted(TorchDispatchMode):
    """The most dimensions that do not join, of the tensors of one operation."""

    most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        tensors = [each for each in tree_flatten((args, kwargs))[0] if isinstance(each, torch.Tensor)]
        if tensors and not func.__name__.split(".")[0].startswith(_VIEWS) and "mm" not in func.__name__:
            self.most = max(self.most, _apart(tensors))
        return found


def _apart(tensors: list[torch.Tensor]) -> int:
    shape = torch.broadcast_shapes(*(each.shape for each in tensors))
    strides = [each.expand(shape).stride() for each in tensors]
    modes = sorted((step, extent) for *step, extent in zip(*strides, shape, strict=True) if extent > 1)
    joined: list[tuple[list[int], int]] = []
    for steps, extent in modes:
        if joined and steps == [step * joined[-1][1] for step in joined[-1][0]]:
            joined[-1] = joined[-1][0], joined[-1][1] * extent
        else:
            joined.append((steps, extent))
    return len(joined)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(views.DIMS, "cuda", MOST)


OPTIONS: list[dict[str, Any]] = [
    {}, {"add": torch.float32, "beta": 0.5}, {"a_fn": torch.tanh}, {"epilogue": lambda x: torch.exp(x) * torch.sin(x)},
    {"algebra": "max_plus"}, {"algebra": "log"}, {"epilogue": lambda x: (x, x + 1)},
]  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "plain")
@pytest.mark.parametrize("equation", ["abcdefgh,cfyz->yhgzeadb", "abcdefgh,efgh->dbca", "abcd,efgh->hagbfced"])
def test_parts_have_no_more_modes_than_torch_takes(few: None, equation: str, options: dict[str, Any]) -> None:
    extents = dict.fromkeys("abcdefghyz", 2) | {"b": 3, "g": 4}
    call = case(equation, extents, **options)
    check(call, "stand-in")
    found = run(call, "stand-in")
    a, b, c = (moved(each, "cpu") for each in (call.a, call.b, call.c))
    d, *others = found.results
    launch = found.choice.build()
    with Counted() as counted:
        launch(a, b, c, d, 1, call.beta, tuple(others))
    assert 0 < counted.most <= MOST


@pytest.mark.parametrize("options", [{}, {"fn": torch.tanh}, {"alpha": 2.0}, {"alpha": 2.0, "beta": 0.5}], ids="-".join)
def test_permutations_are_right_in_parts(few: None, options: dict[str, Any]) -> None:
    check_permutation(torch.randn(2, 2, 3, 2, 2, 4, 2, 2), "abcpefgh->hcgafbep", options, "stand-in")


@pytest.mark.parametrize("options", [{}, {"fn": torch.tanh}, {"alpha": 2.0}], ids="-".join)
def test_parts_of_permutations_have_no_more_modes(few: None, options: dict[str, Any]) -> None:
    x, d = torch.randn(2, 2, 3, 2, 2, 4, 2, 2), torch.empty(2, 3, 2, 2, 4, 2, 2, 2)
    factor = options.get("alpha", 1)
    plan = weft.plan_permute(x, "abcdefgh->hcgafbed", backend="reference", **options)
    choice = permutations.choice(plan.permutation, "cpu", Target("cuda", capability=90, processors=132))
    assert not isinstance(choice, str)
    launch = choice.build()
    with Counted() as counted:
        launch(x, None, d, factor, 0)
    assert torch.allclose(d, factor * options.get("fn", torch.clone)(x).permute(7, 2, 6, 0, 5, 1, 4, 3))
    assert 0 < counted.most <= MOST


@pytest.mark.gpu
@pytest.mark.parametrize(
    "keywords", [{}, {"specialize": "library"}, {"specialize": "now"}, {"tune": "measure"}], ids="-".join
)
def test_gates_on_many_qubits(keywords: dict[str, Any]) -> None:
    """A state of 27 qubits, its qubits in any order, and a gate on two of them."""
    generator = random.Random(1)
    letters = [chr(97 + at) for at in range(26)] + ["A"]
    stored, result = generator.sample(letters, 27), generator.sample(letters, 27)
    x, y = result[3], result[19]
    wanted = "".join({x: "X", y: "Y"}.get(each, each) for each in result)
    equation = f"{''.join(stored)},{x}{y}XY->{wanted}"
    state, gate = torch.randn([2] * 27, device="cuda"), torch.randn([2] * 4, device="cuda")
    plan = weft.plan(equation, state, gate, **keywords) if keywords else None
    found = plan(state, gate) if plan is not None else weft.contract(equation, state, gate)
    there = [stored.index(each) for each in result]
    rows = state.cpu().double().permute(there).movedim((3, 19), (0, 1)).reshape(4, -1)
    exact = (gate.cpu().double().reshape(4, 4).mT @ rows).reshape([2] * 27).movedim((0, 1), (3, 19))
    assert (found.cpu().double() - exact).abs().max() < 1e-5
    back = weft.permute(f"{wanted}->{''.join(sorted(wanted))}", found)
    assert torch.equal(back.cpu(), found.cpu().permute(sorted(range(27), key=wanted.__getitem__)))
