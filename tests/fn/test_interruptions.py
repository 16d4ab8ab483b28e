"""A signal at any point of a recording leaves torch as it was: no recorder among its modes, no switch turned."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from weft.fn.surroundings import _State
from weft.fn.trace import _trace


def recorded() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = torch.where(x > 0, x, 0.5 * torch.exp(x))
        return y.mul_(2) + torch.nn.functional.gelu(x)

    _trace(function, (torch.float32,), (), "epilogue", False)


SURROUNDINGS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "plain": nullcontext, "inference": torch.inference_mode, "mode": lambda: FlopCounterMode(display=False),
    "hooks": lambda: saved_tensors_hooks(abs, abs),
}  # fmt: skip


class Cut:
    """Raises `KeyboardInterrupt` at one of the places where Python looks for signals: calls, and lines in loops."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, frame: Any, event: str, argument: Any) -> Any:
        self.left -= event in ("call", "line")
        if self.left == 0:
            sys.settrace(None)
            raise KeyboardInterrupt
        return self


def places(work: Callable[[], None]) -> int:
    """How many such places there are."""
    count = Cut(-1)
    sys.settrace(count)
    try:
        work()
    finally:
        sys.settrace(None)
    return -1 - count.left


def cut(work: Callable[[], None], at: int) -> bool:
    sys.settrace(Cut(at))
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("around", SURROUNDINGS)
def test_torch_is_as_it_was(around: str) -> None:
    with ExitStack() as stack:
        stack.enter_context(SURROUNDINGS[around]())
        recorded()
        before = _State.now()
        total = places(recorded)
        step = max(total // 100, 1)
        edges = [*range(1, 150, 2), *range(total - 90, total)]  # where torch's modes are entered and left
        found = 0
        for at in sorted({*edges, *range(1, total, step)}):
            found += cut(recorded, at)
            assert _State.now() == before, f"place {at} of {total}"
            assert type(torch.empty(2)) is torch.Tensor
        assert found > 100
