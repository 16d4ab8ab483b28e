"""`weft.nn.Attention` against the same in torch's operations."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

import weft
from weft.fn.fingerprint import fingerprint
from weft.nn.attention import _between

X = torch.randn(2, 9, 24, dtype=torch.float64)


def plainly(layer: weft.nn.Attention, x: Tensor, mask: Tensor | None = None, context: Tensor | None = None) -> Tensor:
    """By torch's own attention, heads of keys repeated."""
    source = x if context is None else context
    q, k, v = (
        part(one).unflatten(-1, (-1, layer.width)).transpose(1, 2)
        for part, one in ((layer.query, x), (layer.key, source), (layer.value, source))
    )
    k, v = (each.repeat_interleave(layer.heads // layer.kv_heads, 1) for each in (k, v))
    found = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return layer.out(found.transpose(1, 2).flatten(-2))


@pytest.mark.parametrize("kv_heads", [None, 2, 1])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("score", [None, lambda s: s], ids=["by torch", "by blocks"])
def test_values_and_gradients(kv_heads: int | None, causal: bool, score: Any) -> None:
    layer = weft.nn.Attention(24, 4, kv_heads, dtype=torch.float64, causal=causal, score=score)
    mask = torch.ones(9, 9, dtype=torch.bool).tril() if causal else None
    found, expected = layer(X), plainly(layer, X, mask)
    torch.testing.assert_close(found, expected)
    weights = list(layer.parameters())
    mine, theirs = (torch.autograd.grad(each.square().sum(), weights) for each in (found, expected))
    torch.testing.assert_close(mine, theirs)


def test_any_score_with_operands_of_heads() -> None:
    bias = torch.randn(4, 9, 9, dtype=torch.float64, requires_grad=True)

    def score(s: Tensor, i: Tensor, j: Tensor, h: Tensor, bias: Tensor) -> Tensor:
        return torch.where((j <= i + h), s + bias, -math.inf)

    layer = weft.nn.Attention(24, 4, 2, dtype=torch.float64, score=score)
    places = torch.arange(9)
    there = places <= places[:, None] + torch.arange(4)[:, None, None]
    found = layer(X, operands={"bias": ("hqk", bias)})
    expected = plainly(layer, X, bias.masked_fill(~there, -math.inf))
    torch.testing.assert_close(found, expected)
    mine, theirs = (torch.autograd.grad(each.square().sum(), bias) for each in (found, expected))
    torch.testing.assert_close(mine, theirs)


def test_ragged_sequences_and_another_context() -> None:
    layer = weft.nn.Attention(24, 3, dtype=torch.float64)
    context = torch.randn(2, 5, 24, dtype=torch.float64)
    mask = (torch.arange(5) < torch.tensor([3, 5])[:, None])[:, None, None]
    found = layer(X, context, lengths=torch.tensor([3, 5]))
    torch.testing.assert_close(found, plainly(layer, X, mask, context))


@pytest.mark.parametrize("score", [None, lambda s: s], ids=["by torch", "by blocks"])
def test_steps_are_the_whole(score: Any) -> None:
    layer = weft.nn.Attention(24, 4, 2, dtype=torch.float64, causal=True, score=score)
    past, found = None, []
    for part in X.split([4, 1, 1, 3], 1):
        y, past = layer.step(part, past)
        found.append(y)
    torch.testing.assert_close(torch.cat(found, 1), layer(X))


def test_it_is_a_module() -> None:
    layer = weft.nn.Attention(24, 4, dtype=torch.float64, score=weft.functions.softcap)
    expected = layer(X)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        torch.testing.assert_close(other(X), expected)
    assert "features=24, heads=4, kv_heads=4, causal=False" in repr(layer)


def test_its_function_is_known_again() -> None:
    """Else each call would trace it."""
    made = [_between(weft.functions.softcap, (), ("i", "j"), True, 2, 0, False) for _ in range(2)]
    assert fingerprint(made[0]) is not None
    assert fingerprint(made[0]) == fingerprint(made[1])


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: weft.nn.Attention(24, 5), weft.ArgumentError, "each divides the one before"),
        (lambda: weft.nn.Attention(24, 4, 3), weft.ArgumentError, "each divides the one before"),
        (lambda: weft.nn.Attention(24, 4, score=3), weft.ArgumentError, "score"),
        (lambda: weft.nn.Attention(24, 4, dtype="fp64")(X, X[:1]), weft.ShapeError, "context has sequences"),
        (lambda: weft.nn.Attention(24, 4, dtype="fp64", score=lambda s, b: s + b)(X, operands={"b": ("hz", X)}),
         weft.ArgumentError, "modes of b, h, q and k, not 'hz'"),
        (lambda: weft.nn.Attention(24, 4, dtype="fp64", score=lambda s, b: s + b)(X, operands={"b": ("h", X[0, :, 0])}),
         weft.ShapeError, "has 9 heads, the layer 4"),
        (lambda: weft.nn.Attention(24, 4, dtype="fp64")(X[0, 0]), weft.ShapeError, "x has 1 dimension: it is"),
        (lambda: weft.nn.Attention(24, 4, dtype="fp64")(X[0], X[0, 0]), weft.ShapeError, "context has 1 dimension"),
        (lambda: weft.nn.Attention(24, 4, dtype="fp64").step(X, (X[..., :3], X)), weft.ShapeError, "does not go"),
    ],
    ids=["features", "heads of keys", "score", "context", "modes", "heads", "vector", "vector of context", "past"],
)  # fmt: skip
def test_bad_input(make: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        make()


@pytest.mark.parametrize("shape", [(2, 0, 32), (0, 4, 32), (0, 32), (2, 0, 3, 32)])
@pytest.mark.parametrize("score", [None, lambda s: 2 * s])
def test_sequences_of_no_positions(shape: tuple[int, ...], score: Any) -> None:
    layer = weft.nn.Attention(32, 4, 2, score=score, causal=True)
    x = torch.randn(shape).requires_grad_()
    y = layer(x)
    assert y.shape == x.shape
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(grad, torch.zeros(shape))
    assert layer.step(x)[0].shape == x.shape
    queries = torch.randn(*shape[:-2], 3, 32)
    assert layer(queries, x).shape == queries.shape
