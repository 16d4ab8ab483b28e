"""Cascades that are torch's attention: which are, their values and gradients, and what torch's kernels do not have."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import weft

EQUATION = "bhqd,bhkd->bhqk, bhqk,bhke->bhqe"
Fn = Callable[..., Tensor]


def softmax(s: Tensor) -> Tensor:
    return weft.softmax(s, "k")


def up_to_the_row(s: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return weft.softmax(torch.where(j <= i, s, -math.inf), "k")


SPELLED: dict[str, Fn] = {
    "softmax": softmax,
    "scaled": lambda s: weft.softmax(0.5 * s / 4, "k"),
    "where": up_to_the_row,
    "turned": lambda s, i, j: weft.softmax(torch.where(i >= j, s, -math.inf), "k"),
    "beyond": lambda s, i, j: weft.softmax(torch.where(j > i, -math.inf, s), "k"),
    "masked_fill": lambda s, i, j: weft.softmax(s.masked_fill(i < j, -math.inf), "k"),
    "scaled within": lambda s, i, j: weft.softmax(torch.where(j <= i, 2 * s, -math.inf), "k"),
}
OTHERS: dict[str, Fn] = {
    "squares": lambda s: weft.softmax(s * s, "k"),
    "over rows": lambda s: weft.softmax(s, "q"),
    "strictly": lambda s, i, j: weft.softmax(torch.where(j < i, s, -math.inf), "k"),
    "the other triangle": lambda s, i, j: weft.softmax(torch.where(j >= i, s, -math.inf), "k"),
    "another value": lambda s, i, j: weft.softmax(torch.where(j <= i, s, -1e4), "k"),
    "a window": lambda s, i, j: weft.softmax(torch.where((j <= i) & (i - j < 8), s, -math.inf), "k"),
    "twice": lambda s: 2 * weft.softmax(s, "k"),
    "two results": lambda s: (weft.softmax(s, "k"), weft.logsumexp(s, "k")),
}


def words(fn: Fn) -> dict[str, Any]:
    return {"indices": {"i": "q", "j": "k"}} if fn.__code__.co_argcount > 1 else {}


def tensors(q: int = 300, k: int = 290, dtype: torch.dtype = torch.float32, device: str = "cpu") -> list[Tensor]:
    draw = torch.Generator().manual_seed(q + k)
    shapes = ((2, 3, q, 16), (2, 3, k, 16), (2, 3, k, 16))
    return [torch.randn(shape, generator=draw).to(device, dtype).requires_grad_() for shape in shapes]


def is_torchs(fn: Fn, given: list[Tensor], **options: Any) -> bool:
    return "scaled_dot_product" in weft.plan_cascade(EQUATION, *given, between=fn, **words(fn), **options).explain()


def with_gradients(fn: Fn, given: list[Tensor], **options: Any) -> list[Tensor]:
    found = weft.cascade(EQUATION, *given, between=fn, alpha=0.3, **words(fn), **options)
    weights = torch.linspace(-1, 1, found.shape[-1], dtype=found.dtype, device=found.device).expand_as(found)
    return [found, *torch.autograd.grad(found, given, weights)]


@pytest.mark.parametrize("name", SPELLED)
@pytest.mark.parametrize("rows", [300, 31])
def test_values_and_gradients(name: str, rows: int) -> None:
    fn = SPELLED[name]
    given = tensors(rows)
    assert is_torchs(fn, given)
    wide = [each.detach().double().requires_grad_() for each in given]
    expected = with_gradients(fn, wide, backend="reference")
    for _ in range(3):
        for own, want in zip(with_gradients(fn, given), expected, strict=True):
            torch.testing.assert_close(own.double(), want, rtol=2e-5, atol=2e-5)
        with torch.no_grad():
            found = weft.cascade(EQUATION, *given, between=fn, alpha=0.3, **words(fn))
        torch.testing.assert_close(found.double(), expected[0], rtol=2e-5, atol=2e-5)
        found.mul_(2)  # no view: it may be written
        assert found.is_contiguous()


@pytest.mark.parametrize("name", OTHERS)
def test_other_functions_are_not(name: str) -> None:
    given = tensors(64, 64)
    assert not is_torchs(OTHERS[name], given)


def test_other_calls_are_not() -> None:
    given = tensors(64, 64)
    for options in ({"backend": "reference"}, {"workspace_limit": 1 << 20}, {"out_dtype": torch.float64}):
        assert not is_torchs(softmax, given, **options)
    assert not is_torchs(softmax, [given[0], given[1], given[2][..., :8]])  # torch would make all of S
    assert not is_torchs(softmax, [each.half() for each in given])
    assert not is_torchs(softmax, tensors(64, 0))


@pytest.mark.parametrize("causal", [False, True])
def test_layouts_and_groups_of_heads(causal: bool) -> None:
    """Modes in another order, several of each kind, keys that heads share, and columns that lie apart."""
    fn = up_to_the_row if causal else softmax
    for equation, shapes in (
        ("qd,kd->qk, qk,ke->eq", ((50, 8), (40, 8), (40, 8))),
        ("bqhd,bkhd->bhqk, bhqk,bkhe->bqhe", ((2, 50, 3, 8), (2, 40, 3, 8), (2, 40, 3, 8))),
        ("bqhgd,bkhd->bhgqk, bhgqk,bkhe->bqhge", ((2, 50, 3, 2, 8), (2, 40, 3, 8), (2, 40, 3, 8))),
        ("bhqd,bhkd->bhqk, bhqk,bhke->bhqe", ((2, 3, 50, 8), (2, 1, 40, 8), (2, 1, 40, 8))),
        ("abhqcd,abhkcd->abhqk, abhqk,abhke->abhqe", ((2, 1, 3, 50, 2, 4), (2, 1, 3, 40, 2, 4), (2, 1, 3, 40, 8))),
        ("kd,qd->kq, kq,ke->qe", ((40, 8), (50, 8), (40, 8))),
    ):
        given = [torch.randn(*shape[:-1], 2 * shape[-1], dtype=torch.float64)[..., ::2] for shape in shapes]
        found = weft.cascade(equation, *given, between=fn, **words(fn))
        wanted = weft.cascade(equation, *given, between=fn, backend="reference", **words(fn))
        torch.testing.assert_close(found, wanted)


def test_it_has_second_derivatives() -> None:
    given = tensors(200, 210, torch.float64)
    assert is_torchs(softmax, given)

    def squared(backend: str) -> list[Tensor]:
        found = weft.cascade(EQUATION, *given, between=softmax, backend=backend)
        (first,) = torch.autograd.grad(found.square().sum(), given[:1], create_graph=True)
        return list(torch.autograd.grad(first.square().sum(), given))

    for own, want in zip(squared("auto"), squared("reference"), strict=True):
        torch.testing.assert_close(own, want)


def test_a_graph_goes_twice_and_checkpoints_make_it_again() -> None:
    given = tensors()
    found = weft.cascade(EQUATION, *given, between=softmax)
    first, second = (torch.autograd.grad(found.sum(), given, retain_graph=True) for _ in range(2))
    again = torch.utils.checkpoint.checkpoint(
        lambda *each: weft.cascade(EQUATION, *each, between=softmax), *given, use_reentrant=False
    )
    for one, two, three in zip(first, second, torch.autograd.grad(again.sum(), given), strict=True):
        assert torch.equal(one, two)
        torch.testing.assert_close(one, three)


def test_a_result_that_is_written_has_no_gradient() -> None:
    given = tensors()
    found = weft.cascade(EQUATION, *given, between=softmax)
    found.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        found.sum().backward()


def test_forward_mode_is_refused() -> None:
    given = tensors()
    with pytest.raises(weft.UnsupportedError, match="forward mode"):
        torch.func.jvp(lambda q: weft.cascade(EQUATION, q, *given[1:], between=softmax), (given[0],), (given[0],))


@pytest.mark.gpu
@pytest.mark.parametrize("name", SPELLED)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_on_a_gpu(name: str, dtype: torch.dtype) -> None:
    """From the first call on; gradients of fixed bits are weft's own."""
    fn = SPELLED[name]
    given, room = tensors(dtype=dtype, device="cuda"), 4e-3 if dtype == torch.float16 else 3e-2
    assert is_torchs(fn, given, specialize="auto")
    expected = with_gradients(fn, [each.detach().double().requires_grad_() for each in given], backend="reference")
    for fixed in (False, True):
        torch.use_deterministic_algorithms(fixed)
        try:
            found = with_gradients(fn, given)
        finally:
            torch.use_deterministic_algorithms(False)
        for own, want in zip(found, expected, strict=True):
            assert (own.double() - want).abs().max() < room * want.abs().max().clamp(min=1)
