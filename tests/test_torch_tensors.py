"""Tensors that torch treats specially: quantized, nested, negative, dual and transformed ones, and other defaults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad

import weft
from weft.testing import expectation

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # torch says that some of these are new

X, Y = torch.rand(3, 4) + 1, torch.rand(4, 5) + 1

CALLS: dict[str, Callable[[torch.Tensor], Any]] = {
    "contract": lambda x: weft.contract("ab,bc->ac", x, Y),
    "einsum of one": lambda x: weft.einsum("ab->a", x),
    "einsum of two": lambda x: weft.einsum("ab,bc->ac", x, Y),
    "einsum that moves": lambda x: weft.einsum("ab->ba", x),
    "matmul": lambda x: weft.matmul(x, Y),
    "permute": lambda x: weft.permute(x, "ab->ba"),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_what_has_no_plain_memory_is_refused(call: Callable[[torch.Tensor], Any]) -> None:
    quantized = torch.quantize_per_tensor(X, 0.1, 0, torch.qint8)
    with pytest.raises(weft.UnsupportedError, match=r"is quantized \(qint8\)"):
        call(quantized)
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    with pytest.raises(weft.UnsupportedError, match="is nested"):
        call(nested)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_derivatives_and_transforms_are_seen_and_none_is_lost(call: Callable[[torch.Tensor], Any]) -> None:
    expected, tangent = call(X), call(torch.ones_like(X))  # every call here is linear
    with forward_ad.dual_level():
        dual = forward_ad.unpack_dual(call(forward_ad.make_dual(X, torch.ones_like(X))))
        torch.testing.assert_close((dual.primal, dual.tangent), (expected, tangent))
        assert torch.equal(call(X), expected)
    torch.testing.assert_close(torch.func.jvp(call, (X,), (torch.ones_like(X),)), (expected, tangent))
    slope = torch.func.grad(lambda x: call(x).sum())(X)
    torch.testing.assert_close((slope * X).sum(), expected.sum())
    several = torch.vmap(call)(torch.stack([X, 2 * X]))
    torch.testing.assert_close(several, torch.stack([expected, 2 * expected]))


def test_a_plan_of_a_negative_view_runs_on_it() -> None:
    negative = torch._neg_view(X)
    assert torch.equal(weft.plan("ab,bc->ac", negative, Y)(negative, Y), weft.contract("ab,bc->ac", -X, Y))
    imaginary = torch.complex(X, X).conj().imag  # negative, and with gaps
    assert torch.equal(weft.plan("ab,bc->ac", imaginary, Y)(imaginary, Y), weft.contract("ab,bc->ac", -X, Y))


def test_where_torch_makes_new_tensors_by_default_is_of_no_matter() -> None:
    """A default that holds no values stands for a GPU that this machine lacks."""
    product, bound = weft.contract("ab,bc->ac", X, Y), weft.error_bound("ab,bc->ac", X, Y)
    square = torch.arange(81.0).reshape(9, 9)
    with torch.device("meta"):
        assert torch.equal(weft.contract("ab,bc->ac", X, Y, validate=True), product)
        assert torch.equal(weft.error_bound("ab,bc->ac", X, Y), bound)
        oracle = weft.contract("ab,bc->ac", X, Y, backend="reference")
        assert torch.allclose(oracle, product)
        for backend in ("cpu", "reference"):
            moved = weft.permute(X, "ab->ba", fn=torch.tanh, alpha=2.0, backend=backend)
            assert torch.allclose(moved, 2 * torch.tanh(X).T)
        assert torch.equal(weft.transpose_(square.clone()), square.T)
        assert torch.equal(weft.transpose_(square.clone()[:4]), square[:4].T)
        assert expectation("ab,bc->ac", X, Y)[0].device.type == "cpu"


@pytest.mark.parametrize("name", ["uint4", "bits8", "float4_e2m1fn_x2"])
def test_types_without_numbers_are_refused_before_anything_is_made_of_them(name: str) -> None:
    with pytest.raises(weft.UnsupportedError, match=f"operands of type {name} are not supported"):
        weft.einsum("ab->a", torch.empty(3, 4, dtype=getattr(torch, name)))


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_unsigned_integers_are_scaled_and_added_to(dtype: torch.dtype, backend: str) -> None:
    for x in (torch.tensor([5, 6], dtype=dtype), torch.tensor([5, 6], dtype=torch.int32)):
        out = torch.full((2,), 3, dtype=dtype)
        weft.permute(x, "a->a", c=out, out=out, alpha=3, beta=2, backend=backend)
        assert out.tolist() == [21, 24]


def test_unsigned_integers_that_triton_is_not_taught_are_refused() -> None:
    x, out = torch.tensor([5, 6], dtype=torch.uint16), torch.full((2,), 3, dtype=torch.uint16)
    with pytest.raises(weft.UnsupportedError, match="uint16 has no Triton type here"):
        weft.permute(x, "a->a", c=out, out=out, alpha=3, beta=2, backend="triton")
    assert weft.permute(x, "a->ba", extents={"b": 2}, backend="triton").tolist() == [[5, 6], [5, 6]]


def _chain(x: torch.Tensor, y: torch.Tensor) -> Any:
    state = weft.tn.tebd(weft.tn.MPS.random(4, 2, 4), weft.tn.ising_bonds(4), step=-0.1, steps=1, max_bond=4).state
    return weft.tn.dmrg(weft.tn.heisenberg(4), state, max_bond=8, sweeps=2).state.entropy(1)


def _charged(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    leg = weft.blocks.Leg(weft.blocks.U1, {0: 2, 1: 3})
    tensor = weft.blocks.ChargedTensor.random([leg, leg.dual], dtype=torch.float64, seed=1)
    return weft.blocks.split(tensor.permute(1, 0), 1, max_bond=3).left.to_dense().abs()


def _attention(x: torch.Tensor, y: torch.Tensor) -> Any:
    q, k = x.repeat(100, 1), y.T.repeat(140, 1)
    return weft.cascade("id,jd->ij, ij,je->ie", q, k, k, between=lambda value: weft.softmax(value, "j"))


def _plus(value: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, float]:
    return value + row, torch.where(value > 2, value, torch.full((), 0.5)), 2.0


ON_ANOTHER_DEVICE: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "functions": lambda x, y: weft.contract("ab,bc->ac", x, y, epilogue=_plus, indices={"row": "a"}),
    "an algebra": lambda x, y: weft.contract("ab,bc->ac", x, y, algebra="log", epilogue=lambda value: value * 1.5),
    "places": lambda x, y: weft.contract("ab,bc->ac", x, y, algebra="max_plus", return_arg=True)[1],
    "a number": lambda x, y: weft.einsum(",ab->ab", 2.5, x),
    "ragged": lambda x, y: weft.contract(
        "bjd,bde->bje", x, y[None].repeat(2, 1, 1), ragged={"j": torch.tensor([0, 1, 3], device="cpu")}
    ),
    "a group": lambda x, y: weft.grouped("ab,bc->ac", [(x, y), (x[:2], y)]),
    "a network": lambda x, y: weft.einsum("ab,bc,cd->ad", x, y, y.T.contiguous()),
    "a cascade": _attention,
    "a chain": _chain,
    "charges": _charged,
    "the reference": lambda x, y: weft.reference.contract("ab,bc->ac", x, y, epilogue=lambda value: value * 2),
}  # fmt: skip


@pytest.mark.parametrize("tiers", ["0", "1"])
@pytest.mark.parametrize("call", ON_ANOTHER_DEVICE.values(), ids=ON_ANOTHER_DEVICE)
def test_the_default_device_of_a_program_moves_nothing(
    call: Callable[[torch.Tensor, torch.Tensor], Any], tiers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_TIERS", tiers)
    for _ in range(12 if tiers == "1" else 2):
        x, y = torch.rand(3, 4, dtype=torch.float64), torch.rand(4, 5, dtype=torch.float64)
        with torch.device("meta"):
            found = call(x, y)
        torch.testing.assert_close(found, call(x, y))
