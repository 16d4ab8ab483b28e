"""IEEE products in float32 by the register-blocked kernel: sums that end within a step, functions, splits, C."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import weft
from gpu.test_semiring_shapes import candidates, described, quickest, run
from support import Backend
from weft import reference
from weft.engine.ways import Arguments
from weft.gpu.semiring import family as semiring
from weft.testing import assert_close, random_operand, tolerance

LAYOUTS = ("mk,kn->mn", "km,kn->nm", "mk,nk->mn", "km,nk->nm")


def operands(equation: str, extents: dict[str, int], device: Any) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = equation.split("->")[0].split(",")
    first = random_operand(tuple(extents[label] for label in a), torch.float32, 1, device=device)
    return first, random_operand(tuple(extents[label] for label in b), torch.float32, 2, device=device)


def check(count: int, equation: str, a: torch.Tensor, b: torch.Tensor, **options: Any) -> None:
    """So many schedules are within the K-aware bound of a reference in double precision."""
    contraction, target, plan = described(equation, a, b, **options)
    expected = reference.contract(equation, a, b, **options)
    found = quickest(candidates(contraction, target), count)
    assert found
    for schedule in found:
        got = run(schedule, contraction, target, plan, a, b)
        assert_close(got, expected, tolerance(equation, a, b, **options))


@pytest.mark.parametrize("equation", LAYOUTS)
@pytest.mark.parametrize("k", [1, 7, 16, 21])
def test_every_layout_and_end_of_k(equation: str, k: int, triton_backend: Backend) -> None:
    a, b = operands(equation, {"m": 37, "k": k, "n": 13}, triton_backend.device)
    check(3, equation, a, b)


def test_batches_and_several_modes(triton_backend: Backend) -> None:
    equation = "xkml,nlxk->xnm"
    a, b = operands(equation, {"x": 3, "m": 19, "n": 24, "k": 5, "l": 3}, triton_backend.device)
    check(2, equation, a, b)


def test_functions_of_zero_add_nothing_past_the_end_of_k(triton_backend: Backend) -> None:
    """exp(0) and cos(0) are 1: what is read past the end is set to zero after functions, not before."""
    for equation in LAYOUTS[:2]:
        a, b = operands(equation, {"m": 20, "k": 11, "n": 12}, triton_backend.device)
        check(1, equation, a, b, a_fn=torch.exp, b_fn=torch.cos)


def test_splits_with_c_and_epilogue(triton_backend: Backend) -> None:
    a, b, c = (
        random_operand(shape, torch.float32, seed, device=triton_backend.device)
        for seed, shape in enumerate(((18, 530), (11, 530), (11, 18)))
    )
    plan = weft.plan("mk,nk->nm", a, b, c=c, epilogue=torch.neg, backend="triton")
    plan.prepare(Arguments(a, b, c))
    (variant,) = (each for each in plan._variants.values() if each.description.c is not None)
    target = replace(plan._request.target, processors=8)
    found = [s for s in candidates(variant.description, target) if s.splits > 1]
    for schedule in quickest(found, 2):
        got = run(schedule, variant.description, target, plan, a, b, c)
        assert torch.allclose(got.double(), -(b.double() @ a.double().T + c), rtol=0, atol=530 * 2e-6)


def test_infinities_and_nan_stay_where_they_are(triton_backend: Backend) -> None:
    """Zeros past the end of k meet zeros alone: 0 x inf would be NaN."""
    a, b = operands("mk,kn->mn", {"m": 17, "k": 13, "n": 12}, triton_backend.device)
    a[3, 12], b[5, 7] = torch.inf, torch.nan
    contraction, target, plan = described("mk,kn->mn", a, b)
    expected = a.double() @ b.double()
    for schedule in quickest(candidates(contraction, target), 2):
        got = run(schedule, contraction, target, plan, a, b)
        assert torch.equal(got.isnan(), expected.isnan())
        assert torch.equal(got.isinf(), expected.isinf())


def test_only_products_that_matrix_instructions_do_not_make(triton_backend: Backend) -> None:
    x = torch.ones(16, 16, device=triton_backend.device)
    contraction, target, _ = described("mk,nk->mn", x, x)
    assert semiring.supports(contraction, target) is None
    for other, options in ((x, {"precision": "tf32"}), (x.half(), {}), (x.double(), {})):
        contraction, target, _ = described("mk,nk->mn", other, other, **options)
        assert "products" in str(semiring.supports(contraction, target))
