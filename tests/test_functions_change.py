"""Functions whose surroundings change between calls: each call computes what the function does then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import weft

E = "ij,jk->ik"
A = torch.arange(12.0, dtype=torch.float64).reshape(3, 4)
B = A.T.contiguous()
BOX, PLAN = [1.0], weft.plan(E, A, B)


def scaled(value: torch.Tensor) -> torch.Tensor:
    return value * BOX[0]


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    threads, seed = torch.get_num_threads(), torch.initial_seed()
    yield
    BOX[0] = 1.0
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    torch.set_float32_matmul_precision("highest")


OWN = weft.Algebra(lambda x, y: x * y * BOX[0], torch.add, 0.0, "scaled")
TWICE = {"functions": {"ik": scaled}, "optimize": [(0, 1), (0, 1)]}


def gradient(call: Callable[..., Any], *others: torch.Tensor) -> Callable[[], torch.Tensor]:
    def found() -> torch.Tensor:
        x = A.clone().requires_grad_()
        call(x, *others).sum().backward()
        assert x.grad is not None
        return x.grad

    return found


def into(plan: Callable[..., torch.Tensor], *given: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Results in a place that held no numbers."""
    return lambda: plan(*given, out=torch.full((3, 3), torch.nan, dtype=torch.float64))


def first_of(plan: Any) -> Callable[[], torch.Tensor]:
    return lambda: plan()[0]


#: Calls, and things that are kept, made when they are asked for.
CALLS: dict[str, Callable[[], Callable[[], torch.Tensor]]] = {
    "contract": lambda: lambda: weft.contract(E, A, B, epilogue=scaled),
    "reference": lambda: lambda: weft.contract(E, A, B, a_fn=scaled, backend="reference"),
    "validated": lambda: lambda: weft.contract(E, A, B, epilogue=scaled, validate=True),
    "permute": lambda: lambda: weft.permute(A, "ij->ji", fn=scaled),
    "grouped": lambda: lambda: weft.grouped(E, [(A, B)], epilogue=scaled)[0],
    "plan": lambda: partial(weft.plan(E, A, B, epilogue=scaled), A, B),
    "reference plan": lambda: partial(weft.plan(E, A, B, b_fn=scaled, backend="reference"), A, B),
    "plan of an algebra": lambda: partial(weft.plan(E, A, B, algebra=OWN), A, B),
    "plan that writes": lambda: into(weft.plan(E, A, B, epilogue=scaled), A, B),
    "plan of a permutation that writes": lambda: into(weft.plan_permute(A[:, :3], "ij->ji", fn=scaled), A[:, :3]),
    "plan of a permutation": lambda: partial(weft.plan_permute(A, "ij->ji", fn=scaled), A),
    "plan of a group": lambda: first_of(weft.plan_grouped(E, [(A, B)], epilogue=scaled)),
    "network": lambda: partial(weft.network("ij,jk,kl->il", A, B, A, **TWICE), A, B, A),
    "network of constants": lambda: partial(
        weft.network("ij,jk,kl->il", A, B, A, constants=(0, 1), **TWICE), A
    ),
    "gradient": lambda: gradient(partial(weft.contract, E, epilogue=scaled), B),
    "gradient of a plan": lambda: gradient(weft.plan(E, A.clone().requires_grad_(), B, epilogue=scaled), B),
    "gradient of an algebra": lambda: gradient(partial(weft.contract, E, algebra=OWN), B),
    "gradient of a network": lambda: gradient(weft.network("ij,jk,kl->il", A, B, A, **TWICE), B, A),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_list_that_a_function_reads_may_change(name: str) -> None:
    call = CALLS[name]()
    first = call().clone()
    for s in (2.0, 1.0, 3.0):
        BOX[0] = s
        torch.testing.assert_close(call(), first * s)


def test_plans_with_equal_functions_follow_their_own() -> None:
    boxes = [1.0], [1.0]

    def over(box: list[float]) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda value: value * box[0]

    plans = [weft.plan(E, A, B, epilogue=over(box)) for box in boxes]
    boxes[0][0], boxes[1][0] = 2.0, 3.0
    for plan, (s,) in zip(plans, boxes, strict=True):
        torch.testing.assert_close(plan(A, B), A @ B * s)


def test_a_plan_says_when_a_function_returns_another_type() -> None:
    plan = weft.plan(E, A, B, epilogue=lambda value: value * BOX[0])
    BOX[0] = 1j  # type: ignore[call-overload]
    with pytest.raises(weft.FunctionError, match=r"epilogue returned torch\.float64 .* now torch\.complex"):
        plan(A, B)


STATE: dict[str, tuple[Callable[[Any], Any], tuple[Any, Any], Callable[[], float]]] = {
    "threads": (torch.set_num_threads, (1, 2), torch.get_num_threads),
    "seed": (torch.manual_seed, (3, 4), torch.initial_seed),
    "precision": (
        torch.set_float32_matmul_precision, ("highest", "high"), lambda: len(torch.get_float32_matmul_precision())
    ),
    "autocast": (
        lambda on: torch.set_autocast_enabled("cpu", on), (True, False), lambda: 1.0 + torch.is_autocast_enabled("cpu")
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STATE)
def test_torchs_state_may_change(name: str) -> None:
    put, values, state = STATE[name]
    kept = weft.plan(E, A, B, epilogue=lambda value: value * state())
    try:
        for value in values:
            put(value)
            for found in (weft.contract(E, A, B, epilogue=lambda value: value * state()), kept(A, B)):
                torch.testing.assert_close(found, A @ B * state())
    finally:
        torch.set_autocast_enabled("cpu", False)


def test_inference_mode_may_change() -> None:
    for on in (False, True, False):
        with torch.inference_mode(on):
            found = weft.contract(E, A, B, epilogue=lambda value: value * (1 + torch.is_inference_mode_enabled()))
            torch.testing.assert_close(found, A @ B * (1 + on))


def test_a_function_of_torch_that_is_replaced_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    call = lambda: weft.contract(E, A, B, epilogue=lambda value: torch.nn.functional.relu(value))  # noqa: E731
    torch.testing.assert_close(call(), A @ B)
    monkeypatch.setattr(torch.nn.functional, "relu", lambda value: value * 2)
    torch.testing.assert_close(call(), A @ B * 2)


def test_a_layers_module_may_change() -> None:
    layer = weft.nn.Linear(4, 3, activation=torch.nn.LeakyReLU(0.5), bias=False, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(-A)
        torch.testing.assert_close(layer(A), -A @ B * 0.5)
        layer.activation.negative_slope = 0.25  # type: ignore[union-attr]
        torch.testing.assert_close(layer(A), -A @ B * 0.25)
        layer.activation = torch.nn.ReLU()
        torch.testing.assert_close(layer(A), torch.zeros(3, 3, dtype=torch.float64))


@pytest.mark.parametrize("epilogue", [torch.relu, lambda value: torch.sigmoid(value) * 1.5, torch.nn.Softplus(2)])
@pytest.mark.parametrize("tiers", ["0", "1"])
def test_checkpoints_that_stop_early_leave_functions_alone(
    epilogue: Callable[..., Any], tiers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first call of the function within the checkpoint: what weft derives is none of its tensors."""
    monkeypatch.setenv("WEFT_TIERS", tiers)
    x, w = torch.randn(3, 5, requires_grad=True), torch.randn(5, 7, requires_grad=True)

    def call(t: torch.Tensor) -> Any:
        return weft.contract("mk,kn->mn", t, w, epilogue=epilogue)

    found = torch.autograd.grad(checkpoint(call, x, use_reentrant=False).sum(), (x, w))
    torch.testing.assert_close(found, torch.autograd.grad(epilogue(x @ w).sum(), (x, w)))


def test_exceptions_that_steer_torch_pass_through_a_function() -> None:
    from torch._dynamo.exc import Unsupported
    from torch.utils.checkpoint import _StopRecomputationError

    for error in (_StopRecomputationError(), Unsupported("a break"), KeyboardInterrupt(), GeneratorExit()):
        def fails(value: torch.Tensor, error: BaseException = error) -> torch.Tensor:
            raise error

        with pytest.raises(type(error)):
            weft.contract(E, A, B, epilogue=lambda value, fails=fails: fails(value))
    with pytest.raises(weft.FunctionError, match="the function raised ZeroDivisionError"):
        weft.contract(E, A, B, epilogue=lambda value: value * (1 / 0))


@pytest.mark.parametrize("call", [
    lambda x: weft.contract(E, x, B, epilogue=torch.relu), lambda x: weft.einsum(E, x, B), lambda x: weft.matmul(x, B),
    lambda x: weft.permute(x, "ij->ji"), lambda x: weft.einsum("ij,jk,kl->il", x, B, A),
    lambda x: PLAN(x, B), weft.nn.Einsum("ij,jk->ik", (4, 3), dtype=torch.float64),
])  # fmt: skip
def test_jit_is_refused_in_a_sentence(call: Callable[[torch.Tensor], Any]) -> None:
    with pytest.raises(weft.UnsupportedError, match=r"torch.jit.trace cannot record weft's calls: use torch.compile"):
        torch.jit.trace(call, A)
