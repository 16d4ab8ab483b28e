"""The public calls within `torch.compile`: no graph breaks, the values of the plain call, whatever the shapes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import functional

import weft

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

A, B, C, BIAS = torch.randn(8, 6), torch.randn(6, 5), torch.randn(5, 7), torch.randn(5)
GELU = torch.nn.GELU()
PLAN = weft.plan("mk,kn->mn", A, B, epilogue=lambda total, bias: total + bias, operands={"bias": ("n", BIAS)})
MOVED = weft.plan_permute(A, "ab->ba", fn=torch.relu)
OWN = weft.Algebra(torch.add, torch.maximum, identity="lowest", name="longest path")


def layer(a: torch.Tensor, b: torch.Tensor) -> Any:
    slope = 0.25
    return weft.contract(
        "mk,kn->mn", a, b, a_fn=torch.relu, epilogue=lambda total, bias: torch.where(total > 0, total, slope * total)
        + bias, operands={"bias": ("n", BIAS)}, alpha=0.5,
    )  # fmt: skip


def places(a: torch.Tensor, b: torch.Tensor) -> Any:
    product, turned = torch.full((8, 5), torch.nan), torch.full((6, 8), torch.nan)
    returned = weft.contract("mk,kn->mn", a, b, out=product)
    weft.permute(a, "ab->ba", out=turned)
    weft.contract("mk,kn->mn", a, b, c=product, out=product, beta=2.0)
    return returned, product + 1, turned


CALLS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "closure and operand": layer,
    "module": lambda a, b: weft.matmul(a, b, epilogue=GELU),
    "partial": lambda a, b: weft.matmul(a, b, epilogue=partial(functional.gelu, approximate="tanh")),
    "ready function": lambda a, b: weft.matmul(a, b, epilogue=weft.functions.gelu("tanh")),
    "types": lambda a, b: weft.matmul(a, b, precision="fp16", out_dtype="fp64", c=A.new_ones(8, 1), c_fn=torch.exp),
    "ellipsis": lambda a, b: weft.contract("...k,kj->...j", a[None], b),
    "labels": lambda a, b: weft.einsum(a, ("row", 1), b, (1, "column"), ("row", "column")),
    "index": lambda a, b: weft.matmul(
        a, b, epilogue=lambda s, i, j: torch.where(i >= j, s, -torch.inf), indices={"i": "m", "j": "n"}
    ),
    "tuple": lambda a, b: weft.matmul(a, b, epilogue=lambda total: (total, total > 0)),
    "algebra": lambda a, b: weft.contract("ik,kj->ij", a, b, algebra="tropical"),
    "own algebra": lambda a, b: weft.contract("ik,kj->ij", a, b, algebra=OWN),
    "algebra made within": lambda a, b: weft.contract(
        "ik,kj->ij", a, b, algebra=weft.Algebra(torch.add, torch.minimum, "highest")
    ),
    "place of the largest": lambda a, b: weft.contract("ik,kj->ij", a, b, algebra="max_plus", return_arg=True),
    "places": lambda a, b: weft.contract("ik,kj->", a, b, algebra="max_plus", return_arg=True),
    "einsum of three": lambda a, b: weft.einsum("ab,bc,cd->ad", a, b, C, epilogue=torch.relu),
    "einsum of one": lambda a, b: weft.einsum("ab->a", a),
    "einsum of one in an algebra": lambda a, b: weft.einsum("ab->b", a, algebra="max_plus"),
    "einsum that moves": lambda a, b: weft.einsum("ab->ba", a),
    "permute": lambda a, b: weft.permute(a, "ab->cba", extents={"c": 3}, fn=torch.tanh, out_dtype="fp16", alpha=2.0),
    "plan": lambda a, b: PLAN(a, b, operands={"bias": BIAS}),
    "plan of a permutation": lambda a, b: MOVED(a),
    "out": places,
    "validated": lambda a, b: weft.contract("mk,kn->mn", a, b, validate=True),
}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def same(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def same_as(name: str, found: Any, expected: Any) -> None:
    """Bit for bit, but for einsum of three: pairs may meet in another order."""
    torch.testing.assert_close(found, expected) if "three" in name else same(found, expected)


@pytest.mark.parametrize("name", CALLS)
def test_compiled_is_what_the_call_is(name: str) -> None:
    call = CALLS[name]
    expected = call(A, B)
    same_as(name, torch.compile(call, fullgraph=True, backend="aot_eager")(A, B), expected)


@pytest.mark.parametrize("name", ["closure and operand", "einsum of three", "permute", "plan"])
def test_dynamo_alone_reads_the_calls(name: str) -> None:
    same_as(name, torch.compile(CALLS[name], fullgraph=True, backend="eager")(A, B), CALLS[name](A, B))
    assert torch._dynamo.explain(CALLS[name])(A, B).graph_break_count == 0


@pytest.mark.parametrize("name", ["closure and operand", "einsum of three", "einsum of one", "permute", "ellipsis"])
def test_one_graph_serves_all_extents(name: str) -> None:
    compiled = torch.compile(CALLS[name], fullgraph=True, backend="aot_eager", dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for rows in (8, 3, 11, 2):
            a = torch.randn(rows, 6)
            same_as(name, compiled(a, B), CALLS[name](a, B))


def equations(call: Callable[..., Any], *tensors: torch.Tensor, **how: Any) -> list[str]:
    """Those of the operations in the graph of a call."""
    found: list[str] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        found.extend(json.loads(node.args[0])["equation"] for node in graph.graph.nodes if "weft" in str(node.target))
        return graph

    torch.compile(call, fullgraph=True, backend=backend, **how)(*tensors)
    return found


def test_einsum_of_many_goes_the_way_of_the_call() -> None:
    """The network's path, and its orders of modes: bit for bit what runs without compiling."""
    a, b, c, v = (torch.randn(shape) for shape in ((20, 30), (30, 40), (40, 20), (20,)))
    call = partial(weft.einsum, "ab,bc,cd,d->a")
    assert [text.split("->")[1] for text in equations(call, a, b, c, v)] == ["c", "b", "a"]
    batch = [torch.randn(shape) for shape in ((3, 4, 5), (3, 5, 6), (3, 6, 2), (4, 2))]
    ring = partial(weft.einsum, "zab,zbc,zcd,ad->z")
    for each, tensors in ((call, (a, b, c, v)), (ring, batch)):
        torch._dynamo.reset()
        same(torch.compile(each, fullgraph=True, backend="aot_eager")(*tensors), each(*tensors))
    torch._dynamo.reset()
    ones = torch.randn(1, 6)  # an extent of 1 that broadcasts, and a diagonal
    found = torch.compile(lambda x, y, z: weft.einsum("iij,jk,kl->il", x, y, z), fullgraph=True, backend="eager")
    x, y = torch.randn(3, 3, 4), torch.randn(6, 2)
    torch.testing.assert_close(found(x, ones, y), torch.einsum("iij,jk,kl->il", x, ones.expand(4, 6), y))


def test_subtrees_of_an_einsum_may_run_in_another_order_than_they_were_found() -> None:
    tensors = [torch.randn(shape) for shape in ((), (3, 2), (), (3, 3, 2), ())]
    call = partial(weft.einsum, ",ba,,bba,->b")
    same(torch.compile(call, fullgraph=True, backend="eager")(*tensors), call(*tensors))


def test_open_extents_count_as_one_number_where_a_path_is_chosen() -> None:
    a, b, c, v = (torch.randn(shape) for shape in ((20, 30), (30, 40), (40, 20), (20, 1)))
    call = partial(weft.einsum, "ab,bc,cd,de->ae")
    way = equations(call, a, b, c, v, dynamic=True)
    assert [text.split("->")[1] for text in way] == ["ce", "be", "ae"]  # an extent of 1 is never open
    torch._dynamo.reset()
    torch._dynamo.mark_dynamic(a, 0)
    assert equations(call, a, b, c, v) == way
    torch._dynamo.reset()
    with pytest.raises(Exception, match=r"label .*b.* has extent 30 in operand 0 and 29"):
        torch.compile(call, backend="eager")(a, b[1:], c, v)


def test_extents_that_are_given_may_change() -> None:
    def spread(x: torch.Tensor, times: int) -> Any:
        return weft.permute(x, "a->ba", extents={"b": times})

    compiled = torch.compile(spread, fullgraph=True, backend="aot_eager", dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for times in (4, 5, 9):
            same(compiled(BIAS, times), spread(BIAS, times))


def test_a_changed_closure_is_seen() -> None:
    def scaled(a: torch.Tensor, by: float) -> Any:
        return weft.matmul(a, B, epilogue=lambda total: total * by)

    compiled = torch.compile(scaled, fullgraph=True, backend="eager", dynamic=False)
    for by in (2.0, 3.0):
        same(compiled(A, by), scaled(A, by))


def test_autocast_holds_for_compiled_code() -> None:
    def call(a: torch.Tensor, b: torch.Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return weft.matmul(a, b)

    expected = call(A, B)
    assert expected.dtype is torch.bfloat16
    same(torch.compile(call, fullgraph=True, backend="aot_eager")(A, B), expected)
    with torch.autocast("cpu", torch.bfloat16):
        same(torch.compile(lambda a, b: weft.matmul(a, b), fullgraph=True, backend="aot_eager")(A, B), expected)


def test_views_come_as_they_are() -> None:
    z = torch.randn(6, 8, dtype=torch.complex64)
    w = torch.randn(6, 5, dtype=torch.complex64)

    def call(z: torch.Tensor, w: torch.Tensor) -> Any:
        return weft.contract("mk,kn->mn", z.T.conj(), w[:, ::2]), weft.contract("mk,kn->mn", z.T.conj().imag, w.real)

    torch.testing.assert_close(torch.compile(call, fullgraph=True, backend="aot_eager")(z, w), call(z, w))


def test_what_cannot_be_computed_says_so() -> None:
    def call(a: torch.Tensor, b: torch.Tensor) -> Any:
        return weft.matmul(a, b, epilogue=lambda total: total.sum())

    with pytest.raises(Exception, match=r"aten\.sum cannot be fused") as caught:
        torch.compile(call, fullgraph=True, backend="eager")(A, B)
    assert "FunctionError" in repr(caught.value)
    with pytest.raises(Exception, match="label 'k' has extent 6 in operand 0 and 5 in operand 1"):
        torch.compile(lambda a, b: weft.contract("mk,kn->mn", a, b), fullgraph=True, backend="eager")(A, C)


def test_a_plan_is_for_the_tensors_that_it_was_made_for() -> None:
    with pytest.raises(Exception, match="ShapeError"):
        torch.compile(PLAN, fullgraph=True, backend="eager")(torch.randn(3, 6), B, operands={"bias": BIAS})


def test_what_is_no_operation_runs_between_graphs() -> None:
    def call(a: torch.Tensor, b: torch.Tensor) -> Any:
        first = weft.plan("mk,kn->mn", a * 2, b, epilogue=torch.relu)(a * 2, b)
        turned = weft.plan_permute(first, "ab->ba")(first)
        return weft.transpose_(turned + 1)

    same(torch.compile(call, backend="aot_eager")(A, B), call(A, B))
    torch._dynamo.reset()
    with pytest.raises(Exception, match="outside of compiled code plans are made, tensors are transposed in place"):
        torch.compile(call, backend="aot_eager", fullgraph=True)(A, B)


def test_a_function_that_dynamo_cannot_take_for_a_constant_ends_the_graph() -> None:
    def call(a: torch.Tensor, b: torch.Tensor) -> Any:
        shift = b.sum().item()
        return weft.matmul(a, b, epilogue=lambda total: total + shift) * 2

    same(torch.compile(call, backend="aot_eager")(A, B), call(A, B))


@pytest.mark.slow
def test_inductor_runs_the_calls() -> None:
    same(torch.compile(layer, fullgraph=True)(A, B), layer(A, B))
