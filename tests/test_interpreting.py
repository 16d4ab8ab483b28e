"""The interpreter of the tests takes what the compiler takes, and does less than Triton's own for it."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

triton = pytest.importorskip("triton")
tl = triton.language

pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are compiled")


@triton.jit
def squared(x):  # type: ignore[no-untyped-def]
    return x * x


@triton.jit
def squares(out, COUNT: tl.constexpr):  # type: ignore[no-untyped-def]
    first = tl.program_id(0) * COUNT
    for at in range(COUNT):
        tl.store(out + first + at, squared(first + at))


@triton.jit
def chosen(out, count, COUNT: tl.constexpr):  # type: ignore[no-untyped-def]
    for at in range(count):
        tl.store(out + at * COUNT + tl.arange(0, COUNT), at, mask=tl.broadcast_to(at + tl.program_id(0) > 0, (COUNT,)))


def launched(programs: int, count: int) -> torch.Tensor:
    out = torch.full((programs * count,), -1)
    squares[(programs,)](out, count)
    return out


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was searched for builtins to replace, each time."""
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    seen: list[Any] = []
    search = interpreter._patch_builtin

    def counted(searched: Any, *others: Any) -> None:
        seen.append(searched)
        search(searched, *others)

    monkeypatch.setattr(interpreter, "_patch_builtin", counted)
    return seen


def test_the_language_is_replaced_once_in_a_launch(searched: list[Any]) -> None:
    launched(1, 1)
    once = len(searched)
    searched.clear()
    assert launched(3, 5).tolist() == [at * at for at in range(15)]
    assert len(searched) == once


def test_the_language_is_restored_and_replaced_again_by_every_launch(searched: list[Any]) -> None:
    store = tl.store
    for _ in range(2):
        searched.clear()
        launched(1, 2)
        assert searched
        assert tl.store is store


def test_arguments_count_loops_and_comparisons_of_scalars_make_masks() -> None:
    out = torch.full((3, 4), -1)
    chosen[(1,)](out, 3, 4)
    assert out.tolist() == [[-1] * 4, [1] * 4, [2] * 4]


def test_integers_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = pytest.importorskip("triton.runtime.interpreter").InterpreterBuilder
    multiply, products = builder.create_mul, []

    def counted(self: Any, *factors: Any) -> Any:
        products.append(multiply(self, *factors))
        return products[-1]

    monkeypatch.setattr(builder, "create_mul", counted)
    assert launched(1, 5).tolist() == [0, 1, 4, 9, 16]
    assert len(products) == 1 + 5  # where the program starts, and the squares
