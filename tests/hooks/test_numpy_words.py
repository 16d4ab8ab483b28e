"""`tensordot`, `inner`, `outer`, `trace` and `transpose` against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import weft

RNG = np.random.default_rng(5)


@pytest.mark.parametrize(
    ("shape_a", "shape_b", "axes"),
    [
        ((2, 3, 4), (3, 4, 5), 2),
        ((2, 3), (4, 5), 0),
        ((2, 3, 4), (4, 3, 5), ((1, 2), (1, 0))),
        ((2, 3, 4), (5, 4), (-1, -1)),
        ((2, 3), (3, 2), ([0, 1], [1, 0])),
        ((), (2, 3), 0),
        ((3, 0), (0, 2), 1),
        ((1, 3), (3, 1), ((0,), (1,))),
    ],
)
def test_tensordot(shape_a: tuple[int, ...], shape_b: tuple[int, ...], axes: Any) -> None:
    a, b = RNG.standard_normal(shape_a), RNG.standard_normal(shape_b)
    found = weft.tensordot(a, b, axes)
    assert isinstance(found, (np.ndarray, np.float64))
    np.testing.assert_allclose(found, np.tensordot(a, b, axes), atol=1e-13)
    assert isinstance(weft.tensordot(torch.from_numpy(a), torch.from_numpy(b), axes=axes), torch.Tensor)


def test_tensordot_takes_the_keywords_of_contract() -> None:
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    out = torch.empty(3, 5)
    assert weft.tensordot(a, b, 1, epilogue=torch.relu, alpha=2.0, out=out) is out
    torch.testing.assert_close(out, torch.relu(2 * (a @ b)))


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        (3, "axis -1 of a|has 2 dimensions"),
        (-1, "not negative"),
        (((0,), (0, 1)), "1 of a with 2 of b"),
        (((0, 0), (0, 1)), "stands twice"),
        (((0,), (0,)), "axis 0 of a has extent 3, axis 0 of b that it is summed with 4"),
        (((0,), (5,)), "axis 5 of b"),
        ((1, 2, 3), "a pair"),
    ],
)
def test_axes_that_do_not_fit(axes: Any, message: str) -> None:
    with pytest.raises(weft.ShapeError, match=message):
        weft.tensordot(torch.ones(3, 4), torch.ones(4, 5), axes)


def test_numbers() -> None:
    x = RNG.standard_normal((2, 3))
    np.testing.assert_allclose(weft.tensordot(2.0, x, 0), 2 * x)
    np.testing.assert_allclose(weft.inner(x, np.float64(3)), 3 * x)
    np.testing.assert_allclose(weft.outer(2, x), np.outer(2, x))


@pytest.mark.parametrize("shapes", [((3,), (3,)), ((2, 3), (5, 3)), ((2, 2, 3), (3,)), ((), (4,)), ((2, 0), (3, 0))])
def test_inner_and_outer(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    a, b = (RNG.standard_normal(shape) for shape in shapes)
    np.testing.assert_allclose(weft.inner(a, b), np.inner(a, b), atol=1e-13)
    np.testing.assert_allclose(weft.outer(a, b), np.outer(a, b))


@pytest.mark.parametrize("offset", [-2, 0, 1, 7])
@pytest.mark.parametrize("axes", [(0, 1), (2, 0), (-1, 1)])
def test_trace(offset: int, axes: tuple[int, int]) -> None:
    x = RNG.standard_normal((3, 4, 5))
    found = weft.trace(x, offset, *axes)
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found, np.trace(x, offset, *axes), atol=1e-13)


def test_transpose_is_a_view() -> None:
    x = RNG.standard_normal((2, 3, 4))
    assert np.shares_memory(weft.transpose(x), x)
    np.testing.assert_array_equal(weft.transpose(x, (1, -1, 0)), np.transpose(x, (1, 2, 0)))
    with pytest.raises(weft.ShapeError, match="not each axis of x once"):
        weft.transpose(x, (0, 1))
    with pytest.raises(weft.ShapeError, match="takes two"):
        weft.trace(np.ones(3))
    with pytest.raises(weft.ShapeError, match="stands twice"):
        weft.trace(np.ones((3, 3)), 0, 1, -1)
    with pytest.raises(weft.ArgumentError, match="no equation"):
        weft.inner("a,a->", np.ones(3))
