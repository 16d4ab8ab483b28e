"""fp8 operands: storage in one byte, products exact in float16, sums in float32, scales as operands of functions."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import weft
from support import Backend
from weft import functions
from weft.testing import assert_close, expectation, random_operand

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
PAIRS = [(E4M3, E4M3), (E5M2, E5M2), (E4M3, E5M2), (E5M2, E4M3)]
RESULTS = [torch.float16, torch.bfloat16, torch.float32]


def operands(backend: Backend, dtypes: tuple[torch.dtype, torch.dtype] = (E4M3, E4M3)) -> tuple[torch.Tensor, ...]:
    shapes = ((24, 3, 40), (40, 18)) if not backend.interpreted else ((5, 3, 20), (20, 9))
    return tuple(
        random_operand(shape, dtype, seed, device=backend.device)
        for seed, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True))
    )


@pytest.mark.parametrize("result", RESULTS, ids=str)
@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_every_pair_and_result(backend: Backend, pair: tuple[torch.dtype, torch.dtype], result: torch.dtype) -> None:
    if backend.interpreted and pair[0] is pair[1] and result is torch.float16:
        pytest.skip("results of half precision are interpreted of mixed pairs")
    a, b = operands(backend, pair)
    d = weft.contract("mxk,kn->nmx", a, b, out_dtype=result, backend=backend.name)
    assert d.dtype == result
    reference, bound = expectation("mxk,kn->nmx", a, b, out_dtype=result)
    assert_close(d, reference, bound)
    exact = torch.einsum("mxk,kn->nmx", a.double(), b.double())
    assert torch.equal(reference, exact)


def test_products_are_exact(backend: Backend) -> None:
    """Every finite value of both types times 1."""
    values = torch.arange(256, dtype=torch.uint8, device=backend.device)
    for dtype in (E4M3, E5M2):
        every = values.view(dtype)
        every = every[every.float().isfinite()]
        one = torch.ones(1, dtype=dtype, device=backend.device)
        d = weft.contract("m,n->mn", every, one, out_dtype=torch.float32, backend=backend.name)
        assert torch.equal(d[:, 0], every.float())


def test_scales_by_tensor_and_by_mode(backend: Backend) -> None:
    """The recipe of docs/numbers.md: scales of rows and columns multiply the float32 sums."""
    a, b = operands(backend)
    row = torch.rand(a.shape[0], device=backend.device) + 0.5
    column = torch.rand(b.shape[1], device=backend.device) + 0.5
    whole = torch.tensor(0.25, device=backend.device)

    def dequantise(total: torch.Tensor, row: torch.Tensor, column: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
        return total * row * column * whole

    options: dict[str, Any] = {
        "epilogue": dequantise, "out_dtype": torch.float16,
        "operands": {"row": ("m", row), "column": ("n", column), "whole": ("", whole)},
    }  # fmt: skip
    d = weft.contract("mxk,kn->mxn", a, b, **options, backend=backend.name)
    assert_close(d, *expectation("mxk,kn->mxn", a, b, **options))


def test_scales_along_the_sum(backend: Backend) -> None:
    """Blocks of k scaled one by one: the function of A works in float16, or in a wider type that is asked for."""
    a, b = operands(backend)
    scale = torch.rand(a.shape[2], device=backend.device) + 0.5
    for precision in (None, torch.float32):
        options: dict[str, Any] = {
            "a_fn": functions.scale, "operands": {"scale": ("k", scale)}, "out_dtype": torch.float32,
            "precision": precision,
        }  # fmt: skip
        d = weft.contract("mxk,kn->mxn", a, b, **options, backend=backend.name)
        assert_close(d, *expectation("mxk,kn->mxn", a, b, **options))


def test_own_products(backend: Backend) -> None:
    a, b = operands(backend)
    options: dict[str, Any] = {"out_dtype": torch.float32, "precision": E4M3}
    d = weft.contract("mxk,kn->mxn", a, b, **options, backend=backend.name)
    assert_close(d, *expectation("mxk,kn->mxn", a, b, **options))


def test_c_and_results_may_be_fp8(backend: Backend) -> None:
    a, b = operands(backend)
    c = random_operand((a.shape[0], a.shape[1], b.shape[1]), E5M2, 5, device=backend.device)
    options: dict[str, Any] = {"epilogue": functions.saturate(E4M3), "out_dtype": E4M3, "alpha": 0.1}
    d = weft.contract("mxk,kn->mxn", a, b, c=c, **options, backend=backend.name)
    assert d.dtype == options["out_dtype"]
    assert_close(d, *expectation("mxk,kn->mxn", a, b, c=c, **options))


class TestRefused:
    def test_a_result_of_no_stated_type(self) -> None:
        a = torch.ones(2, 2).to(E4M3)
        with pytest.raises(weft.DTypeError, match=r"float8_e4m3fn operands need out_dtype.*torch.float16"):
            weft.contract("mk,kn->mn", a, a)

    def test_functions_of_fp8_values(self) -> None:
        a = torch.ones(2, 2).to(E4M3)
        with pytest.raises(weft.DTypeError, match="a_fn cannot compute in float8_e4m3fn: leave precision out"):
            weft.contract("mk,kn->mn", a, a, out_dtype=torch.float32, precision=E4M3, a_fn=torch.tanh)

    @pytest.mark.parametrize("dtypes", [(E4M3, E5M2), (torch.float16, torch.float16), (E5M2, E5M2)], ids=str)
    def test_rounding_to_fp8_products(self, dtypes: tuple[torch.dtype, torch.dtype]) -> None:
        a, b = (torch.ones(2, 2).to(dtype) for dtype in dtypes)
        with pytest.raises(weft.DTypeError, match="products in float8_e4m3fn are of two operands of that type"):
            weft.contract("mk,kn->mn", a, b, out_dtype=torch.float32, precision=E4M3)

    def test_other_mixtures(self) -> None:
        with pytest.raises(weft.DTypeError, match="nothing is promoted"):
            weft.contract("mk,kn->mn", torch.ones(2, 2).to(E4M3), torch.ones(2, 2).half(), out_dtype=torch.float16)

    def test_accumulators_other_than_float32(self) -> None:
        a = torch.ones(2, 2).to(E4M3)
        with pytest.raises(weft.DTypeError, match="products accumulate in float32, not in float16"):
            weft.contract("mk,kn->mn", a, a, out_dtype=torch.float32, precision=E4M3, accumulate=torch.float16)
