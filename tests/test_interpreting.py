"""The interpreter of the tests takes what the compiler takes, and does less than Triton's own for it."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton")
import triton

import weft.gpu.common.launch  # noqa: F401  corrects the interpreter
from weft.gpu.common.release import correct

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


@triton.jit
def with_constants(out, values, COUNT: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, COUNT)
    value = tl.load(values + at)
    tl.store(out + at, value * 3)
    tl.store(out + COUNT + at, value * 0.0)
    tl.store(out + 2 * COUNT + at, value * -0.0)
    tl.store(out + 3 * COUNT + at, tl.sum(value[:, None] * 10 + value[None, :], axis=1))


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.int64])
def test_constants_beside_values_of_any_type(dtype: torch.dtype) -> None:
    """And values that are spread over one another; the second launch takes what was kept of the first."""
    values = torch.tensor([1, 2, 3, 4]).to(dtype)
    for _ in range(2):
        out = torch.full((16,), torch.nan, dtype=torch.float64)
        with_constants[(1,)](out, values, 4)
        tripled, zero, below, spread = out.view(4, 4)
        assert tripled.tolist() == [3, 6, 9, 12]
        assert [zero.signbit().any().item(), below.signbit().all().item()] == [False, True]
        assert spread.tolist() == [40 * at + 10 for at in (1, 2, 3, 4)]


AS_DOCUMENTED = """
import torch, weft
a, b = torch.arange(12.0).reshape(3, 4), torch.arange(20.0).reshape(4, 5)
exact = a @ b
calls = {
    "contract": lambda: weft.contract("ij,jk->ik", a, b, backend="triton"),
    "made to measure": lambda: weft.contract("ij,jk->ik", a, b, backend="triton", specialize="now"),
    "epilogue": lambda: weft.contract("ij,jk->ik", a, b, backend="triton", epilogue=torch.relu),
    "einsum": lambda: weft.einsum("ij,jk->ik", a, b, backend="triton"),
    "max-plus": lambda: weft.contract("ij,jk->ik", a, b, backend="triton", algebra="max_plus"),
    "permute": lambda: weft.permute(exact.T.contiguous(), "ij->ji", backend="triton"),
    "complex": lambda: weft.contract("ij,jk->ik", a + 0j, b + 0j, backend="triton").real,
    "grouped": lambda: weft.grouped("ij,jk->ik", [(a, b), (a[:2], b)], backend="triton")[0],
    "transpose_": lambda: weft.transpose_(exact.T.contiguous(), (0, 1), backend="triton"),
}
for name, call in calls.items():
    wanted = (a[:, :, None] + b).amax(1) if name == "max-plus" else exact
    assert torch.equal(call(), wanted), name
print("right")
"""


def test_a_user_sets_the_variable_and_imports_weft() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "WEFT_SELFTEST": "0"}
    command = [sys.executable, "-W", "ignore", "-c", AS_DOCUMENTED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "right"


@pytest.mark.parametrize("scoped", [True, False])
def test_any_version_s_interpreter_is_corrected_once(scoped: bool) -> None:
    """One that keeps what it replaced in a scope, one that does not, and one without either part."""

    class Builder:
        def binary_op(self, lhs: Any, rhs: Any, op: Any) -> Any:
            return SimpleNamespace(data=op(lhs.data, rhs.data), dtype=lhs.dtype)

    class Scope:
        set_attr = staticmethod(setattr)

    given = (Scope(),) if scoped else ()
    module = SimpleNamespace(
        InterpreterBuilder=Builder, tl=SimpleNamespace(int1="int1"), _patch_lang_tensor=lambda tensor, *scope: None
    )
    for _ in range(2):
        correct(module)
    x, y = (SimpleNamespace(data=np.array([value]), dtype="int32") for value in (1, 2))
    assert Builder().binary_op(x, y, np.less).dtype == "int1"
    assert Builder().binary_op(x, y, np.add).dtype == "int32"

    class Value:
        handle = SimpleNamespace(data=np.array([5]))

    module._patch_lang_tensor(Value, *given)
    assert [*range(9)][Value()] == 5  # type: ignore[call-overload]
    correct(SimpleNamespace())
