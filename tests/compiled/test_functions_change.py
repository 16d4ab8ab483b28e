"""Functions in compiled code whose surroundings change from call to call, as they may in the plain call."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch

import weft

A = torch.arange(12.0, dtype=torch.float64).reshape(3, 4)
B = A.T.contiguous()
E = "ij,jk->ik"
BOX, TABLE, SPACE, NUMBER = [1.0], {"s": 1.0}, types.SimpleNamespace(s=1.0), 1.0


class Scaled:
    def __init__(self) -> None:
        self.s = 1.0

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        return value * self.s

    def act(self, value: torch.Tensor) -> torch.Tensor:
        return value * self.s


class Layer(torch.nn.Module):
    s = 1.0

    def forward(self, x: torch.Tensor) -> Any:
        return weft.contract(E, x, B, epilogue=lambda value: value * self.s)


class Counting(torch.nn.Module):
    """What it reads it has changed in the same call."""

    def __init__(self) -> None:
        super().__init__()
        self.s = 0.0

    def forward(self, x: torch.Tensor) -> Any:
        self.s += 1.0
        return weft.contract(E, x, B, epilogue=lambda value: value * self.s)


OBJECT, LAYER = Scaled(), Layer()
LEAKY = weft.nn.Linear(4, 3, activation=torch.nn.LeakyReLU(1.0), bias=False, dtype=torch.float64)
with torch.no_grad():
    LEAKY.weight.copy_(-A)
OWN = weft.Algebra(lambda x, y: x * y * BOX[0], torch.add, 0.0, "scaled")


def from_list(value: torch.Tensor) -> torch.Tensor:
    return value * BOX[0]


PLAN, MOVE = weft.plan(E, A, B, epilogue=from_list), weft.plan_permute(A, "ij->ji", fn=from_list)


def put_number(s: float) -> None:
    global NUMBER
    NUMBER = s


def put_box(s: float) -> None:
    BOX[0] = s


def helper() -> float:
    return TABLE["s"]


#: By what changes: how it is changed, and the call.
READS: dict[str, tuple[Callable[[float], Any], Callable[[torch.Tensor], Any]]] = {
    "a global": (put_number, lambda x: weft.contract(E, x, B, epilogue=lambda value: value * NUMBER)),
    "a list": (put_box, lambda x: weft.contract(E, x, B, epilogue=from_list)),
    "a dictionary by a helper": (
        lambda s: TABLE.__setitem__("s", s), lambda x: weft.matmul(x, B, epilogue=lambda value: value * helper())
    ),
    "an attribute": (
        lambda s: setattr(SPACE, "s", s), lambda x: weft.contract(E, x, B, a_fn=lambda value: value * SPACE.s)
    ),
    "an object that is called": (lambda s: setattr(OBJECT, "s", s), lambda x: weft.contract(E, x, B, epilogue=OBJECT)),
    "a method": (lambda s: setattr(OBJECT, "s", s), lambda x: weft.contract(E, x, B, epilogue=OBJECT.act)),
    "the layer itself": (lambda s: setattr(LAYER, "s", s), LAYER),
    "a module of a layer": (lambda s: setattr(LEAKY.activation, "negative_slope", s), LEAKY),
    "beside an operand": (
        put_box, lambda x: weft.contract(
            E, x, B, a_fn=lambda value: value * 1, operands={"by": ("k", torch.ones(3, dtype=torch.float64))},
            epilogue=lambda value, by: value * by * BOX[0],
        )
    ),
    "of an algebra": (put_box, lambda x: weft.contract(E, x, B, algebra=OWN)),
    "of three operands": (put_box, lambda x: weft.einsum("ij,jk,kl->il", x, B, A, epilogue=from_list)),
    "of one operand": (put_box, lambda x: weft.einsum("ij->i", x, epilogue=from_list)[:, None] + 1),
    "of a permutation": (put_box, lambda x: weft.permute(x, "ij->ji", fn=from_list)),
    "of a plan": (put_box, lambda x: PLAN(x, B)),
    "of a plan of a permutation": (put_box, lambda x: MOVE(x)),
}  # fmt: skip


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    put_box(1.0)


def same(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("what", READS)
def test_what_a_function_reads_may_change(what: str) -> None:
    put, call = READS[what]
    compiled = torch.compile(call, fullgraph=True, backend="eager")
    with torch.no_grad():
        seen = []
        for s in (1.0, 2.0, 3.0):
            put(s)
            seen.append(compiled(A))
            same(seen[-1], call(A))
    put(1.0)
    assert not torch.equal(seen[0], seen[1])


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("values", [(1.0, 2.0, 3.0), (1, 2, 3), (True, False, True)], ids=str)
def test_an_argument_may_be_closed_over(values: tuple[Any, ...], dynamic: bool | None) -> None:
    def call(x: torch.Tensor, s: Any) -> Any:
        return weft.contract(E, x, B, epilogue=partial(lambda value, by: value * s + by, by=1))

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for s in values:
        same(compiled(A, s), call(A, s))


def test_an_extent_may_be_closed_over() -> None:
    def call(x: torch.Tensor) -> Any:
        rows = x.shape[0]
        return weft.contract(E, x, B, epilogue=lambda value: value * rows + rows / 2)

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager", dynamic=True)
    for rows in (3, 5, 2, 1):
        x = torch.randn(rows, 4, dtype=torch.float64)
        same(compiled(x), call(x))


def test_gradients_follow_too() -> None:
    def call(x: torch.Tensor, s: float) -> Any:
        return weft.contract(E, x, B, epilogue=lambda value: torch.sin(value * s * BOX[0]))

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    for s in (0.5, 0.25):
        put_box(2 * s)
        gradients = [torch.autograd.grad(each(x, s).sum(), x)[0]
                     for each in (compiled, call) for x in [A.clone().requires_grad_()]]  # fmt: skip
        torch.testing.assert_close(*gradients)


def test_what_the_same_code_has_changed_before_is_seen() -> None:
    def call(x: torch.Tensor, s: float) -> Any:
        BOX[0] = s + 1
        return weft.contract(E, x, B, epilogue=from_list)

    compiled = torch.compile(call, backend="eager", fullgraph=True)
    for s in (1.0, 2.0, 3.0):
        same(compiled(A, s), (A @ B) * (s + 1))
        assert BOX[0] == s + 1
    counting = torch.compile(Counting(), backend="eager")
    for times in (1, 2, 3):
        same(counting(A), (A @ B) * times)


def test_a_function_that_dynamo_cannot_read_runs_outside_of_the_graph() -> None:
    """And errors are those of the plain call."""
    threads = torch.get_num_threads()

    def noted(value: torch.Tensor) -> torch.Tensor:
        torch.initial_seed()  # of which dynamo makes no graph
        return value * torch.get_num_threads()

    compiled = torch.compile(lambda x: weft.contract(E, x * 1, B, epilogue=noted) + 1, backend="eager")
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            same(compiled(A), (A @ B) * count + 1)
    finally:
        torch.set_num_threads(threads)
    tensor = torch.ones((), dtype=torch.float64)
    for function, message in (
        (lambda value: value if value > 0 else -value, "torch.where"),
        (lambda value: value * tensor, "pass it by operands="),
    ):
        with pytest.raises(weft.FunctionError, match=message):
            torch.compile(lambda x, f=function: weft.contract(E, x, B, epilogue=f), backend="eager")(A)
        with pytest.raises(Exception, match=r"operands=|[Dd]ata-dependent"):
            torch.compile(lambda x, f=function: weft.contract(E, x, B, epilogue=f), backend="eager", fullgraph=True)(A)


def test_what_runs_outside_of_the_graph_writes_to_out() -> None:
    unread = torch.compiler.disable(lambda value: value * 2)
    plan, moving = weft.plan(E, A, B, epilogue=unread), weft.plan_permute(A, "ij->ji", fn=unread)
    for call, expected in (
        (lambda out: weft.contract(E, A, B, epilogue=unread, out=out), A @ B * 2),
        (lambda out: plan(A, B, out=out), A @ B * 2),
        (lambda out: weft.permute(A, "ij->ji", fn=unread, out=out), A.T * 2),
        (lambda out: moving(A, out=out), A.T * 2),
    ):
        out = torch.full_like(expected, torch.nan)
        torch.compile(call, backend="eager")(out)
        same(out, expected)
