"""Conversions are torch's own in every tier, out of range as well: saturating, wrapping or NaN as the type has it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import weft
from support import Backend

SOURCES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
TYPES = (
    torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float16, torch.bfloat16, torch.float32,
)  # fmt: skip
VALUES = (
    math.nan, math.inf, -math.inf, 1e39, 3000000001.0, -3000000001.0, 2.0**31, -(2.0**31) - 1, 2.0**32 + 5, 2.0**63,
    1e19, -1e19, 2.0**40 + 77, 300.7, -300.7, 200.0, -1.5, -0.5, 479.55, 464.0, 465.0, 449.0, -1e4, 6e4, 61440.0,
    61441.0, 65520.0, 7e4, -4e4, 1e-9, 2.0**-17 * 1.01, 3e-8,
)  # fmt: skip
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def values(source: torch.dtype, device: str) -> Tensor:
    return torch.tensor(VALUES, dtype=torch.float64).to(source).to(device)


def to_all(value: Tensor) -> tuple[Tensor, ...]:
    return tuple(value.to(dtype) for dtype in TYPES)


def and_back(value: Tensor) -> Tensor:
    """Conversions within a function: one number for all of them, whatever they make of it."""
    found = value.to(torch.float64) * 0
    for at, dtype in enumerate(TYPES):
        back = value.to(dtype).to(torch.float64)
        special = torch.where(back > 0, 3.0, torch.where(back < 0, 5.0, 7.0))
        back = torch.where(back.isfinite(), back * 2.0**-60, special)
        found = found.nan_to_num(0.0) + (at + 1) * back
    return found


def contracted(x: Tensor, **options: Any) -> list[Tensor]:
    one = torch.ones(1, 1, dtype=x.dtype, device=x.device)
    found = weft.contract("ik,kj->ij", x[:, None], one, epilogue=to_all, out_dtype=TYPES, **options)
    return [each[:, 0] for each in found]


def permuted(x: Tensor, **options: Any) -> list[Tensor]:
    rows = x.expand(3, -1).contiguous()
    return [
        weft.permute("ij->ji", rows, fn=lambda value, to=dtype: value.to(to), out_dtype=dtype, **options)[:, 1]
        for dtype in TYPES
    ]


def stored(x: Tensor, **options: Any) -> list[Tensor]:
    """The types of results that need no function."""
    one = torch.ones(1, 1, dtype=x.dtype, device=x.device)
    options.pop("specialize", None)
    return [
        each
        for dtype in FP8
        for each in (
            weft.contract("ik,kj->ij", x[:, None], one, out_dtype=dtype, **options)[:, 0],
            weft.permute("ij->ji", x.expand(3, -1).contiguous(), out_dtype=dtype, **options)[:, 2],
            weft.grouped("ik,kj->ij", [(x[:, None], one)] * 2, out_dtype=dtype, **options)[1][:, 0],
        )
    ]


def within(x: Tensor, **options: Any) -> list[Tensor]:
    one = torch.ones(1, 1, dtype=x.dtype, device=x.device)
    return [weft.contract("ik,kj->ij", x[:, None], one, epilogue=and_back, out_dtype=torch.float64, **options)[:, 0]]


DOORS: dict[str, tuple[Callable[..., list[Tensor]], Callable[[Tensor], list[Tensor]]]] = {
    "contract": (contracted, lambda x: list(to_all(x))),
    "permute": (permuted, lambda x: list(to_all(x))),
    "stored": (stored, lambda x: [x.to(dtype) for dtype in FP8 for _ in range(3)]),
    "within": (within, lambda x: [and_back(x)]),
}


def check(door: str, source: torch.dtype, device: str, **options: Any) -> None:
    x = values(source, device)
    call, right = DOORS[door]
    for found, wanted in zip(call(x, **options), right(x), strict=True):
        assert found.dtype == wanted.dtype
        same = torch.equal if not wanted.is_floating_point() else _equal
        assert same(found, wanted), (str(wanted.dtype), x[(found != wanted).nonzero()], found[found != wanted])


def _equal(found: Tensor, wanted: Tensor) -> bool:
    return torch.equal(*(each.double().nan_to_num(1e300, 2e300, -2e300) for each in (found, wanted)))


@pytest.mark.one_of(3)
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("source", SOURCES, ids=str)
def test_in_kernels(backend: Backend, source: torch.dtype, door: str) -> None:
    check(door, source, backend.device, backend=backend.name)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("source", SOURCES, ids=str)
def test_in_torch_operations(source: torch.dtype, door: str) -> None:
    check(door, source, "cpu", backend="cpu", specialize="library")


@pytest.mark.parametrize("source", SOURCES[:2], ids=str)
def test_in_cascades(source: torch.dtype) -> None:
    x = values(source, "cpu")
    one = torch.ones(1, 1, dtype=source)

    def between(scores: Tensor) -> Tensor:
        return and_back(scores).to(source)

    for _ in range(3):
        found = weft.cascade("ik,jk->ij, ij,je->ie", x[:, None], one, one, between=between, specialize="now")
        assert _equal(found[:, 0], between(x))
