"""The algebra of logarithms by matrix products: how exact they are, and when they are left alone."""

from __future__ import annotations

import math

import pytest
import torch

import weft
from weft.cpu.logarithms import LogProduct, logsumexp

DTYPES = [torch.float32, torch.float64]


def direct(accumulator: torch.Tensor, left: torch.Tensor, right: torch.Tensor, first: bool) -> None:
    raise AssertionError("these blocks need no table of pairs")


def exactly(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """[..., rows, k] and [..., k, columns] in float64, whose own rounding is that of a table of pairs."""
    return (left.double()[..., None] + right.double()[..., None, :, :]).logsumexp(-2)


def uniform(shape: tuple[int, ...], spread: float, dtype: torch.dtype, seed: int) -> torch.Tensor:
    return (torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * spread).to(dtype)


class TestProduct:
    @pytest.mark.parametrize("batch", [(), (3,)])
    @pytest.mark.parametrize("offset", [0.0, -300.0])
    @pytest.mark.parametrize("sums", [16, 40, 700])
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_is_within_its_bound(self, dtype: torch.dtype, sums: int, offset: float, batch: tuple[int, ...]) -> None:
        spread = min(sums, 39.9) if dtype is torch.float32 else min(sums, 339.0)
        x = uniform((*batch, 9, sums), spread, dtype, 1) + offset
        y = uniform((*batch, sums, 7), spread, dtype, 2) - offset / 2
        found = torch.full((*batch, 9, 7), torch.nan, dtype=dtype)
        LogProduct(direct)(found, x, y, True)
        expected, unit = exactly(x, y), torch.finfo(dtype).eps / 2
        bound = unit * (sums + 6 * spread + 2 * expected.abs() + 2 * math.log(sums) + 6)
        assert ((found.double() - expected).abs() <= bound).all()

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_leaves_out_what_is_minus_infinite(self, dtype: torch.dtype) -> None:
        x, y = uniform((9, 40), 30, dtype, 1), uniform((40, 7), 30, dtype, 2)
        x[:, ::3] = y[1::2] = -math.inf
        x[4] = y[:, 2] = -math.inf
        found = torch.full((9, 7), torch.nan, dtype=dtype)
        LogProduct(direct)(found, x, y, True)
        expected = exactly(x, y).to(dtype)
        assert torch.equal(found == -math.inf, expected == -math.inf)
        assert found[4].max() == found[:, 2].max() == -math.inf
        assert torch.allclose(found, expected, rtol=0, atol=300 * torch.finfo(dtype).eps)

    def test_goes_on_with_what_is_there(self) -> None:
        x, y = uniform((9, 40), 3, torch.float64, 1), uniform((40, 7), 3, torch.float64, 2)
        found = torch.full((9, 7), torch.nan, dtype=torch.float64)
        LogProduct(direct)(found, x[:, :20], y[:20], True)
        LogProduct(direct)(found, x[:, 20:], y[20:], False)
        assert torch.allclose(found, exactly(x, y), rtol=1e-14)

    @pytest.mark.parametrize(
        "value", [-40.1, -1e30, math.inf, math.nan], ids=["past the spread", "far below", "infinite", "not a number"]
    )
    @pytest.mark.parametrize("where", [0, 1])
    def test_leaves_to_pairs_what_would_be_inexact(self, value: float, where: int) -> None:
        factors = [torch.zeros(9, 50), torch.zeros(50, 7)]
        factors[where][3, 5] = value
        seen: list[torch.Tensor] = []
        found = torch.empty(9, 7)
        LogProduct(lambda *blocks: seen.extend(blocks[:3]))(found, *factors, True)
        assert len(seen) == 3
        assert all(one is other for one, other in zip(seen, (found, *factors), strict=True))

    def test_leaves_to_pairs_what_few_sums_do_not_bear(self) -> None:
        """The bound of the direct form grows with K: up to K = 16 it is left alone, then spreads up to K are near."""
        calls: list[int] = []
        for sums, spread in ((15, 1.0), (20, 20.5), (20, 19.5)):
            x, y = torch.zeros(2, sums), torch.zeros(sums, 2)
            x[0, 0] = -spread
            LogProduct(lambda accumulator, left, right, first: calls.append(left.shape[1]))(
                torch.empty(2, 2), x, y, True
            )
        assert calls == [15, 20]


class TestFold:
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("scale", [1.0, 50.0, 1e4])
    @pytest.mark.parametrize("dim", [0, 1, 2])
    def test_is_logsumexp(self, dtype: torch.dtype, scale: float, dim: int) -> None:
        values = (uniform((5, 40, 3), 2 * scale, dtype, 1) - scale).clone()
        expected = values.double().logsumexp(dim)
        found = torch.empty(expected.shape, dtype=dtype)
        logsumexp(values, dim, found)
        eps = torch.finfo(dtype).eps
        assert torch.allclose(found.double(), expected, rtol=2 * eps, atol=8 * eps)

    def test_infinities_and_nan(self) -> None:
        inf, nan = math.inf, math.nan
        values = torch.tensor(
            [[-inf, -inf, -inf], [-inf, 2.0, -inf], [inf, -inf, 1.0], [inf, inf, 0.0], [nan, 1.0, inf]]
        )
        found = torch.empty(5)
        logsumexp(values, 1, found)
        assert torch.equal(found[:4], torch.tensor([-inf, 2.0, inf, inf]))
        assert found[4].isnan()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("spread", [4.0, 1000.0])
def test_contraction(dtype: torch.dtype, spread: float) -> None:
    """Near values and far ones, in one call: some blocks go one way and some the other."""
    a, b = uniform((3, 70, 200), 4, dtype, 1), uniform((3, 200, 80), spread, dtype, 2)
    a[1] = a[1] * spread / 4
    d = weft.contract("bmk,bkn->bnm", a, b, algebra="log", out_dtype=torch.float64, backend="cpu")
    expected = exactly(a, b).transpose(1, 2)
    eps = torch.finfo(torch.float64 if dtype is torch.float64 else torch.float32).eps
    assert ((d - expected).abs() <= eps * (4 * 200 + 8 * (expected.abs() + 1))).all()
