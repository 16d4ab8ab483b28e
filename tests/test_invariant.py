"""`invariant=`: the bits of an element of D do not depend on how many others are computed with it."""

from __future__ import annotations

import pytest
import torch

import weft
from fuzz_invariant import Pair


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_bits_do_not_depend_on_rows(seed):
    for at in range(25):
        assert Pair(seed * 1000 + at).check() is None


@pytest.mark.slow
@pytest.mark.parametrize("part", range(400))
def test_bits_of_many_pairs(part):
    """Four hundred times 250: six hours of one core in all."""
    for seed in range(250 * part, 250 * part + 250):
        assert Pair(seed).check() is None


def test_bits_do_not_depend_on_threads_tiers_or_gradients():
    a, b = torch.randn(3, 9000), torch.randn(9000, 5)
    words = {"invariant": "m", "epilogue": torch.sigmoid}
    expected = weft.contract("mk,kn->mn", a, b, **words)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert torch.equal(weft.contract("mk,kn->mn", a, b, **words), expected)
    finally:
        torch.set_num_threads(before)
    for specialize in ("now", "never"):
        assert torch.equal(weft.contract("mk,kn->mn", a, b, specialize=specialize, **words), expected)
    plan = weft.plan("mk,kn->mn", a[:1], b, **words)
    assert torch.equal(plan(a[2:], b), expected[2:])
    assert "its bits may not depend on extents" in plan.explain()
    x = a[1:].requires_grad_()
    found = weft.contract("mk,kn->mn", x, b, **words)
    assert torch.equal(found, expected[1:])
    found.sum().backward()
    torch.testing.assert_close(x.grad, (expected[1:] * (1 - expected[1:])) @ b.T, rtol=1e-4, atol=1e-3)


def test_the_order_of_sums_is_that_of_the_equation():
    """Whatever order the summed modes have in memory."""
    a, b = torch.randn(8, 40, 30), torch.randn(40, 30, 6)
    expected = weft.contract("mxy,xyn->mn", a, b, invariant=["m"])
    turned = a.transpose(1, 2).contiguous().transpose(1, 2)
    assert torch.equal(weft.contract("mxy,xyn->mn", turned, b, invariant=["m"]), expected)


@pytest.mark.parametrize("shape", [(0, 3, 2), (3, 0, 2), (3, 3, 0)])
@pytest.mark.parametrize("specialize", ["auto", "now", "never"])
def test_a_batch_may_be_empty(shape, specialize):
    m, k, n = shape
    words = {"invariant": "m", "specialize": specialize}
    found = weft.contract("mk,kn->mn", torch.ones(m, k), torch.ones(k, n), c=torch.ones(m, n), **words)
    assert torch.equal(found, torch.ones(m, n))


def test_kernels_of_a_gpu_add_alike():
    """Runs in one program, and shared by as many; one row, and many."""
    a, b = torch.randn(33, 3000), torch.randn(3000, 20)
    words = {"backend": "triton", "invariant": "m"}
    plan = weft.plan("mk,kn->mn", a, b, **words)
    expected = plan(a, b)
    torch.testing.assert_close(expected, a @ b, rtol=1e-4, atol=1e-3)
    texts = [each.text for each in plan.report().candidates]
    for part in ("runs=", "split_k="):
        schedule = next(text for text in texts if part in text)
        assert torch.equal(weft.contract("mk,kn->mn", a, b, schedule=schedule, **words), expected)
    assert torch.equal(weft.contract("mk,kn->mn", a[5:6], b, **words), expected[5:6])


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        ({"invariant": "k"}, weft.NotationError, "invariant names 'k', which D does not have"),
        ({"invariant": 3}, weft.ArgumentError, "invariant is text or a sequence of labels, not int"),
        ({"invariant": "m", "specialize": "library"}, weft.UnsupportedError, "bits of torch's operations depend on"),
        ({"invariant": "m", "backend": "reference"}, weft.UnsupportedError, "the reference takes no invariant="),
        ({"invariant": "m", "reduce": {"x": ("n", "sum")}}, weft.UnsupportedError, "reduce= takes no invariant="),
        ({"invariant": "m", "algebra": "max_plus", "return_arg": True}, weft.UnsupportedError, "return_arg takes no"),
    ],
)
def test_what_is_refused(words, error, message):
    with pytest.raises(error, match=message):
        weft.contract("mk,kn->mn", torch.ones(3, 4), torch.ones(4, 5), **words)
