"""Weights of a byte each on their way to matrix units."""

from __future__ import annotations

import pytest
import torch

import weft


@pytest.mark.gpu
@pytest.mark.parametrize("specialize", ["now", "never"])
@pytest.mark.parametrize("extents", [(16, 64, 512), (5, 33, 47), (64, 16, 256)])
def test_every_byte_is_its_own_value(extents: tuple[int, int, int], specialize: str) -> None:
    m, n, k = extents
    weights = torch.arange(n * k, device="cuda").remainder(256).sub(128).to(torch.int8).reshape(n, k)
    a = torch.eye(m, k, device="cuda", dtype=torch.float16)
    result = weft.contract("mk,nk->mn", a, weights, out_dtype=torch.float16, promote=True, specialize=specialize)
    assert torch.equal(result, (a.double() @ weights.double().T).half())
