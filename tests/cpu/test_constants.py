"""Functions that differ in their constants alone share their machine code on the CPU, and compute with their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

import weft
from weft.cpu import jit
from weft.cpu.machine_code import CodeStore, MachineCode

pytest.importorskip("numba")

VALUES = (0.31, 0.48, 1.75, 3.5)


class Way(NamedTuple):
    """A call with a function of a constant, and what it is by torch alone."""

    call: Callable[[float], torch.Tensor]
    wanted: Callable[[float], torch.Tensor]


def tensors(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    a = torch.arange(4.0 * 30 * 20).remainder(7).sub(3).reshape(4, 30, 20).to(dtype)
    b = torch.arange(20.0 * 50).remainder(5).sub(2).reshape(20, 50).to(dtype)
    return a, b, torch.einsum("abk,kn->nba", a, b)


def contracted(dtype: torch.dtype = torch.float64, **functions: Callable[[float], Any]) -> Way:
    """A contraction with functions, each of them made of a constant."""
    a, b, _ = tensors(dtype)

    def none(constant: float) -> Any:
        return lambda v: v

    of_a, of_b, of_d = (functions.get(name, none) for name in ("a_fn", "b_fn", "epilogue"))
    return Way(
        lambda c: weft.contract("abk,kn->nba", a, b, **{name: made(c) for name, made in functions.items()}),
        lambda c: of_d(c)(torch.einsum("abk,kn->nba", of_a(c)(a), of_b(c)(b))),
    )


def grouped() -> Way:
    a, b, _ = tensors()
    pairs = [(a[0, :10], b), (a[1], b)]
    return Way(
        lambda c: weft.grouped("mk,kn->mn", pairs, a_fn=lambda v: v * c, epilogue=lambda v: v + 3 * c)[1],
        lambda c: (a[1] * c) @ b + 3 * c,
    )


def permuted() -> Way:
    a, _, _ = tensors()
    return Way(
        lambda c: weft.permute(a, "abk->kba", fn=lambda v: torch.relu(v * c) - c),
        lambda c: (torch.relu(a * c) - c).permute(2, 1, 0),
    )


def with_c() -> Way:
    a, b, d = tensors()
    return Way(
        lambda c: weft.contract("abk,kn->nba", a, b, c=d, beta=2.0, c_fn=lambda v: v * c, epilogue=lambda v: v - c),
        lambda c: d + 2 * (d * c) - c,
    )


def packed() -> Way:
    """By the library's product, with passes around it."""
    x = torch.arange(96.0 * 112 * 128, dtype=torch.float64).remainder(7).sub(3).reshape(96, 112, 128)
    y = torch.arange(128.0 * 80, dtype=torch.float64).remainder(5).sub(2).reshape(128, 80)
    return Way(
        lambda c: weft.contract("amk,kn->nam", x, y, a_fn=lambda v: v * c, epilogue=lambda v: torch.sigmoid(v * c)),
        lambda c: torch.sigmoid(torch.einsum("amk,kn->nam", x * c, y) * c),
    )


WAYS: dict[str, Callable[[], Way]] = {
    "an operand": lambda: contracted(a_fn=lambda c: lambda v: v * c - 3 * c),
    "both": lambda: contracted(a_fn=lambda c: lambda v: v + c, b_fn=lambda c: lambda v: v / c),
    "an epilogue": lambda: contracted(epilogue=lambda c: lambda v: torch.where(v > c, v * c, c - v)),
    "clamps": lambda: contracted(epilogue=lambda c: lambda v: v.clamp(-c, 2 * c)),
    "powers": lambda: contracted(epilogue=lambda c: lambda v: v.abs() ** (c + 1.01)),
    "an ELU": lambda: contracted(epilogue=lambda c: lambda v: torch.nn.functional.elu(v, c)),
    "float32": lambda: contracted(torch.float32, epilogue=lambda c: lambda v: v * c + c * c),
    "int64": lambda: contracted(torch.int64, epilogue=lambda c: lambda v: v * int(100 * c) - int(10 * c)),
    "complex128": lambda: contracted(torch.complex128, epilogue=lambda c: lambda v: v * (c + 2j)),
    "C": with_c,
    "a group": grouped,
    "a permutation": permuted,
    "packed": packed,
}


@pytest.mark.parametrize("name", WAYS)
def test_another_constant_compiles_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    way, kept, save = WAYS[name](), [], CodeStore.save

    def counted(store: CodeStore, source: str, code: MachineCode) -> None:  # of this process: others share the folder
        kept.append(source)
        save(store, source, code)

    monkeypatch.setattr(CodeStore, "save", counted)
    counts = set()
    for value in VALUES:
        torch.testing.assert_close(way.call(value), way.wanted(value), rtol=1e-5, atol=1e-4)
        counts.add((len(jit._functions), len(kept)))
    assert len(counts) == 1


def test_plans_side_by_side_keep_their_own() -> None:
    a, b, d = tensors()
    plans = [weft.plan("abk,kn->nba", a, b, epilogue=lambda v, c=c: v * c) for c in VALUES]
    for _ in range(2):
        for plan, c in zip(plans, VALUES, strict=True):
            torch.testing.assert_close(plan(a, b), d * c)


@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -1.0, 2.0, float("inf"), float("-inf"), float("nan"), 1e300, 5e-324])
def test_special_constants(value: float) -> None:
    a, b, d = tensors()
    found = weft.contract("abk,kn->nba", a, b, epilogue=lambda v: torch.copysign(v, torch.full_like(v, value)) + value)
    torch.testing.assert_close(found, torch.copysign(d, torch.full_like(d, value)) + value, equal_nan=True)
