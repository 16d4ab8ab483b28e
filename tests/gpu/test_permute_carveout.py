"""The division of an SM's memory that permutations ask for."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch

import weft
from weft.gpu.common import driver as launching
from weft.gpu.permute import family as permute
from weft.gpu.permute.model import CARVEOUT


class Driver:
    """Takes what is asked, and answers with a result code."""

    def __init__(self, result: int) -> None:
        self.result = result
        self.asked: list[tuple[int | None, int, int]] = []

    def cuFuncSetAttribute(self, function: Any, attribute: int, value: Any) -> int:
        self.asked.append((function.value, attribute, value.value))
        return self.result


@pytest.mark.parametrize("result", [0, 1])
def test_the_driver_is_asked_once_and_may_refuse(monkeypatch: pytest.MonkeyPatch, result: int) -> None:
    driver = Driver(result)
    monkeypatch.setattr(launching, "loaded_driver", lambda: driver)
    address = 2**40 + 8
    assert launching.prefer_carveout(address, 58) is (result == 0)
    assert driver.asked == [(address, 9, 58)]


def test_without_a_driver_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "loaded_driver", lambda: None)
    assert launching.prefer_carveout(1, 58) is False


@pytest.mark.gpu
def test_a_loaded_permutation_has_its_division() -> None:
    if torch.version.hip:
        pytest.skip("CUDA's driver")
    x = torch.randn(256, 256, device="cuda")
    plan = weft.plan_permute(x, "ab->ba", backend="triton")
    permutation, target = plan.permutation, plan._request.target
    schedule, _ = permute.best(permutation, target)
    launch = permute.build(permutation, schedule, target).launch
    value = ctypes.c_int(-2)
    function = ctypes.c_void_p(launch.loaded.function)
    assert launching.loaded_driver().cuFuncGetAttribute(ctypes.byref(value), 9, function) == 0
    assert value.value == CARVEOUT
