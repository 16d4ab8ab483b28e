"""What functions are taken to cost, for cost models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from weft.fn import trace

HALF, SINGLE = torch.float16, torch.float32


@pytest.mark.parametrize(("fn", "half", "single"), [
    (lambda x: x, 0, 0),
    (torch.relu, 0.5, 1),  # two of float16 to an instruction
    (F.leaky_relu, 3, 2),  # conversion, product, half a conversion back, half a maximum
    (lambda x: x * 2 + 1, 3.5, 2),
    (lambda x: torch.relu(x * 2), 3.5, 2),
    (F.elu, 5, 9),  # as counted in machine code
    (F.selu, 9.5, 11),  # 8.6 and 11.1
    (lambda x: F.elu(x) + 1, 8.5, 10),
    (torch.sigmoid, 5.5, 13),
    (torch.tanh, 11.5, 14),
    (F.gelu, 12, 14),
    (lambda x: F.gelu(x, approximate="tanh"), 8.5, 7),  # 8.6 and 7.1
])  # fmt: skip
def test_slots_of_an_element(fn: Callable[..., Any], half: float, single: float) -> None:
    assert trace(fn, (HALF,)).issue_slots == half
    assert trace(fn, (SINGLE,)).issue_slots == single


def test_what_only_converts_costs_its_conversions() -> None:
    assert trace(lambda x: x.float(), (HALF,)).issue_slots == 1 + 1
    assert trace(lambda x: (x.float() * 2, x), (HALF,)).issue_slots >= 2


def test_an_exponential_of_anything_costs_more_than_one_of_half_precision() -> None:
    assert trace(torch.expm1, (SINGLE,)).issue_slots > trace(torch.expm1, (HALF,)).issue_slots


def test_complex_functions_have_an_estimate() -> None:
    assert trace(lambda x: x * 2, (torch.complex64,)).issue_slots > 0
