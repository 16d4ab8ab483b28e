"""Tiles that are the sum of two powers of two along n: both parts are computed, finished and stored in their place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import weft
from support import Backend
from weft import reference
from weft.fn import trace
from weft.gpu.tma import family as tma
from weft.gpu.tma.schedule import TmaSchedule, n_parts
from weft.planner.schedule import Target
from weft.spec import Contraction, Layout, canonical, parse
from weft.spec.contraction import class_modes
from weft.spec.dtypes import resolve
from weft.testing import random_operand

H200 = Target("cuda", 0, "NVIDIA H200", 90, 132, 232448)
INTERPRETER = Target("interpreter", 0, "Triton interpreter", 90, 4, 232448)


def described(
    equation: str,
    extents: dict[str, int],
    dtype: torch.dtype = torch.float16,
    out: torch.dtype = torch.float32,
    precision: str | None = None,
    **given: object,
) -> Contraction:
    notation = parse(equation)
    a, b = (Layout.contiguous([extents[label] for label in term], dtype) for term in notation.inputs)
    d = Layout.contiguous([extents[label] for label in notation.output], out)
    modes = class_modes(notation, a, b, None, d, extents)
    return canonical(Contraction(modes, a, b, None, d, resolve(dtype, dtype, precision), text=equation, **given))  # type: ignore[arg-type]


def with_columns(contraction: Contraction, columns: int, depth: int = 32, splits: int = 1) -> TmaSchedule:
    """A schedule with tiles that many columns wide."""
    whole = tma.schedules(contraction, INTERPRETER).schedules[0]
    return replace(whole, tile=(64, columns, depth), splits=splits)


def integers(*shape: int) -> torch.Tensor:
    return torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(sum(shape))).half()


@pytest.mark.parametrize(
    ("columns", "found"), [(256, (256,)), (320, (256, 64)), (80, (64, 16)), (72, (64, 8)), (192, (128, 64))]
)
def test_a_tile_is_the_sum_of_powers_of_two(columns: int, found: tuple[int, ...]) -> None:
    assert n_parts(columns) == found


@pytest.mark.parametrize(
    ("equation", "columns", "splits"),
    [
        ("ad,bd->ab", 80, 1), ("ad,bd->ab", 40, 2), ("da,db->ab", 96, 1), ("da,db->ab", 80, 2), ("dca,bd->cba", 80, 1),
        ("zad,zdb->zab", 48, 1), ("zad,zdb->zba", 48, 2), ("ad,cdb->bac", 80, 1), ("ad,cdb->acb", 40, 2),
    ],
)  # fmt: skip
def test_both_parts_are_stored_where_they_are(equation: str, columns: int, splits: int) -> None:
    """Two tiles along b, the last of which ends within its second part, or before it."""
    extents = {"z": 2, "a": 40, "b": columns + 24 + 16 * splits, "c": 2, "d": 72}
    contraction = described(equation, extents)
    schedule = with_columns(contraction, columns, splits=splits)
    terms = equation.split("->")[0].split(",")
    a, b = (integers(*(extents[label] for label in term)) for term in terms)
    expected = torch.einsum(equation, a.double(), b.double())
    d = torch.full(expected.shape, float("nan"))
    tma.build(contraction, schedule, INTERPRETER)(a, b, None, d, 2.0, 0.0)
    assert torch.equal(d.double(), 2 * expected)


@pytest.mark.parametrize("equation", ["ad,cbd->cba", "ad,cbd->acb", "da,zdb->zab"])
def test_operands_may_be_swapped(equation: str) -> None:
    """Where m is what no power of two covers, A gives the columns of tiles."""
    extents = {"z": 2, "a": 72, "b": 136, "c": 2, "d": 72}
    contraction = described(equation, extents)
    found = [s for s in tma.schedules(contraction, INTERPRETER).schedules if s.swap_ab]
    assert found
    assert all(len(n_parts(schedule.tile[1])) == 2 for schedule in found)
    a, b = (integers(*(extents[label] for label in term)) for term in equation.split("->")[0].split(","))
    expected = torch.einsum(equation, a.double(), b.double())
    for schedule in found[::5]:
        d = torch.full(expected.shape, float("nan"))
        tma.build(contraction, schedule, INTERPRETER)(a, b, None, d, 1.0, 0.0)
        assert torch.equal(d.double(), expected), str(schedule)


def both(value: Any, row: Any, k: Any) -> Any:
    return value * row + k


def two_results(value: Any, bias: Any, gate: Any, m: Any) -> Any:
    return torch.where(gate, value + bias, -value), value > bias + m


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("swap_ab", [False, True])
def test_functions_see_the_elements_of_both_parts(swap_ab: bool, splits: int, triton_backend: Backend) -> None:
    """Operands and coordinates of every kind, a result in half precision, C added, a further result."""
    device, half = triton_backend.device, torch.float16
    a, b, c, bias = (random_operand((72, 72), half, seed, integers=True, device=device) for seed in range(4))
    row, gate = random_operand((72,), half, 4, integers=True, device=device), (torch.arange(72) % 3 == 0).to(device)
    options: dict[str, Any] = {
        "a_fn": both, "b_fn": lambda x, column: x - column, "c_fn": lambda x: 3 * x, "epilogue": two_results,
        "indices": {"k": "k", "m": "m"}, "c": c, "beta": 0.5, "out_dtype": (half, None),
        "operands": {"row": ("k", row), "column": ("n", row), "bias": ("nm", bias), "gate": ("n", gate)},
    }  # fmt: skip
    expected = reference.contract("mk,nk->mn", a, b, **options)
    beta = options.pop("beta")
    plan = weft.plan("mk,nk->mn", a, b, backend="triton", **options)
    contraction, target = plan.contraction, plan._request.target
    target = target if device == "cuda" else replace(target, capability=90)
    if target.capability < 90:
        pytest.skip("TMA needs compute capability 9.0")
    found = tma.schedules(contraction, target).schedules
    schedule = next(s for s in found if s.swap_ab == swap_ab and len(n_parts(s.tile[1])) == 2 and s.tile[2] <= 64)
    schedule = replace(schedule, splits=splits)
    more = torch.ones_like(expected[1], dtype=torch.bool)
    results = [torch.full((72, 72), float("nan"), dtype=half, device=device), more]
    named = [options["operands"].get(each.name, (None, None))[1] for each in contraction.aux][:-1]
    tma.build(contraction, schedule, target)(a, b, c, results[0], 1.0, beta, (*named, results[1]))
    assert torch.equal(results[0].double(), expected[0].double())
    assert torch.equal(results[1], expected[1].bool())


@pytest.mark.parametrize(
    ("equation", "hook", "straight", "swapped"),
    [
        ("km,kn->mn", "b_fn", False, True),
        ("km,kn->mn", "a_fn", True, False),
        ("km,nk->mn", "b_fn", True, True),
        ("km,kn->mn", None, True, True),
    ],
)
def test_two_parts_that_an_assembler_breaks_are_not_offered(
    equation: str, hook: str | None, straight: bool, swapped: bool
) -> None:
    """A function of the kernel's B that lies along n, in two parts: ptxas 12.8 has it read what nothing wrote."""
    given = {hook: trace(torch.relu, (torch.float16,), hook=hook)} if hook else {}
    contraction = described(equation, {"m": 72, "n": 72, "k": 4096}, **given)
    found = tma.schedules(contraction, H200)
    in_parts = {each.swap_ab for each in found.schedules if len(n_parts(each.tile[1])) == 2}
    assert (False in in_parts, True in in_parts) == (straight, swapped)
    assert any("miscompiles" in reason for reason in found.excluded) is not straight
