"""Gradients on a GPU: the shared list in float64, float32 and complex64, layers in half precision, larger shapes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

import weft
from autograd.differentiated import ALGEBRAS, FUNCTIONS, FUSED, OTHERS, PRODUCTS, Case

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
F64, F32, C64 = torch.float64, torch.float32, torch.complex64
ONLY_COMPLEX = ("parts of complex numbers", "a complex factor")
#: Functions of complex values that have no code for GPUs.
NO_CODE = ("modes of one operand, functions", "extents of 1", "conjugates", "dot", "functions everywhere", "permute")
CASES = [case for case in (*PRODUCTS, *FUSED, *OTHERS, *FUNCTIONS, *ALGEBRAS) if case.expected is not None]
RUNS = [
    *[pytest.param(case, F64, id=f"{case.name}, float64") for case in CASES if case.name not in ONLY_COMPLEX],
    *[pytest.param(case, F32, id=f"{case.name}, float32") for case in CASES if case.name not in ONLY_COMPLEX],
    *[pytest.param(case, C64, id=f"{case.name}, complex64") for case in CASES
      if case.complex_too and case.name not in NO_CODE],
]  # fmt: skip


def results(found: Any) -> tuple[torch.Tensor, ...]:
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.parametrize(("case", "dtype"), RUNS)
def test_gradients_are_those_of_torch(case: Case, dtype: torch.dtype) -> None:
    """Against torch in double precision, on the CPU."""
    wide = torch.complex128 if dtype.is_complex else F64
    assert case.expected is not None
    truth = case.tensors(wide)
    exact = results(case.expected(*truth))
    grads = [torch.randn_like(each) for each in exact]
    expected = torch.autograd.grad(exact, truth, grads)
    tensors = [each.detach().to(DEVICE, dtype).requires_grad_() for each in truth]
    mine = results(case.call(*tensors))
    found = torch.autograd.grad(mine, tensors, [g.to(DEVICE, x.dtype) for g, x in zip(grads, mine, strict=True)])
    bound = {"rtol": 1e-7, "atol": 1e-7} if dtype is F64 else {"rtol": 2e-4, "atol": 2e-4}
    for have, want in zip(found, expected, strict=True):
        assert have.dtype == dtype
        torch.testing.assert_close(have.cpu().to(wide), want, **bound)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(64, 128, 96), (1000, 520, 264), (129, 65, 33)])
def test_layers_in_half_precision(dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
    """No further from the truth than torch's own in that type, but for half as much and a unit of the last place."""
    m, n, k = shape
    made = torch.Generator(DEVICE).manual_seed(m)
    given = [torch.randn(s, generator=made, device=DEVICE) / 4 for s in ((m, k), (n, k), (n,))]
    grad = torch.randn(m, n, generator=made, device=DEVICE).to(dtype)

    def mine(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> Any:
        return weft.contract("mk,nk->mn", x, w, epilogue=lambda s, u: F.gelu(s + u), operands={"u": ("n", u)})

    def theirs(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> Any:
        return F.gelu(F.linear(x, w, u))

    def gradients(call: Any, kind: torch.dtype) -> tuple[torch.Tensor, ...]:
        tensors = [each.to(dtype).to(kind).requires_grad_() for each in given]
        return torch.autograd.grad(call(*tensors), tensors, grad.to(kind))

    runs = gradients(theirs, F64), gradients(mine, dtype), gradients(theirs, dtype)
    for wide, have, torchs in zip(*runs, strict=True):
        unit = wide.abs().max() * torch.finfo(dtype).eps
        assert (have - wide).abs().max() <= 1.5 * (torchs - wide).abs().max() + 2 * unit


@pytest.mark.parametrize("algebra", ["max_plus", "log"])
def test_algebras_at_sizes_of_many_tiles(algebra: str) -> None:
    a = torch.randn(300, 200, dtype=F64, device=DEVICE, requires_grad=True)
    b = torch.randn(200, 260, dtype=F64, device=DEVICE, requires_grad=True)
    grad = torch.randn(300, 260, dtype=F64, device=DEVICE)
    pairs = a[:, :, None] + b
    expected = torch.autograd.grad(pairs.amax(1) if algebra == "max_plus" else pairs.logsumexp(1), (a, b), grad)
    found = torch.autograd.grad(weft.contract("mk,kn->mn", a, b, algebra=algebra), (a, b), grad)
    torch.testing.assert_close(found, expected)


def test_gradients_do_not_change_from_run_to_run() -> None:
    a, b = torch.randn(512, 256, device=DEVICE), torch.randn(256, 512, device=DEVICE)
    for algebra in ("plus_times", "max_plus", "log"):
        runs = []
        for _ in range(3):
            x, y = a.clone().requires_grad_(), b.clone().requires_grad_()
            weft.contract("mk,kn->mn", x, y, algebra=algebra).square().sum().backward()
            runs.append((x.grad, y.grad))
        for again in runs[1:]:
            assert torch.equal(again[0], runs[0][0])
            assert torch.equal(again[1], runs[0][1])


def test_memory_of_a_layer() -> None:
    """Relu keeps nothing beside D: forward and backward take no more than D, G and the gradients."""
    x, w = (torch.randn(2048, 2048, dtype=torch.float16, device=DEVICE, requires_grad=True) for _ in range(2))
    grad = torch.randn(2048, 2048, dtype=torch.float16, device=DEVICE)

    def run() -> None:
        torch.autograd.grad(weft.contract("mk,nk->mn", x, w, epilogue=torch.relu), (x, w), grad)

    run()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    assert torch.cuda.max_memory_allocated() - before <= 4.5 * grad.nbytes
