"""The second contraction of a cascade in another algebra."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import weft
from cascades.plain import EQUATION, gradients, operands

SECOND: dict[str, Any] = {
    "max_plus": lambda p, c: (p[..., None] + c[:, None]).amax(2),
    "min_plus": lambda p, c: (p[..., None] + c[:, None]).amin(2),
    "log": lambda p, c: (p[..., None] + c[:, None]).logsumexp(2),
    "max_times": lambda p, c: (p[..., None] * c[:, None]).amax(2),
}


@pytest.mark.parametrize("limit", [None, 1 << 13], ids=["one block", "blocks"])
@pytest.mark.parametrize("algebra", SECOND)
def test_the_second_contraction_in_another_algebra(algebra: str, limit: int | None) -> None:
    inputs = [tensor.requires_grad_() for tensor in operands(h=2, q=21, k=26)]

    def between(s: Tensor) -> tuple[Tensor, Tensor]:
        return weft.log_softmax(s, "k") if algebra != "max_times" else torch.sigmoid(s), weft.logsumexp(s, "k")

    keywords: dict[str, Any] = {"between": between, "algebra": algebra}
    found = weft.cascade(EQUATION, *inputs, workspace_limit=limit, **keywords)
    q, k, v = inputs
    s = q @ k.mT
    p = torch.sigmoid(s) if algebra == "max_times" else torch.log_softmax(s, -1)
    expected = SECOND[algebra](p, v), s.logsumexp(-1)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(weft.cascade(EQUATION, *inputs, backend="reference", **keywords), expected)
    torch.testing.assert_close(gradients(found, inputs), gradients(expected, inputs), rtol=1e-9, atol=1e-11)


def test_masked_blocks_of_another_algebra_are_not_computed() -> None:
    """What reaches no later place: paths of two steps, the first of them forwards."""
    x, y, w = torch.randn(64, 3), torch.randn(64, 3), torch.randn(64, 5)

    def between(s: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return torch.where(j <= i, s, -math.inf)

    keywords: dict[str, Any] = {"between": between, "indices": {"i": "i", "j": "j"}, "algebra": "max_plus"}
    plan = weft.plan_cascade("id,jd->ij, ij,je->ie", x, y, w, workspace_limit=1 << 12, **keywords)
    assert "masks       pass 1 computes" in plan.explain()
    s = (x @ y.T).masked_fill(~torch.ones(64, 64, dtype=torch.bool).tril(), -math.inf)
    torch.testing.assert_close(plan(x, y, w), (s[..., None] + w).amax(1))


def test_algebras_that_a_cascade_does_not_have_are_refused() -> None:
    q, k, v = operands()
    with pytest.raises(weft.ArgumentError, match="algebra is that of the second contraction"):
        weft.cascade("hqd,hkd->hqk", q, k, algebra="max_plus")
    with pytest.raises(weft.UnsupportedError, match="one that either has alone is reduced before"):
        weft.cascade("hqd,hkd->hqk, hqk,ke->qe", q, k, v[0], algebra="max_plus")
    with pytest.raises(weft.UnsupportedError, match="no algebra is called 'max'"):
        weft.cascade(EQUATION, q, k, v, algebra="max")
