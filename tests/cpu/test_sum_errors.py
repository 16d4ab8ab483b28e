"""Sums of floating numbers on the CPU are as exact as torch's BLAS makes them, in every family that serves."""

from __future__ import annotations

import pytest
import torch

import weft

RATIO = 1.5  # of mean errors, at most
LENGTHS = [64, 256, 385, 1009, 4096, 16384]
EXTENTS = {"m": 12, "n": 40, "z": 3, "x": 4}
EQUATIONS = ["mk,kn->mn", "kxm,nkx->nm", "zmk,zkn->mzn", "k,k->", "kz,kz->z"]
CASES = [(equation, k, torch.float32) for equation in EQUATIONS for k in LENGTHS]
CASES += [("mk,kn->mn", 1009, torch.complex64), ("kxm,nkx->nm", 4096, torch.complex64)]


def operands(equation: str, k: int, dtype: torch.dtype, seed: int) -> list[torch.Tensor]:
    """Positive numbers, of which every rounding counts; random signs would hide some."""
    generator = torch.Generator().manual_seed(seed)
    extents = {**EXTENTS, "k": k // 4 if "x" in equation else k}
    shapes = [[extents[label] for label in term] for term in equation.split("->")[0].split(",")]
    return [torch.rand(shape, dtype=dtype, generator=generator) for shape in shapes]


def mean_error(found: torch.Tensor, right: torch.Tensor) -> float:
    return float((found.to(right.dtype) - right).abs().mean())


def truth(equation: str, *tensors: torch.Tensor) -> torch.Tensor:
    wide = torch.complex128 if tensors[0].is_complex() else torch.float64
    return torch.einsum(equation, *(x.to(wide) for x in tensors))


@pytest.mark.parametrize(("equation", "k", "dtype"), CASES)
def test_every_family_is_as_exact_as_blas(equation: str, k: int, dtype: torch.dtype) -> None:
    seeds = range(12 if equation == "k,k->" else 2)
    given = [operands(equation, k, dtype, seed) for seed in seeds]
    rights = [truth(equation, *tensors) for tensors in given]
    blas = sum(mean_error(torch.einsum(equation, *x), right) for x, right in zip(given, rights, strict=True))
    for candidate in weft.plan(equation, *given[0]).report().candidates:
        schedule = candidate.schedule
        ours = sum(
            mean_error(weft.contract(equation, *x, schedule=schedule), right)
            for x, right in zip(given, rights, strict=True)
        )
        assert ours <= RATIO * blas, (str(schedule), ours / blas)


@pytest.mark.parametrize("k", LENGTHS)
def test_sums_with_functions_and_groups(k: int) -> None:
    a, b = operands("mk,kn->mn", k, torch.float32, 5)
    right = truth("mk,kn->mn", a, b)
    blas = mean_error(a @ b, right)
    assert mean_error(weft.matmul(a, b, epilogue=lambda v: v + 0.0), right) <= RATIO * blas
    assert mean_error(weft.matmul(a, b, c=torch.zeros_like(right, dtype=torch.float32)), right) <= RATIO * blas
    for x in (a, a[:5]):  # of few rows BLAS makes long sums otherwise
        found, _ = weft.grouped("mk,kn->mn", [(x, b), (a[:7], b)])
        assert mean_error(found, right[: len(x)]) <= RATIO * mean_error(x @ b, right[: len(x)])


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_double_precision(dtype: torch.dtype) -> None:
    """Against Python's integers, of which the factors are."""
    generator = torch.Generator().manual_seed(1)
    shape = (24, 4096) if dtype is torch.float64 else (24, 4096, 2)
    whole = torch.randint(2**25, 2**26, shape, generator=generator)
    parts = whole.to(torch.float64)
    a = torch.view_as_complex(parts) if dtype.is_complex else parts
    exact = (whole[..., 0] if dtype.is_complex else whole).numpy().astype(object)
    right = (exact * exact).sum(1)
    if dtype.is_complex:
        imaginary = whole[..., 1].numpy().astype(object)
        right = right + (imaginary * imaginary).sum(1)

    def error(found: torch.Tensor) -> float:
        return sum(abs(int(x) - y) for x, y in zip(found.real.diagonal().tolist(), right.tolist(), strict=True))

    other = a.conj().resolve_conj()
    for candidate in weft.plan("mk,nk->mn", a, other).report().candidates:
        schedule = candidate.schedule
        assert error(weft.contract("mk,nk->mn", a, other, schedule=schedule)) <= RATIO * error(a @ other.T)
