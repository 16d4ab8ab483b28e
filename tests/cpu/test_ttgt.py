"""The library's product with passes around it: when it is chosen, what it says, pieces, workspace, and C that is D.

Values in every way and in small pieces: `problems.all_ways` has it, wherever operands, functions and types are tested.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import weft
from cpu.problems import SMALL
from weft.cpu import host
from weft.cpu.ttgt import family, ways
from weft.oracle.bounds import expectation
from weft.planner.schedule import Target
from weft.testing import assert_close, poisoned, random_operand

TARGET = Target("cpu", name="CPU", processors=2)


def forced(equation: str, a: torch.Tensor, b: torch.Tensor, **options: Any) -> weft.Plan:
    """A plan by this family, the likeliest of its schedules."""
    unlimited = {name: value for name, value in options.items() if name != "workspace_limit"}
    found = weft.plan(equation, a, b, **unlimited).report().candidates
    best = next(each.schedule for each in found if each.schedule.family == "ttgt")
    return weft.plan(equation, a, b, schedule=best, **options)


@pytest.mark.parametrize(("equation", "shapes"), [
    ("mk,kn->mn", [(70, 65), (65, 600)]), ("amk,kbn->bnma", [(3, 40, 66), (66, 5, 31)]),
    ("zmk,znk->zmn", [(3, 65, 40), (3, 37, 40)]), ("makb,bnk->anm", [(41, 2, 9, 8), (8, 75, 9)]),
])  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.bfloat16])
def test_values_through_a_plan(equation: str, shapes: list[tuple[int, ...]], dtype: torch.dtype) -> None:
    a, b = (random_operand(shape, dtype, seed) for seed, shape in enumerate(shapes, 1))
    options: dict[str, Any] = {"a_fn": lambda x: x * 2 + 1, "epilogue": lambda v, m, shift: (v - m) * shift}
    length = {"mk,kn->mn": 600, "amk,kbn->bnma": 31, "zmk,znk->zmn": 37, "makb,bnk->anm": 75}[equation]
    shift = torch.rand(length, dtype=dtype.to_real() if dtype.is_complex else torch.float32)
    options |= {"indices": {"m": "m"}, "operands": {"shift": ("n", shift)}}
    expected, bound = expectation(equation, a, b, **options)
    guarded = poisoned(tuple(expected.shape), dtype)
    plan = forced(equation, a, b, **options)
    assert plan.schedule.family == "ttgt"
    plan(a, b, out=guarded.tensor, operands={"shift": shift})
    guarded.check_guards()
    assert_close(guarded.tensor, expected, bound)


def test_it_is_chosen_for_products_of_bytes_with_an_epilogue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which GETT's kernels make as products of int32. Its words are those of `docs/planning.md`."""
    if not host.multiplies_bytes():
        pytest.skip("this host has no instructions for bytes")
    a, b = (torch.randint(-127, 128, (256, 256), dtype=torch.int8) for _ in range(2))
    scale = torch.rand(256)
    options = {"out_dtype": torch.float32, "epilogue": lambda v, s: v * s, "operands": {"s": ("n", scale)}}
    plan = weft.plan("mk,kn->mn", a, b, **options)
    assert str(plan.schedule).startswith("ttgt nothing packed; blas _int_mm; scatter D; ")
    found = plan(a, b, operands={"s": scale})
    torch.testing.assert_close(found, (a.long() @ b.long()) * scale, rtol=1e-6, atol=0)


def test_what_it_says_and_takes() -> None:
    a, b = random_operand((8, 96, 80), torch.float32, 1), random_operand((640, 96), torch.float32, 2)
    plan = forced("ikm,nk->imn", a, b, epilogue=torch.relu)
    assert str(plan.schedule).startswith("ttgt A as k·im; blas mm; epilogue on D; ")
    assert plan.workspace_bytes >= 96 * 640 * 4
    limit = plan.workspace_bytes
    assert forced("ikm,nk->imn", a, b, epilogue=torch.relu, workspace_limit=limit).workspace_bytes == limit
    with pytest.raises(weft.UnsupportedError, match="the nearest is 'library: "):
        forced("ikm,nk->imn", a, b, epilogue=torch.relu, workspace_limit=limit - 1)
    with pytest.raises(weft.WorkspaceError, match="bytes of workspace, the limit is 10"):
        forced("ikm,nk->imn", a, b, epilogue=torch.relu, workspace_limit=10)


def test_pieces_of_a_large_result() -> None:
    """Short sums into a result that no cache holds; the last piece is shorter."""
    a, b = torch.randint(-3, 4, (1500, 8)).float(), torch.randint(-3, 4, (8, 4099)).float()
    plan = forced("mk,kn->mn", a, b, epilogue=lambda v, m, n: v * 2 + m - n, indices={"m": "m", "n": "n"})
    assert "in 6 pieces along n" in str(plan.schedule)
    expected = (a @ b) * 2 + torch.arange(1500)[:, None] - torch.arange(4099)
    assert torch.equal(plan(a, b), expected)
    assert torch.equal(plan(a, b), plan(a, b))


def test_an_addend_that_is_the_result() -> None:
    a, b = (torch.randint(-3, 4, (90, 90)).float() for _ in range(2))
    c = torch.randint(-3, 4, (90, 90)).float()
    expected = torch.relu((a @ b) * 0.5 + 2 * c)
    contraction = weft.plan("mk,kn->mn", a, b, epilogue=torch.relu, c=c, out=c, backend="reference").contraction
    (schedule,) = family.schedules(contraction, TARGET).schedules
    run = family.build(contraction, schedule, TARGET)
    run(a, b, c, c, 0.5, 2.0)
    assert torch.equal(c, expected)
    run(a, b, torch.full((90, 90), torch.nan), c, 1, 0)
    assert torch.equal(c, torch.relu(a @ b))


def test_operands_of_a_function_that_is_applied_while_packing() -> None:
    """Weights of eight bits, whose groups have scales."""
    x, scale = torch.randn(72, 4, 32), torch.rand(80, 4)
    weights = torch.randint(-127, 128, (80, 4, 32), dtype=torch.int8)
    plan = forced("bgi,ogi->bo", x, weights, promote=True, b_fn=weft.functions.dequantize,
                  operands={"scale": ("og", scale)})  # fmt: skip
    expected = torch.einsum("bgi,ogi->bo", x.double(), weights.double() * scale.double()[:, :, None])
    found = plan(x, weights, operands={"scale": scale})
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize(("equation", "shapes", "options", "sentence"), [
    ("mk,kn->mn", [(64, 64), (64, 64)], {"algebra": "max_plus"}, "the library computes products and their sums"),
    ("mk,kn->mn", [(64, 64), (64, 64)], {"accumulate": torch.int64}, "the library has no sums in int64"),
    ("mk,k->m", [(64, 64), (64,)], {}, "it is no product of matrices"),
    ("mkl,kn->mn", [(64, 64, 2), (64, 64)], {}, "a mode is summed in one operand alone"),
    ("mk,kn->mn", [(8, 8), (8, 8)], {}, SMALL),
])  # fmt: skip
def test_what_it_does_not_serve(
    equation: str, shapes: list[tuple[int, ...]], options: dict[str, Any], sentence: str
) -> None:
    dtype = torch.int32 if "accumulate" in options else torch.float32
    a, b = (random_operand(shape, dtype, 1) for shape in shapes)
    contraction = weft.plan(equation, a, b, backend="reference", **options).contraction
    assert (family.supports(contraction, TARGET) or "").startswith(sentence)


def test_nothing_is_left_for_it_of_a_plain_product() -> None:
    a = torch.ones(96, 96)
    contraction = weft.plan("mk,kn->mn", a, a, backend="reference").contraction
    assert family.schedules(contraction, TARGET).excluded == (
        "it is a product of matrices as they lie, with nothing to be applied",
    )


def test_results_in_too_many_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(family, "MOST_PIECES", 5)
    a = torch.ones(6, 64, 64)
    contraction = weft.plan("bmk,bkn->bmn", a, a, backend="reference", epilogue=torch.relu).contraction
    assert family.schedules(contraction, TARGET).excluded == ("it would go in 6 pieces, more than 5",)


@pytest.mark.parametrize(("strides", "found"), [((7, 1), (7, 1)), ((1, 9), (1, 9)), ((1, 1), None), ((14, 2), None)])
def test_matrices_that_the_library_takes(strides: tuple[int, int], found: tuple[int, int] | None) -> None:
    rows, columns = (
        (ways.Mode(("x",), extent, ways.Role.M, weft.spec.Strides(step, 0, 0, 0)),)
        for extent, step in zip((9, 7), strides, strict=True)
    )
    assert ways.steps_of(rows, columns, ways.A) == found
