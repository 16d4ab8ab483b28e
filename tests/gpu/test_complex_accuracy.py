"""How exact complex products are: each part for itself by default, by moduli with three real products."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import weft
from gpu.complex_ways import way_of
from support import Backend
from weft.gpu.blas import family as blas
from weft.oracle.judgement import error_over_bound
from weft.oracle.rounding import epsilon
from weft.planner.planner import choose
from weft.planner.schedule import Target
from weft.testing import expectation

H200 = Target("cuda", 0, "NVIDIA H200", 90, 132, 232448)
M, N, K = 3, 2, 24


@pytest.fixture
def with_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's calls run through torch on any device: here they are planned as for a GPU."""
    supports = blas.supports
    monkeypatch.setattr(blas, "supports", lambda contraction, target: supports(contraction, H200))


def operand(shape: tuple[int, ...], dtype: torch.dtype, small: float, seed: int) -> torch.Tensor:
    """Values of size 1 whose imaginary parts are so small."""
    generator = torch.Generator().manual_seed(seed)
    parts = [torch.randn(shape, dtype=dtype.to_real(), generator=generator) for _ in range(2)]
    return torch.complex(parts[0], small * parts[1])


def every_kind(a: torch.Tensor, b: torch.Tensor, precision: str, wanted: Any = None) -> dict[Any, torch.Tensor]:
    """The product by one schedule of each kind, or of those that are `wanted`."""
    plan = weft.plan("mk,kn->mn", a, b, backend="triton", precision=precision)
    layout = weft.spec.Layout.contiguous(plan.shape, a.dtype)
    contraction = weft.spec.canonical(plan._request.contraction(None, layout, ()))
    choice = choose(contraction, "triton", plan._request.target)
    found: dict[Any, torch.Tensor] = {}
    for ranked in choice.ranked:
        schedule = ranked.schedule
        way: Any = way_of(schedule) if schedule.family == "complex" else schedule.family  # type: ignore[arg-type]
        if way not in found and (wanted is None or wanted(way)):
            found[way] = torch.full(plan.shape, torch.nan, dtype=a.dtype)
            replace(choice, best=ranked).build()(a, b, None, found[way], 1 + 0j, 0j)
    return found


def is_three(kind: Any) -> bool:
    return "three_m" in kind


@pytest.mark.usefixtures("with_library")
@pytest.mark.parametrize(("dtype", "small"), [(torch.complex64, 1e-6), (torch.complex128, 0.0)], ids=str)
def test_of_four_products_each_part_is_exact_for_itself(dtype: torch.dtype, small: float) -> None:
    """An imaginary part is a sum of 2 K products of a real with an imaginary part, and of nothing larger."""
    a, b = operand((M, K), dtype, small, 1), operand((K, N), dtype, small, 2)
    wide_a, wide_b = a.to(torch.complex128), b.to(torch.complex128)
    exact = wide_a @ wide_b
    mixed = wide_a.real.abs() @ wide_b.imag.abs() + wide_a.imag.abs() @ wide_b.real.abs()
    bound = (2 * K + 4) * (epsilon(dtype) + epsilon(torch.float64)) * mixed
    found = every_kind(a, b, "ieee")
    assert len(found) > 3
    assert not any(map(is_three, found))
    for kind, result in found.items():
        off = (result.to(torch.complex128).imag - exact.imag).abs()
        assert bool((off <= bound).all()), kind


@pytest.mark.usefixtures("with_library")
@pytest.mark.parametrize(("small_a", "small_b"), [(1.0, 1.0), (1e-6, 1e-6), (1e6, 1e-6), (0.0, 1.0), (0.0, 0.0)])
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_three_products_keep_the_bound_by_moduli(dtype: torch.dtype, small_a: float, small_b: float) -> None:
    """And the sharper one that the documents state, 3.2 (K + 4) u |A||B|."""
    a, b = operand((M, K), dtype, small_a, 3), operand((K, N), dtype, small_b, 4)
    value, bound = expectation("mk,kn->mn", a, b, precision="3m")
    found = every_kind(a, b, "3m", is_three)
    assert found
    moduli = a.abs().double() @ b.abs().double()
    for kind, result in found.items():
        assert float(error_over_bound(result, value, bound).max()) <= 1.0, kind
        off = (result.to(torch.complex128) - value).abs()
        stated = 3.2 * (K + 4) * (epsilon(dtype) / 2 + epsilon(torch.float64)) * moduli
        assert bool((off <= stated).all()), kind


def test_three_products_are_for_complex_numbers() -> None:
    a = torch.ones(3, 3)
    with pytest.raises(weft.DTypeError, match="complex"):
        weft.contract("mk,kn->mn", a, a, precision="3m")
    with pytest.raises(weft.DTypeError, match="max_plus"):
        weft.contract("mk,kn->mn", a, a, precision="3m", algebra="max_plus")


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_three_products_must_be_asked_for(dtype: torch.dtype) -> None:
    z = torch.ones(3, 3, dtype=dtype)
    for precision in (None, "ieee", "3m"):
        plan = weft.plan("mk,kn->mn", z, z, precision=precision)
        assert plan.contraction.arithmetic.three == (precision == "3m")
        assert ("(3m)" in plan.explain()) == (precision == "3m")


def test_three_products_are_a_permission(backend: Backend) -> None:
    """Where nothing makes them, four are as good."""
    z = operand((6, 6), torch.complex128, 1.0, 5).to(backend.device)
    result = weft.contract("mk,kn->mn", z, z, precision="3m", backend=backend.name, validate=True)
    assert torch.allclose(result, z @ z)
