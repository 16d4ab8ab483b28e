"""Repeated calls skip the checks whose answers are known, and no other."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType
from typing import Any

import numpy as np
import pytest
import torch

import weft
from weft.engine.calls import Calls


def test_a_repeated_call_computes_on_its_own_tensors() -> None:
    plan = weft.plan("ik,kj->ij", torch.ones(4, 5), torch.ones(5, 6))
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        a, b = torch.rand(4, 5, generator=generator), torch.rand(5, 6, generator=generator)
        torch.testing.assert_close(plan(a, b), a @ b)
        torch.testing.assert_close(plan(a, b, alpha=2.0), 2 * (a @ b))
        torch.testing.assert_close(weft.contract("ik,kj->ij", a, b), a @ b)


def test_overlap_is_seen_in_each_call() -> None:
    """The same shapes and strides, and now the result lies on an operand."""
    memory = torch.rand(3, 4, 4)
    plan = weft.plan("ik,kj->ij", memory[0], memory[1])
    plan(memory[0], memory[1], out=memory[2])
    kept = memory.clone()
    with pytest.raises(weft.ShapeError, match="out overlaps a"):
        plan(memory[0], memory[1], out=memory[0])
    with pytest.raises(weft.ShapeError, match="out overlaps b"):
        weft.contract("ik,kj->ij", memory[0], memory[1], out=memory[1])
    assert torch.equal(memory, kept)


def test_what_differs_is_checked_in_full() -> None:
    a, b = torch.rand(4, 5), torch.rand(5, 6)
    plan = weft.plan("ik,kj->ij", a, b)
    plan(a, b)
    with pytest.raises(weft.ShapeError, match="planned were"):
        plan(a[:3], b)
    with pytest.raises(weft.DTypeError, match="planned was float32"):
        plan(a.double(), b)
    with pytest.raises(weft.DTypeError, match="alpha"):
        plan(a, b, alpha="2")
    with pytest.raises(weft.DTypeError, match="beta"):
        plan(a, b, beta=1j)


def test_contract_tells_functions_and_options_apart() -> None:
    a, b = torch.rand(4, 5) - 0.5, torch.rand(5, 6)
    for _ in range(2):
        torch.testing.assert_close(weft.contract("ik,kj->ij", a, b, epilogue=torch.relu), (a @ b).relu())
        torch.testing.assert_close(weft.contract("ik,kj->ij", a, b, epilogue=torch.tanh), (a @ b).tanh())
        assert weft.contract("ik,kj->ij", a, b, out_dtype=torch.float64).dtype == torch.float64
    factor = 2.0

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * factor

    torch.testing.assert_close(weft.contract("ik,kj->ij", a, b, epilogue=scaled), 2 * (a @ b))
    factor = 3.0
    torch.testing.assert_close(weft.contract("ik,kj->ij", a, b, epilogue=scaled), 3 * (a @ b))


def test_an_empty_result_stays_empty() -> None:
    plan = weft.plan("ik,kj->ij", torch.ones(0, 5), torch.ones(5, 6))
    for _ in range(2):
        assert plan(torch.ones(0, 5), torch.ones(5, 6)).shape == (0, 6)


def called_functions(call: Callable[[], Any]) -> list[CodeType]:
    """The code of every Python function that a call enters, in order."""
    entered: list[CodeType] = []
    sys.setprofile(lambda frame, event, _: entered.append(frame.f_code) if event == "call" else None)
    try:
        call()
    finally:
        sys.setprofile(None)
    return entered[1:]  # without `call` itself


@pytest.mark.keeps
@pytest.mark.parametrize("given", [False, True])
def test_a_known_call_is_seven_functions_in_five_files_from_its_launch(given: bool) -> None:
    a, b = torch.rand(4, 5), torch.rand(5, 6)
    out = torch.empty(4, 6) if given else None

    def call() -> torch.Tensor:
        return weft.contract("ik,kj->ij", a, b, out=out)

    for _ in range(2):
        call()
    entered = called_functions(call)
    launch = next(at for at, code in enumerate(entered) if "/cpu/" in code.co_filename)
    path = [code for code in entered[: launch + 1] if "/torch/" not in code.co_filename]  # it says whether it compiles
    assert path[0].co_name == "contract"
    assert len(path) <= 7
    assert len({code.co_filename for code in path}) <= 5


def test_parameters_and_conjugates_are_told_from_what_they_were_known_as() -> None:
    """A gradient is seen whatever the same tensors were known by before; a conjugate is another value."""
    a, b = torch.rand(4, 5, dtype=torch.complex64), torch.rand(5, 6, dtype=torch.complex64)
    parameter = torch.nn.Parameter(b)
    for _ in range(2):
        torch.testing.assert_close(weft.contract("ik,kj->ij", a, b), a @ b)
        torch.testing.assert_close(weft.contract("ik,kj->ij", a.conj(), b), a.conj() @ b)
        with torch.no_grad():
            torch.testing.assert_close(weft.contract("ik,kj->ij", a, parameter), a @ b)
        found = weft.contract("ik,kj->ij", a, parameter)
        assert found.requires_grad
        torch.testing.assert_close(found.detach(), a @ b)


def test_a_call_with_c_does_not_stand_for_one_without() -> None:
    a, b, c = torch.rand(4, 5), torch.rand(5, 6), torch.rand(4, 6)
    for _ in range(2):
        torch.testing.assert_close(weft.contract("ik,kj->ij", a, b, c=c), a @ b + c)
        torch.testing.assert_close(weft.contract("ik,kj->ij", a, b), a @ b)
        torch.testing.assert_close(weft.contract("ik,kj->ij", a, b, c=c, beta=2.0), a @ b + 2 * c)


def launches_of(call: Callable[[], Any]) -> bool:
    """Whether a call finds its launch without being read again."""
    names = [code.co_name for code in called_functions(call)]
    return "find_plan" not in names and "_ran" not in names


BIAS = torch.rand(6)
KNOWN: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "C": (lambda a, b, c: weft.contract("ik,kj->ij", a, b, c=c, beta=0.5), lambda a, b, c: a @ b + 0.5 * c),
    "whole factors": (lambda a, b, c: weft.contract("ik,kj->ij", a, b, alpha=2), lambda a, b, c: 2 * (a @ b)),
    "an operand": (
        lambda a, b, c: weft.contract(
            "ik,kj->ij", a, b, epilogue=weft.functions.bias, operands={"bias": ("j", BIAS.to(a.dtype))}
        ),
        lambda a, b, c: a @ b + BIAS.to(a.dtype),
    ),
    "a coordinate and C": (
        lambda a, b, c: weft.contract("ik,kj->ij", a, b, c=c, epilogue=_rows, indices={"row": "i"}),
        lambda a, b, c: (a @ b + c) * torch.arange(4)[:, None],
    ),
}


def _rows(x: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    return x * row


@pytest.mark.keeps
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64, torch.int64])
@pytest.mark.parametrize("kind", KNOWN)
def test_what_a_known_call_may_have(kind: str, dtype: torch.dtype) -> None:
    """The second call of its kind goes to its launch, and sees the tensors that it is given."""
    call, expected = KNOWN[kind]
    if dtype is torch.int64 and kind == "C":
        pytest.skip("a factor of 0.5")
    if dtype.is_complex and kind == "a coordinate and C":
        pytest.skip("coordinates are integers")
    first, second = ([(torch.rand(shape) * 9).to(dtype) for shape in ((4, 5), (5, 6), (4, 6))] for _ in range(2))
    torch.testing.assert_close(call(*first), expected(*first))
    assert launches_of(lambda: call(*second))
    torch.testing.assert_close(call(*second), expected(*second))


@pytest.mark.keeps
def test_a_plan_knows_operands_by_name_too() -> None:
    a, b, bias = torch.rand(4, 5), torch.rand(5, 6), torch.rand(6)
    plan = weft.plan("ik,kj->ij", a, b, epilogue=weft.functions.bias, operands={"bias": ("j", bias)})
    for operands in ({"bias": bias}, {"bias": ("j", bias)}):
        for _ in range(2):
            torch.testing.assert_close(plan(a, b, operands=operands), a @ b + bias)
        assert launches_of(lambda given=operands: plan(a, b, operands=given))  # type: ignore[misc]
        with pytest.raises(weft.ShapeError, match="operand 'bias' has shape"):
            plan(a, b, operands={"bias": torch.rand(1, 6)})
        with pytest.raises(weft.FunctionError, match="no operand 'other'"):
            plan(a, b, operands={**operands, "other": bias})


def test_a_known_call_still_sees_where_the_result_lies() -> None:
    """`out` may be C, and nothing else that is read."""
    memory = torch.rand(4, 16)
    a, b, bias, c = torch.rand(4, 5), torch.rand(5, 6), memory[0, 10:], memory[:, :6]
    options = {"epilogue": weft.functions.bias, "operands": {"bias": ("j", bias)}}
    for _ in range(2):
        before = c.clone()
        weft.contract("ik,kj->ij", a, b, c=c, out=c, **options)  # type: ignore[call-overload]
        torch.testing.assert_close(c, a @ b + before + bias)
    kept = memory.clone()
    with pytest.raises(weft.ShapeError, match="overlaps operand 'bias' in memory"):
        weft.contract("ik,kj->ij", a, b, c=memory[:, 8:14], out=memory[:, 8:14], **options)  # type: ignore[call-overload]
    with pytest.raises(weft.ShapeError, match="overlaps c in memory but is not exactly c"):
        weft.contract("ik,kj->ij", a, b, c=memory[:, :6], out=memory[:, 2:8], **options)  # type: ignore[call-overload]
    assert torch.equal(memory, kept)


def test_memory_that_was_freed_behind_a_known_call() -> None:
    """Of a view the address is then an offset, and not 0."""
    a, b = torch.randn(136)[36:100].view(8, 8), torch.randn(8, 8)
    plan = weft.plan("ik,kj->ij", a, b)
    for _ in range(2):
        plan(a, b)
    a.untyped_storage().resize_(0)
    for call in (plan, lambda a, b: weft.contract("ik,kj->ij", a, b)):
        with pytest.raises(weft.ShapeError, match="its storage was freed"):
            call(a, b)


def test_a_c_that_is_not_read_needs_nothing() -> None:
    a, b, c, out = torch.rand(40, 50), torch.rand(50, 60), torch.rand(40, 60).T.contiguous().T, torch.empty(40, 60)
    for _ in range(2):
        weft.contract("ik,kj->ij", a, b, c=c, beta=0, out=out)
        torch.testing.assert_close(out, a @ b)
        torch.testing.assert_close(weft.contract("ik,kj->ij", a, b, c=c), a @ b + c)


@pytest.mark.keeps
def test_memory_that_runs_out_in_a_known_call(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = torch.rand(4, 14), torch.rand(14, 6)  # of a plan that no other test has called
    plan = weft.plan("ik,kj->ij", a, b)
    plan(a, b)
    known, _ = plan._calls.find((), (a, b))

    def failing(*_: Any) -> None:
        raise torch.OutOfMemoryError("no memory")

    plan._calls = Calls(1)
    plan._calls.keep(plan._calls.find((), (a, b))[1], (a, b), known._replace(launch=failing, make=None))
    with pytest.raises(weft.WorkspaceError, match="out of memory on cpu"):
        plan(a, b)


def test_a_known_call_of_another_algebra_takes_no_factors() -> None:
    a, b = torch.rand(4, 5), torch.rand(5, 6)
    plan = weft.plan("ik,kj->ij", a, b, algebra="max_plus")
    for _ in range(2):
        torch.testing.assert_close(plan(a, b), (a[:, :, None] + b).amax(1))
        with pytest.raises(weft.DTypeError, match="has no such factor"):
            plan(a, b, alpha=2.0)


def test_a_plan_that_promotes_reads_c_so_with_gradients_too() -> None:
    a, b, c = torch.rand(2, 3), torch.rand(3, 2), [[1.0, 2.0], [3.0, 4.0]]
    plan = weft.plan("ij,jk->ik", a, b, promote=True)
    right = a @ b + torch.tensor(c)
    torch.testing.assert_close(plan(a, b, c=c), right)
    torch.testing.assert_close(plan(a.clone().requires_grad_(), b, c=c).detach(), right)
    move = weft.plan_permute(a, "ij->ji", promote=True)
    torch.testing.assert_close(move(a, c=np.ones((3, 2), np.float32)), a.T + 1)
    again = weft.plan_permute([[1.0, 2.0]], "ij->ji", promote=True)
    assert again([[3.0, 4.0]], c=[[1.0], [2.0]]).tolist() == [[4.0], [6.0]]
    x = a.clone().requires_grad_()
    torch.testing.assert_close(move(x, c=np.ones((3, 2), np.float32)).detach(), a.T + 1)


@pytest.mark.keeps
def test_a_lack_of_memory_is_told_by_the_kernel_that_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = torch.rand(4, 15), torch.rand(15, 6)
    plan = weft.plan("ik,kj->ij", a, b)
    plan(a, b)
    variant = plan._first()
    known, _ = plan._calls.find((), (a, b))

    def fails(*_: Any) -> None:
        raise torch.OutOfMemoryError("out of memory")

    plan._calls = Calls(1)
    plan._calls.keep(plan._calls.find((), (a, b))[1], (a, b), known._replace(launch=fails, make=None))
    monkeypatch.setattr(type(variant), "workspace_bytes", property(lambda self: 12345))  # as after an exchange
    with pytest.raises(weft.WorkspaceError, match="12345"):
        plan(a, b)
