"""Sums of products of three tensors as one contraction that meets the third."""

from __future__ import annotations

import pytest
import torch

import weft
from weft.cascades.reduced import met, plan_of
from weft.spec import parse

EXTENTS = {"g": 37, "i": 11, "j": 13, "b": 3, "h": 5}


def drawn(equation: str, device: str = "cpu", dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    torch.manual_seed(0)
    terms = equation.split("->")[0].split(",")
    return [torch.randn([EXTENTS[label] for label in term], dtype=dtype, device=device) for term in terms]


@pytest.mark.parametrize(
    "equation", ["ig,ij,jg->g", "ij,ig,jg->g", "gi,jg,ij->g", "big,ij,bjg->gb", "bij,bjg,big->bg", "ghi,ij,jhg->hg"]
)
def test_sums_of_three_are_cascades(equation):
    tensors, notation = drawn(equation), parse(equation)
    how = met(notation)
    assert how is not None
    found = plan_of(how, notation, tensors).run((tensors[how.first], tensors[how.second], tensors[how.third]))
    torch.testing.assert_close(found, torch.einsum(equation, *tensors))


@pytest.mark.parametrize(
    "equation",
    ["ij,jg,gh->ih", "ig,ij,jg->", "ig,ig,ig->g", "ig,ij,jg->gi", "iig,ij,jg->g", "ig,ij,j->g", "ig,ij,jg,g->g"],
)
def test_others_are_not(equation):
    assert met(parse(equation)) is None


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_density_of_orbitals_on_a_grid(dtype):
    """The library's steps and the kernel's, of extents that tiles end within; gradients."""
    orbitals = torch.randn(200, 100_003, dtype=dtype, device="cuda")
    matrix = torch.randn(200, 200, dtype=dtype, device="cuda")
    expected = torch.einsum("ig,ig->g", matrix.double() @ orbitals.double(), orbitals.double())
    scale = float(expected.abs().max())
    for words in ({}, {"precision": "tf32x3"}) if dtype == torch.float32 else ({},):
        for _ in range(40):
            found = weft.einsum("ig,ij,jg->g", orbitals, matrix.T.contiguous(), orbitals, **words)
        torch.cuda.synchronize()
        tolerance = 1e-13 if dtype == torch.float64 else 1e-5
        assert float((found.double() - expected).abs().max()) / scale < tolerance
    matrix.requires_grad_()
    (grad,) = torch.autograd.grad(weft.einsum("ig,ij,jg->g", orbitals, matrix, orbitals).sum(), matrix)
    torch.testing.assert_close(grad, orbitals @ orbitals.T, rtol=1e-4, atol=1e-2 * orbitals.shape[1] ** 0.5)
