"""Products over which one operand is spread as a batch without a step: no copies, and the same values."""

from __future__ import annotations

import json
from math import exp, log
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from weft.library import family
from weft.planner.schedule import Target

RECORD = Path(__file__).parents[2] / "results" / "h200" / "spread.json"
P, Q, B, C = 6, 16, 9, 20


def tensors(equation: str, dtype: torch.dtype = torch.float32, **extents: int) -> list[torch.Tensor]:
    sizes = {"p": P, "q": Q, "b": B, "c": C, "a": 3} | extents
    torch.manual_seed(1)
    return [torch.randn([sizes[label] for label in term]).to(dtype) for term in equation.partition("->")[0].split(",")]


def planned(equation: str, given: list[torch.Tensor], **options: Any) -> weft.Plan:
    return weft.plan(equation, *given, backend="cpu", specialize="library", **options)


@pytest.mark.parametrize(
    "equation",
    ["pq,bqc->bpc", "bqc,pq->bpc", "qp,bqc->bpc", "bqc,qp->bpc", "pq,abqc->abpc", "bpq,qc->bcp", "bqp,cq->bcp"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64], ids=str)
def test_values_without_copies(equation: str, dtype: torch.dtype) -> None:
    given = tensors(equation, dtype, p=20)
    plan = planned(equation, given)
    assert plan.workspace_bytes == 0
    exact = torch.complex128 if dtype.is_complex else torch.float64
    right = torch.einsum(equation, *(tensor.to(exact) for tensor in given))
    out = torch.full(right.shape, torch.nan, dtype=dtype)
    assert plan(*given, out=out) is out
    torch.testing.assert_close(out.to(exact), right, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(plan(*given), out)


def test_with_c_factors_functions_and_strides() -> None:
    equation = "pq,bqc->bpc"
    given = tensors(equation, torch.float64)
    right = torch.einsum(equation, *given)
    addend = torch.randn(B, P, C, dtype=torch.float64)
    found = weft.contract(equation, *given, c=addend, alpha=2.0, beta=3.0, backend="cpu", specialize="library")
    torch.testing.assert_close(found, 2 * right + 3 * addend)
    mapped = weft.contract(equation, *given, a_fn=torch.tanh, epilogue=torch.relu, backend="cpu", specialize="library")
    torch.testing.assert_close(mapped, torch.einsum(equation, given[0].tanh(), given[1]).relu())
    a, b = torch.randn(2 * P, Q, dtype=torch.float64)[::2], torch.randn(B, Q, 2 * C, dtype=torch.float64)[..., :C]
    out = torch.full((2 * B, P, C), torch.nan, dtype=torch.float64)
    weft.contract(equation, a, b, out=out[::2], backend="cpu", specialize="library")
    torch.testing.assert_close(out[::2], torch.einsum(equation, a, b))
    assert out[1::2].isnan().all()


@pytest.mark.parametrize(
    ("extents", "dtype"),
    [({"c": 8}, torch.float32), ({"p": 200, "q": 200}, torch.float32), ({"p": 40, "q": 40}, torch.float64),
     ({"p": 2, "q": 2}, torch.float32)],
    ids=["few columns", "large matrix", "double", "small products"],
)  # fmt: skip
def test_copies_where_they_are_faster(extents: dict[str, int], dtype: torch.dtype) -> None:
    given = tensors("pq,bqc->bpc", dtype, **extents)
    plan = planned("pq,bqc->bpc", given)
    assert plan.workspace_bytes > 0
    exact = torch.einsum("pq,bqc->bpc", *(tensor.double() for tensor in given))
    torch.testing.assert_close(plan(*given).double(), exact, rtol=1e-5, atol=1e-4)


def test_empty_and_single_extents() -> None:
    for extents in ({"b": 0}, {"b": 1}, {"q": 0}, {"p": 1}, {"c": 0}):
        given = tensors("pq,bqc->bpc", **extents)
        torch.testing.assert_close(planned("pq,bqc->bpc", given)(*given), torch.einsum("pq,bqc->bpc", *given))


def test_a_gpu_takes_what_was_measured_to_be_faster() -> None:
    taken = []
    for row in json.loads(RECORD.read_text())["rows"]:
        dtype = getattr(torch, row["dtype"].removeprefix("torch."))
        given = [torch.empty(shape, dtype=dtype, device="meta") for shape in row["shapes"]]
        contraction = weft.plan(row["equation"], *given, backend="reference").contraction
        if family.schedules(contraction, Target("cuda", capability=90)).schedules[0].workspace_bytes == 0:
            taken.append(row["spread"] / row["copies"])
    assert len(taken) > 100
    assert max(taken) < 1
    assert exp(sum(map(log, taken)) / len(taken)) < 0.5
