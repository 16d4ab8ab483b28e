"""Counting the different elements of strided tensors."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weft.machine import counts
from weft.machine.counts import distinct_elements

STEPS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 12)), max_size=4)


@given(STEPS)
def test_agrees_with_listing_every_offset(steps: list[tuple[int, int]]) -> None:
    extents, strides = [e for e, _ in steps], [s for _, s in steps]
    offsets = {
        sum(i * s for i, s in zip(index, strides, strict=True)) for index in itertools.product(*map(range, extents))
    }
    assert distinct_elements(extents, strides) == len(offsets)


@given(STEPS)
def test_rules_alone_never_count_too_many(steps: list[tuple[int, int]]) -> None:
    extents, strides = [e for e, _ in steps], [s for _, s in steps]
    exact = distinct_elements(extents, strides)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counts, "_ENUMERATED", 0)
        assert distinct_elements(extents, strides) <= exact


def count(tensor: torch.Tensor) -> int:
    return distinct_elements(tensor.shape, tensor.stride())


def test_forms_that_tensors_take() -> None:
    x = torch.empty(6, 8)
    assert count(x) == count(x.t()) == count(x[:, None]) == 48
    assert count(x[::2, 1:5]) == 12
    assert count(x[:1].expand(1000, 8)) == 8
    assert count(x.unfold(1, 3, 1)) == 48  # windows of three along the rows: every element, once
    assert count(x[0].unfold(0, 3, 3)) == 6  # the last two stand in no window
    assert count(torch.empty(5, 5).diagonal()) == 5
    assert count(torch.empty(())) == 1
    assert count(torch.empty(3, 0)) == 0


def test_large_tensors_need_no_listing() -> None:
    image = torch.empty(1, device="meta").expand(1)
    windows = image.as_strided((4096, 4096, 7, 7), (8192, 1, 8192, 1))
    assert count(windows) == 4102 * 4102
    assert distinct_elements((1 << 20, 1 << 20), (1 << 20, 1)) == 1 << 40


def test_large_irregular_overlap_is_bounded_from_below() -> None:
    extents, strides = (5000, 5000), (3, 2)
    assert 5000 <= distinct_elements(extents, strides) <= 3 * 4999 + 2 * 4999 + 1
    assert math.prod(extents) > counts._ENUMERATED
