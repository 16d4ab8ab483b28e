"""Which functions leave the zeros past the end of a sum harmless."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from weft.fn import Pointwise, trace
from weft.fn.pointwise import masked_operands, padding_adds_nothing


def traced(fn: Callable[..., Any] | None) -> Pointwise | None:
    return trace(fn, (torch.float16,)) if fn is not None else None


@pytest.mark.parametrize(("a_fn", "b_fn", "harmless"), [
    (None, None, True),
    (F.elu, F.gelu, True),
    (torch.exp, None, True),  # one times zero
    (torch.exp, torch.relu, True),
    (None, lambda x: x + 1, True),
    (torch.exp, torch.exp, False),
    (torch.reciprocal, None, False),  # infinity times zero
    (torch.log, torch.relu, False),
    (lambda x: x / x, None, False),  # NaN
    (lambda x: 1 / (x.float() + 1e-6), None, False),  # finite, but not as a product of halves
    (lambda x: (x + 2049.0) - 2048.0, lambda x: x + 1, False),  # zero by torch's rounding alone
    (lambda x: torch.log(x + 1.0001), torch.exp, False),
    (lambda x: (x.float().half() + 2049.0) - 2048.0, lambda x: x + 1, False),
])  # fmt: skip
def test_zeros_past_the_end(a_fn: Any, b_fn: Any, harmless: bool) -> None:
    assert padding_adds_nothing(traced(a_fn), traced(b_fn)) is harmless
    assert padding_adds_nothing(traced(b_fn), traced(a_fn)) is harmless


def test_a_function_of_operands_is_not_known_at_zero() -> None:
    scaled = trace(lambda x, s: x * s, (torch.float16,) * 2, names=("s",))
    assert scaled.at_zero is None
    assert not padding_adds_nothing(scaled, None)


@pytest.mark.parametrize(("a_fn", "b_fn", "masked"), [
    (torch.relu, torch.exp, (False, False)),
    (torch.exp, torch.exp, (False, True)),
    (torch.exp, torch.log, (False, True)),
    (torch.log, torch.exp, (True, False)),
    (torch.log, None, (True, False)),
    (torch.log, torch.reciprocal, (True, True)),
])  # fmt: skip
def test_no_more_than_one_operand_is_masked_where_the_other_is_finite(a_fn: Any, b_fn: Any, masked: Any) -> None:
    assert masked_operands(traced(a_fn), traced(b_fn)) == masked
