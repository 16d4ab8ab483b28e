"""The table of docs/numbers.md against the code, and fp8 operands: exact products in float16, sums in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from support import Backend
from weft import functions
from weft.planner.registry import families
from weft.planner.schedule import Target
from weft.spec.dtypes import PRECISIONS
from weft.testing import assert_close, expectation, random_operand

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "numbers.md").read_text()
H200 = Target("cuda", 0, "NVIDIA H200", 90, 132, 232448)
CPU = Target("cpu")
COLUMNS = ("operands", "option", "products", "sums", "d", "families", "cpu")


def table() -> list[dict[str, str]]:
    table = next(part for part in PAGE.split("\n\n") if part.startswith("| operands "))
    lines = table.splitlines()[2:]
    return [dict(zip(COLUMNS, (cell.strip() for cell in line.strip("|").split("|")), strict=True)) for line in lines]


def named(name: str) -> torch.dtype:
    return getattr(torch, name)


def operands(row: dict[str, str], device: str = "meta", side: int = 512) -> list[torch.Tensor]:
    names = row["operands"].split(", ")
    return [torch.ones(side, side, device=device).to(named(name)) for name in (names[0], names[-1])]


def options(row: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if row["d"] == "must be named":
        found["out_dtype"] = torch.int32 if "int" in row["operands"] else torch.float32
    if row["option"]:
        name, value = row["option"].split("=")
        found[name] = value if value in PRECISIONS else named(value)
    return found


@pytest.mark.parametrize("row", table(), ids=lambda row: f"{row['operands']} {row['option']}")
class TestTable:
    def test_types(self, row: dict[str, str]) -> None:
        a, b = operands(row)
        plan = weft.plan("mk,nk->mn", a, b, **options(row), backend="reference")
        arithmetic = plan.request.arithmetic
        assert (arithmetic.product, arithmetic.accumulate) == (named(row["products"]), named(row["sums"]))
        if row["d"] == "must be named":
            given = {name: value for name, value in options(row).items() if name != "out_dtype"}
            with pytest.raises(weft.DTypeError, match="need out_dtype"):
                weft.plan("mk,nk->mn", a, b, **given, backend="reference")
        else:
            assert plan.dtype == named(row["d"])

    def test_families(self, row: dict[str, str]) -> None:
        pytest.importorskip("triton")
        a, b = operands(row)
        described = weft.plan("mk,nk->mn", a, b, **options(row), backend="reference").contraction
        able = [room.NAME for room in families(described, "triton") if room.supports(described, H200) is None]
        assert row["families"].split(", ") == able
        on_cpu = [room.NAME for room in families(described, "cpu") if room.supports(described, CPU) is None]
        assert (row["cpu"] == "yes") == bool(on_cpu)

    @pytest.mark.parametrize("name", ["reference", "cpu"])
    def test_runs(self, row: dict[str, str], name: str) -> None:
        a, b = operands(row, "cpu", 24)
        d = weft.contract("mk,nk->mn", a, b, **options(row), backend=name, validate=True)
        assert bool((d == 24).all())


def test_every_type_has_a_row() -> None:
    from weft.spec.dtypes import _ACCUMULATORS

    have = {named(name) for row in table() for name in row["operands"].split(", ")}
    assert have == set(_ACCUMULATORS)


E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
PAIRS = [(E4M3, E4M3), (E5M2, E5M2), (E4M3, E5M2), (E5M2, E4M3)]
RESULTS = [torch.float16, torch.bfloat16, torch.float32]


def of_eight_bits(backend: Backend, dtypes: tuple[torch.dtype, torch.dtype] = (E4M3, E4M3)) -> tuple[torch.Tensor, ...]:
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
    a, b = of_eight_bits(backend, pair)
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
    a, b = of_eight_bits(backend)
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
    a, b = of_eight_bits(backend)
    scale = torch.rand(a.shape[2], device=backend.device) + 0.5
    for precision in (None, torch.float32):
        options: dict[str, Any] = {
            "a_fn": functions.scale, "operands": {"scale": ("k", scale)}, "out_dtype": torch.float32,
            "precision": precision,
        }  # fmt: skip
        d = weft.contract("mxk,kn->mxn", a, b, **options, backend=backend.name)
        assert_close(d, *expectation("mxk,kn->mxn", a, b, **options))


def test_own_products(backend: Backend) -> None:
    a, b = of_eight_bits(backend)
    options: dict[str, Any] = {"out_dtype": torch.float32, "precision": E4M3}
    d = weft.contract("mxk,kn->mxn", a, b, **options, backend=backend.name)
    assert_close(d, *expectation("mxk,kn->mxn", a, b, **options))


def test_c_and_results_may_be_fp8(backend: Backend) -> None:
    a, b = of_eight_bits(backend)
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
