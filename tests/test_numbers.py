"""The table of docs/numbers.md against the code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from weft.planner.registry import families
from weft.planner.schedule import Target
from weft.spec.dtypes import PRECISIONS

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
