"""float32 products of shorter terms: who is served so, in which layouts, and what a program's steps see."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

import weft
from gpu.warp_specialized_cases import H200
from weft.gpu.common.launch import collected
from weft.library import family as library
from weft.library import split_family
from weft.library.split_family import TermsLaunch, TermsSchedule
from weft.planner.program import Program
from weft.planner.schedule import ResourceError
from weft.planner.split_schemes import U, is_worth
from weft.spec import Contraction

CUDA = replace(H200, kind="cuda")


def contraction(
    equation: str, extents: dict[str, int], dtype: torch.dtype = torch.float32, **options: Any
) -> Contraction:
    left, right = equation.split("->")[0].split(",")
    a, b = (torch.empty([extents[label] for label in term], dtype=dtype) for term in (left, right))
    return weft.plan(equation, a, b, precision="ieee_bound", backend="reference", **options).contraction


def in_memory(described: Contraction) -> TermsSchedule:
    (found,) = [each for each in split_family.schedules(described, CUDA).schedules if isinstance(each, TermsSchedule)]
    return found


def test_terms_serve_large_products_alone() -> None:
    assert is_worth(1, 4096, 4096, 4096)
    assert not is_worth(1, 64, 64, 64)
    assert not is_worth(1, 8192, 8192, 4)  # a short sum


def test_the_library_tier_makes_ieee_products() -> None:
    described = contraction("mk,kn->mn", {"m": 2048, "n": 2048, "k": 2048})
    (schedule, *_) = library.schedules(described, CUDA).schedules
    assert "terms" not in str(schedule)


@pytest.mark.parametrize("equation", ["mk,kn->mn", "kam,bkn->nbam", "bmk,bkn->bmn"])
@pytest.mark.parametrize("epilogue", [None, torch.relu])
def test_launches_are_made_when_a_plan_is_built(equation: str, epilogue: Any) -> None:
    extents = {"m": 1800, "n": 1700, "k": 1601, "a": 1, "b": 2}
    described = contraction(equation, extents, **({"epilogue": epilogue} if epilogue else {}))
    with collected() as made:
        launch = split_family.build(described, in_memory(described), CUDA)
        assert len(made) == 10  # zeros, peaks, terms by both schemes, the verdict, both kernels
        assert {*launch.kernels} == {*made}
    fused = [each.constants["OP"].epilogue is not None for each in made if "TERMS" in each.constants]
    assert fused == [epilogue is not None] * 2
    assert "fp16x3" in launch.state


def in_registers(described: Contraction) -> list[Program]:
    return [each for each in split_family.schedules(described, CUDA).schedules if isinstance(each, Program)]


def test_complex_products_are_split_in_registers_where_twice_as_many_real_ones_may_be() -> None:
    extents = {"a": 72, "b": 48, "c": 24, "k": 40}
    found = in_registers(contraction("abk,kc->abc", extents, torch.complex64))
    assert found
    assert all("complex_direct" in str(each) for each in found)
    assert in_registers(contraction("abk,kc->abc", extents | {"k": 6}, torch.complex64))
    assert not in_registers(contraction("abk,kc->abc", extents | {"k": 6}))
    wide = contraction("abk,kc->abc", extents, torch.complex128)
    assert split_family.supports(wide, CUDA) == 'products are made of shorter terms where precision is "ieee_bound"'
    with collected() as made:
        split_family.build(contraction("abk,kc->abc", extents, torch.complex64), found[0], CUDA)
    (kernel,) = made
    assert kernel.constants["OP"].precision == "bf16x6"
    assert kernel.constants["PARAMS"].apart


def test_other_devices_are_no_device_for_terms() -> None:
    described = contraction("mk,kn->mn", {"m": 2048, "n": 2048, "k": 2048})
    assert "capability 9.0" in (split_family.supports(described, replace(CUDA, capability=80)) or "")
    with pytest.raises(ResourceError, match="capability"), collected():
        split_family.build(described, in_memory(described), replace(CUDA, capability=100))


def test_a_step_sees_intermediates_that_are_rows_of_elements() -> None:
    seen: list[torch.Size] = []

    class Part:
        kernels = ()

        def __call__(self, x: Any, y: Any, c: Any, d: Any, *rest: Any) -> None:
            seen.extend([x.shape, y.shape, d.shape])

    launch = TermsLaunch(contraction("mk,kn->mn", {"m": 9, "n": 7, "k": 64}), Part())  # type: ignore[arg-type]
    launch(torch.empty(9 * 64), torch.empty(64, 7), None, torch.empty(63), 1.0, 1.0)
    assert seen == [(9, 64), (64, 7), (9, 7)]


@pytest.mark.gpu
@pytest.mark.parametrize("conjugate", [False, True])
def test_complex_products_on_a_gpu_are_within_the_ieee_bound(conjugate: bool) -> None:
    a, b = (torch.randn(shape, device="cuda", dtype=torch.complex64) for shape in ((35, 33, 190), (190, 24)))
    a = a.conj() if conjugate else a
    plan = weft.plan("abk,kc->cab", a, b, precision="ieee_bound")
    exact = torch.einsum("abk,kc->cab", a.to(torch.complex128), b.to(torch.complex128))
    (x, y), (v, w) = ([part.double().abs() for part in (z.real, z.imag)] for z in (a, b))
    pairs = [((x, v), (y, w)), ((x, w), (y, v))]  # of the real part, and of the imaginary one
    sizes = [sum(torch.einsum("abk,kc->cab", *pair) for pair in each) for each in pairs]
    bound = 2 * 190 * U * torch.stack(sizes, -1)
    schedules = in_registers(plan.contraction)
    assert schedules
    for schedule in schedules:
        forced = weft.plan("abk,kc->cab", a, b, precision="ieee_bound", schedule=schedule)
        for _ in range(3):
            assert (torch.view_as_real(forced(a, b) - exact).abs() <= bound).all()


@pytest.mark.gpu
@pytest.mark.parametrize("equation", ["mk,kn->mn", "kam,bkn->nbam"])
@pytest.mark.parametrize("epilogue", [None, torch.relu])
@pytest.mark.parametrize("offset", [0, 1])
def test_a_gpu_is_served_by_terms_within_the_ieee_bound(equation: str, epilogue: Any, offset: int) -> None:
    extents = {"m": 1800, "n": 1700, "k": 1601, "a": 1, "b": 2}
    *given, output = ([extents[label] for label in term] for term in equation.replace("->", ",").split(","))
    a, b = (torch.randn(math.prod(shape) + offset, device="cuda")[offset:].view(shape) for shape in given)
    named = {"epilogue": epilogue} if epilogue else {}
    schedule = in_memory(weft.plan(equation, a, b, precision="ieee_bound", **named).contraction)
    plan = weft.plan(equation, a, b, precision="ieee_bound", schedule=schedule, **named)
    exact = torch.einsum(equation, a.double(), b.double())
    bound = extents["k"] * U * torch.einsum(equation, a.double().abs(), b.double().abs())
    exact = epilogue(exact) if epilogue else exact
    d = torch.empty(output, device="cuda")
    for _ in range(4):
        d.fill_(torch.nan)
        plan(a, b, out=d)
        assert ((d - exact).abs() <= bound).all()
        assert ((plan(a, b) - exact).abs() <= bound).all()
