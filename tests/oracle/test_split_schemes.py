"""Sums of products of short terms, by matrix units as they are modelled, lie within the bound proven of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from weft.planner.split_schemes import BF16X6, BLOCK, FP16X3, GUARD, NEAR, RUN, SCALED, SplitScheme, U

TINY = 2.0**-149  # the least float32


def terms(values: np.ndarray, scheme: SplitScheme) -> list[np.ndarray]:
    """The terms of float32 values, each scaled up, in float64."""
    rest, found = torch.from_numpy(values.astype(np.float32)), []
    for _ in range(scheme.terms):
        term = rest.to(scheme.term).float()
        found.append(term.double().numpy())
        rest = (rest - term) * 2.0**scheme.shift
    return found


def cut(values: np.ndarray, digit: np.ndarray) -> np.ndarray:
    return np.trunc(values / digit) * digit


def last_digit(values: np.ndarray) -> np.ndarray:
    """The last of 24 digits of a float32, subnormal ones included."""
    _, exponent = np.frexp(values)
    return np.maximum(np.exp2(exponent - 24.0), TINY)


def summed(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Row by row sums of products as a matrix unit makes them: aligned to the largest of a block, cut off, added."""
    total = np.zeros(len(x))
    for start in range(0, x.shape[1], BLOCK):
        products = x[:, start : start + BLOCK] * y[:, start : start + BLOCK]
        together = np.concatenate([products, total[:, None]], axis=1)
        digit = last_digit(np.abs(together).max(axis=1)) * 2.0**-GUARD
        total = cut(together, digit[:, None]).sum(axis=1)
        total = cut(total, last_digit(total))
    return total


def product(x: np.ndarray, y: np.ndarray, scheme: SplitScheme) -> np.ndarray:
    """Sums over orders of terms, the last order first, as the library tier makes them."""
    of_x, of_y = terms(x, scheme), terms(y, scheme)
    total = np.zeros(len(x), np.float32)
    for order in reversed(range(scheme.orders)):
        pairs = [(i, order - i) for i in range(scheme.terms) if 0 <= order - i < scheme.terms]
        left = np.concatenate([of_x[i] for i, _ in pairs], axis=1)
        right = np.concatenate([of_y[j] for _, j in pairs], axis=1)
        run = left.shape[1] if order else RUN
        for start in range(0, left.shape[1], run):
            part = summed(left[:, start : start + run], right[:, start : start + run])
            total = total + (part * 2.0 ** -(order * scheme.shift)).astype(np.float32)
    return total.astype(np.float64)


def cases(count: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Operands of sums of `count` products, random ones and such as bring errors of one sign together."""
    draw = np.random.default_rng(count)
    shape = (120_000 // count, count)
    normal = [draw.standard_normal(shape) for _ in range(2)]
    ones = [1 + draw.integers(0, 2**23, shape) / 2.0**23 for _ in range(2)]
    ties = [1 + (2 * draw.integers(0, 2**7, shape) + 1) / 2.0**8 + draw.integers(-9, 9, shape) / 2.0**23 for _ in "ab"]
    wide = [draw.standard_normal(shape) * np.exp2(draw.integers(-60, 60, shape)) for _ in range(2)]
    small = [draw.integers(-(2**20), 2**20, shape) * TINY, draw.standard_normal(shape)]
    cancelled = [np.repeat(x, 2, axis=1)[:, :count] for x in ones]
    cancelled[1] *= np.where(np.arange(count) % 2, -1, 1)
    growing = [np.sort(np.abs(x), axis=1) for x in normal]
    found = {
        "normal": normal, "ones": ones, "ties": ties, "wide": wide, "subnormal": small,
        "cancelled": cancelled, "growing": growing, "last": [np.full(shape, 2 - 2.0**-23)] * 2,
    }  # fmt: skip
    return {name: tuple(each.astype(np.float32).astype(np.float64) for each in pair) for name, pair in found.items()}


@pytest.mark.parametrize("count", [10, 16, 33, 200])
def test_no_sum_is_further_off_than_is_proven(count: int) -> None:
    for name, (x, y) in cases(count).items():
        magnitude = (np.abs(x) * np.abs(y)).sum(axis=1)
        exact = (x * y).sum(axis=1)
        bound = BF16X6.loss(count) * U * magnitude + count * TINY + 2.0**-50 * magnitude
        off = np.abs(product(x, y, BF16X6) - exact)
        assert (off <= bound).all(), f"{name}: {(off / bound).max()} of the bound"


@pytest.mark.parametrize("count", [50, 200, 2500])
@pytest.mark.parametrize("scale", [1.0, 1e-6])
def test_sums_of_float16_terms_are_within_their_bound_where_values_are_not_spread(count: int, scale: float) -> None:
    served = []
    for name, (x, y) in cases(count).items():
        x = (x * scale).astype(np.float32).astype(np.float64)
        scales = [SCALED - np.frexp(np.abs(each).max())[1] for each in (x, y)]
        near = [(np.abs(each) * 2.0**at >= NEAR).sum(axis=1).min() for each, at in zip((x, y), scales, strict=True)]
        if min(near) < 0.75 * count:
            continue
        served.append(name)
        magnitude = (np.abs(x) * np.abs(y)).sum(axis=1)
        found = product(x * 2.0 ** scales[0], y * 2.0 ** scales[1], FP16X3) * 2.0 ** -sum(scales)
        bound = (FP16X3.loss(count) * U + 2.0**-50) * magnitude
        off = np.abs(found - (x * y).sum(axis=1))
        assert (off <= bound).all(), f"{name}: {(off / bound).max()} of the bound"
    assert {"ones", "ties", "cancelled", "last"} <= {*served}
    assert "wide" not in served


def test_terms_have_every_digit_of_a_value_down_to_the_least_one() -> None:
    draw = np.random.default_rng(0)
    bits = draw.integers(0, 254 << 23, 200_000, dtype=np.int64).astype(np.int32)  # all but the last binade
    values = np.concatenate([bits, np.arange(4096, dtype=np.int32)]).view(np.float32)
    found = sum(term * 2.0 ** -(at * BF16X6.shift) for at, term in enumerate(terms(values, BF16X6)))
    assert (found == values.astype(np.float64)).all()


def test_a_scheme_is_admitted_where_an_ieee_sum_may_lose_as_much() -> None:
    assert not BF16X6.admitted(1)
    assert all(BF16X6.admitted(count) for count in range(10, 4000))
    assert BF16X6.loss(8192) < 0.1 * 8192
