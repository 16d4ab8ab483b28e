"""`return_arg=True`: the value that an algebra selected and where it stands, on every backend."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

import weft
from support import BACKENDS
from weft.testing import random_operand

PAIRS: dict[str, tuple[Any, bool]] = {
    "max_plus": (torch.add, True), "min_plus": (torch.add, False), "max_times": (torch.mul, True),
    "min_max": (torch.maximum, False), "max_min": (torch.minimum, True),
}  # fmt: skip


def whole(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Few different values: ties everywhere."""
    return random_operand(shape, dtype, seed, integers=True)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("algebra", PAIRS)
def test_the_first_of_the_best_is_named(algebra: str, backend: str) -> None:
    a, b = whole(7, 9), whole(9, 5, seed=1)
    combine, largest = PAIRS[algebra]
    pairs = combine(a[:, :, None], b[None])
    best = pairs.max(1) if largest else pairs.min(1)
    d, k = weft.contract("ik,kj->ij", a, b, algebra=algebra, return_arg=True, backend=backend)
    assert torch.equal(d, best.values)
    assert k.dtype == torch.int64
    assert torch.equal(k, best.indices)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.int32, torch.int64])
def test_several_reduced_modes_in_the_order_of_the_equation(dtype: torch.dtype, backend: str) -> None:
    x, y = whole(2, 3, 4, 5, dtype=dtype), whole(5, 2, 6, 4, seed=1, dtype=dtype)
    d, (k, l) = weft.contract("bmkl,lbnk->nbm", x, y, algebra="max_plus", return_arg=True, backend=backend)
    pairs = (x[:, :, None] + y.permute(1, 2, 3, 0)[:, None]).permute(2, 0, 1, 3, 4).flatten(-2)
    best = pairs.max(-1)
    assert d.dtype == dtype
    assert torch.equal(d, best.values)
    assert torch.equal(k * 5 + l, best.indices)


@pytest.mark.parametrize("backend", BACKENDS)
def test_functions_operands_and_a_place_for_the_result(backend: str) -> None:
    a, b, shift = whole(6, 4), whole(4, 3, seed=1), torch.arange(6.0)
    out = torch.full((3, 6), torch.nan, dtype=torch.float64)
    found, k = weft.contract(
        "ik,kj->ji", a, b, algebra="min_plus", return_arg=True, a_fn=torch.abs, out=out, backend=backend,
        epilogue=lambda value, shift, i: value + shift * i, operands={"shift": ("i", shift)}, indices={"i": "i"},
    )  # fmt: skip
    best = (a.abs()[:, :, None] + b).min(1)
    assert found is out
    assert torch.equal(out, (best.values + (shift * shift)[:, None]).T.double())
    assert torch.equal(k, best.indices.T)


@pytest.mark.parametrize("backend", BACKENDS)
def test_diagonals_broadcasts_lone_modes_and_nothing_to_select_from(backend: str) -> None:
    a, b = whole(4, 4, 3), whole(1, 5, seed=1)
    d, (k, x) = weft.contract("iik,xj->ij", a, b, algebra="max_plus", return_arg=True, backend=backend)
    best = a.diagonal().T.max(1)
    assert torch.equal(d, best.values[:, None] + b)
    assert torch.equal(k, best.indices[:, None].expand(4, 5))
    assert not x.any()
    d, k = weft.contract(
        "ik,kj->ij", torch.ones(2, 0), torch.ones(0, 3), algebra="max_plus", return_arg=True, backend=backend
    )
    assert d.eq(-torch.inf).all()
    assert k.eq(-1).all()
    d, places = weft.contract(
        "ikx,xkj->ij", torch.ones(2, 3, 0), torch.ones(0, 3, 4), algebra="max_plus", return_arg=True, backend=backend
    )
    assert d.eq(-torch.inf).all()
    assert len(places) == 2
    assert all(place.eq(-1).all() for place in places)
    nan = whole(3, 5)
    nan[1, 2] = nan[1, 4] = torch.nan
    d, k = weft.contract("ik,kj->ij", nan, whole(5, 2), algebra="max_plus", return_arg=True, backend=backend)
    assert d[1].isnan().all()
    assert k[1].eq(2).all()


def test_a_path_by_its_predecessors() -> None:
    """What the user typed: Viterbi, its best path read backwards."""
    steps, states = 6, 4
    transition, emitted = whole(states, states).float(), whole(steps, states, seed=2)
    score, back = emitted[0], []
    for t in range(1, steps):
        score, where = weft.contract(
            "i,ij->j", score, transition, algebra="longest_path", return_arg=True,
            epilogue=lambda best, e: best + e, operands={"e": ("j", emitted[t])},
        )  # fmt: skip
        back.append(where)
    path = [int(score.argmax())]
    for where in reversed(back):
        path.insert(0, int(where[path[0]]))
    along = emitted[0, path[0]] + sum(
        transition[i, j] + emitted[t, j] for t, (i, j) in enumerate(itertools.pairwise(path), 1)
    )
    assert along == score.max()


def test_of_other_calls_too() -> None:
    a, b = whole(3, 4), whole(4, 2, seed=1)
    best = (a[:, :, None] + b).max(1)
    for d, k in (
        weft.matmul(a, b, algebra="max_plus", return_arg=True),
        weft.einsum("ik,kj->ij", a, b, algebra="max_plus", return_arg=True, validate=True),
    ):
        assert torch.equal(d, best.values)
        assert torch.equal(k, best.indices)
    d, k = weft.einsum("ik->i", a, algebra="max_plus", return_arg=True)
    assert torch.equal(d, a.amax(1))
    assert torch.equal(k, a.max(1).indices)
    d, k = weft.matmul(a.numpy(), b.numpy(), algebra="max_plus", return_arg=True)
    assert type(d) is type(k) is type(a.numpy())


def test_places_come_with_a_place_for_the_result_and_with_arrays() -> None:
    x, y = torch.rand(4, 3, 5), torch.rand(3, 5, 6)
    expected, where = weft.contract("iab,abj->ij", x, y, algebra="max_plus", return_arg=True)
    out = torch.empty(4, 6)
    found, places = weft.einsum("iab,abj->ij", x, y, algebra="max_plus", return_arg=True, out=out)
    assert found is out
    assert torch.equal(out, expected)
    assert all(map(torch.equal, places, where))
    found, places = weft.einsum("iab,abj->ij", x.numpy(), y.numpy(), algebra="max_plus", return_arg=True)
    assert np.array_equal(found, expected.numpy())
    assert all(np.array_equal(one, other.numpy()) for one, other in zip(places, where, strict=True))
    a, b, out = x[:, 0], y[0], torch.empty(4, 6)
    found, place = weft.matmul(a, b, algebra="max_plus", return_arg=True, out=out)
    assert found is out
    assert torch.equal(place, (a[:, :, None] + b).argmax(1))


def test_functions_see_the_type_of_products() -> None:
    a, b = torch.randint(-5, 5, (4, 3), dtype=torch.int8), torch.rand(3, 6)
    found, _ = weft.contract("ik,kj->ij", a, b, algebra="max_plus", a_fn=torch.sigmoid, promote=True, return_arg=True)
    torch.testing.assert_close(found, (a.float().sigmoid()[:, :, None] + b).amax(1))


def test_bad_input() -> None:
    a, b = whole(3, 4), whole(4, 2)
    with pytest.raises(weft.UnsupportedError, match=r"return_arg is for algebras that select.*log makes one value"):
        weft.contract("ik,kj->ij", a, b, algebra="log", return_arg=True)
    with pytest.raises(weft.UnsupportedError, match="plus_times makes one value of several"):
        weft.contract("ik,kj->ij", a, b, return_arg=True)
    with pytest.raises(weft.ShapeError, match="c"):
        weft.contract("ik,kj->ij", a, b, c=torch.ones(4, 2), algebra="max_plus", return_arg=True)
    with pytest.raises(weft.WorkspaceError, match="packs both operands into 80 bytes of workspace, the limit is 0"):
        weft.contract("ik,kj->ij", a, b, algebra="max_plus", return_arg=True, workspace_limit=0)
    out = torch.full((2, 3), torch.nan)
    with pytest.raises(weft.ShapeError, match="out has shape"):
        weft.contract("ik,kj->ij", a, b, out=out, algebra="max_plus", return_arg=True)
    assert out.isnan().all()


def test_an_algebra_of_ones_own_and_no_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = whole(5, 6), whole(6, 7, seed=1)
    far = weft.Algebra(lambda x, y: (x - y).abs(), torch.minimum, "highest", "nearest")
    d, k = weft.contract("ik,kj->ij", a, b, algebra=far, return_arg=True)
    best = (a[:, :, None] - b).abs().min(1)
    assert torch.equal(d, best.values)
    assert torch.equal(k, best.indices)
    from weft.cpu import jit

    monkeypatch.setattr(jit, "fault", lambda: "numba is turned off")
    d, k = weft.contract("ik,kj->ij", a, b, algebra="max_plus", return_arg=True, backend="cpu")
    assert torch.equal(k, (a[:, :, None] + b).max(1).indices)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
@pytest.mark.parametrize("algebra", PAIRS)
def test_c_is_selected_where_it_is_better_than_every_pair(algebra: str, dtype: torch.dtype, backend: str) -> None:
    a, b, c = whole(7, 9, dtype=dtype), whole(9, 5, seed=1, dtype=dtype), 4 * whole(7, 5, seed=2, dtype=dtype)
    best, where = weft.contract("ik,kj->ij", a, b, algebra=algebra, return_arg=True, backend=backend)
    d, k = weft.contract(
        "ik,kj->ij", a, b, c=c, c_fn=torch.neg, algebra=algebra, return_arg=True, validate=True, backend=backend
    )
    better = -c > best if PAIRS[algebra][1] else -c < best
    assert better.any()
    assert torch.equal(d, torch.where(better, -c, best))
    assert torch.equal(k, torch.where(better, -1, where))


def test_c_of_several_reduced_modes_of_nan_and_of_one_extent() -> None:
    a, b = whole(4, 2, 3), whole(2, 3, 5, seed=1)
    c = torch.tensor([[torch.nan, 100.0, -100.0, 0.0, 0.0]])
    d, (x, y) = weft.contract("ixy,xyj->ij", a, b, c=c, algebra="max_plus", return_arg=True)
    torch.testing.assert_close(
        d, weft.contract("ixy,xyj->ij", a, b, c=c, algebra="max_plus"), equal_nan=True, rtol=0, atol=0
    )
    assert (x[:, :2] == -1).all()
    assert (y[:, :2] == -1).all()
    assert (x[:, 2] >= 0).all()
    assert (y[:, 2] >= 0).all()


def test_c_may_be_where_the_result_goes() -> None:
    a, b, c = whole(7, 9), whole(9, 5, seed=1), 4 * whole(7, 5, seed=2)
    right = weft.contract("ik,kj->ij", a, b, c=c.clone(), algebra="max_plus", return_arg=True)
    d, k = weft.contract("ik,kj->ij", a, b, c=c, out=c, algebra="max_plus", return_arg=True, validate=True)
    assert d is c
    assert torch.equal(d, right[0])
    assert torch.equal(k, right[1])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_plan_finds_places_as_the_call_does(backend: str) -> None:
    a, b, c, shift = whole(7, 9), whole(9, 5, seed=1), 4 * whole(7, 5, seed=2), whole(7, seed=3)
    said: dict[str, Any] = {
        "algebra": "max_plus", "epilogue": lambda d, shift: d + shift, "operands": {"shift": ("i", shift)},
        "backend": backend,
    }  # fmt: skip
    plan = weft.plan("ik,kj->ij", a, b, return_arg=True, **said)
    for given in ({}, {"c": c}, {"out": torch.empty(7, 5)}, {"validate": True}):
        right = weft.contract("ik,kj->ij", a, b, return_arg=True, **said, **given)
        found = plan(a, b, operands={"shift": shift}, **given)
        assert all(map(torch.equal, found, right))
    assert "max_plus" in plan.explain()
    x, where = plan(a.numpy(), b.numpy(), operands={"shift": shift})
    assert isinstance(x, np.ndarray)
    assert isinstance(where, np.ndarray)
    with pytest.raises(weft.ShapeError, match="planned were"):
        plan(a[:3], b, operands={"shift": shift})
    with pytest.raises(weft.FunctionError, match="'shift' is missing"):
        plan(a, b)
    with pytest.raises(weft.ArgumentError, match="betta"):
        plan(a, b, operands={"shift": shift}, betta=1)


def test_a_plan_that_finds_places_has_gradients_and_is_compiled() -> None:
    a, b = torch.rand(7, 9, requires_grad=True), torch.rand(9, 5)
    plan = weft.plan("ik,kj->ij", a, b, algebra="max_plus", return_arg=True)
    d, k = plan(a, b)
    d.sum().backward()
    assert torch.equal(a.grad, torch.zeros(7, 9).scatter_add(1, k, torch.ones(7, 5)))
    found = torch.compile(lambda x, y: plan(x, y), fullgraph=True)(a.detach(), b)
    assert torch.equal(found[1], k)


def test_a_plan_refuses_what_finds_no_places() -> None:
    a, b = whole(7, 9), whole(9, 5)
    with pytest.raises(weft.UnsupportedError, match="plus_times makes one value of several"):
        weft.plan("ik,kj->ij", a, b, return_arg=True)
    with pytest.raises(weft.ArgumentError, match="return_arg is True or False, not 1"):
        weft.plan("ik,kj->ij", a, b, algebra="max_plus", return_arg=1)
