"""A call that is repeated is known: it plans nothing, reads little, and leaves nothing behind."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import weft
from weft.engine.calls import CALLS as TABLE


def frames(call: Callable[[], Any]) -> int:
    """Python functions that a call enters, besides itself."""
    entered = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal entered
        entered += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        call()
    finally:
        sys.setprofile(before)
    return entered - 1


A, B, C, OUT = (torch.rand(8, 8) for _ in range(4))
BIAS = torch.rand(8)
STACK = torch.rand(4, 8, 8)
EVEN = [(each, each) for each in STACK]
UNEVEN = [(torch.rand(rows, 8), B) for rows in (3, 5, 8)]
BLOCKS = weft.blocks.BlockTensor({(0, 0): A, (1, 1): B})
LEAF = torch.rand(8, 8, requires_grad=True)
WIDE, LONG = torch.rand(3, 4, 5, 6, requires_grad=True), torch.rand(4, 2, 6, 3, requires_grad=True)
ATTENTION = "id,jd->ij, ij,je->ie"


def _weights(s: torch.Tensor) -> torch.Tensor:
    return weft.softmax(s, "j")


# Made by the tests that call them: they compile kernels.
plan = cache(lambda: weft.plan("mk,kn->mn", A, B))
attention = cache(lambda: weft.plan_cascade(ATTENTION, A, B, C, between=_weights))
network = cache(lambda: weft.network("ij,jk,kl->il", A, B, C))
network_of_four = cache(lambda: weft.network("ij,jk,kl,lm->im", A, B, C, OUT))


@cache
def operation(equation: str, *tensors: torch.Tensor, **keywords: Any) -> Callable[[], Any]:
    """The operation in compiled code of a contraction, or of a permutation of one tensor."""
    call = weft.contract if len(tensors) > 1 else lambda text, x: weft.permute(x, text)
    graph = make_fx(lambda *given: call(equation, *given, **keywords))(*tensors).graph
    (node,) = (node for node in graph.nodes if str(node.target).startswith("weft."))
    _, _, *others = node.args
    return lambda: node.target(node.args[0], list(tensors), *others)


CALLS: dict[str, tuple[Callable[[], Any], int]] = {
    "contract": (lambda: weft.contract("mk,kn->mn", A, B), 8),
    "into out": (lambda: weft.contract("mk,kn->mn", A, B, out=OUT), 10),
    "with C": (lambda: weft.contract("mk,kn->mn", A, B, c=C, alpha=2.0), 12),
    "with a function": (lambda: weft.contract("mk,kn->mn", A, B, epilogue=lambda v: v * v), 13),
    "with operands": (
        lambda: weft.contract(
            "mk,kn->mn", A, B, epilogue=lambda v, bias: v + bias, operands={"bias": ("n", BIAS)}
        ), 17,
    ),
    "tuples of labels": (lambda: weft.contract((("m", "k"), ("k", "n"), ("m", "n")), A, B), 9),
    "lists of labels": (lambda: weft.contract([["m", "k"], ["k", "n"], ["m", "n"]], A, B), 9),
    "NumPy arrays": (lambda: weft.contract("mk,kn->mn", A.numpy(), B.numpy()), 49),
    "einsum of NumPy arrays": (lambda: weft.einsum("ij,jk,kl->il", A.numpy(), B.numpy(), C.numpy()), 62),
    "permute of a NumPy array": (lambda: weft.permute(A.numpy(), "ij->ji"), 32),
    "NumPy arrays into out": (lambda: weft.contract("mk,kn->mn", A.numpy(), B.numpy(), out=OUT.numpy()), 60),
    "plan": (lambda: weft.plan("mk,kn->mn", A, B), 72),
    "a plan's call": (lambda: plan()(A, B), 9),
    "einsum of one": (lambda: weft.einsum("ij->i", A), 12),
    "einsum of two": (lambda: weft.einsum("mk,kn->mn", A, B), 10),
    "einsum by labels": (lambda: weft.einsum(A, [0, 1], B, [1, 2], [0, 2]), 11),
    "einsum of a diagonal": (lambda: weft.einsum("ii->i", A), 11),
    "einsum of three": (lambda: weft.einsum("ij,jk,kl->il", A, B, C), 20),
    "matmul": (lambda: weft.matmul(A, B), 7),
    "tensordot": (lambda: weft.tensordot(A, B, 1), 9),
    "permute": (lambda: weft.permute(A, "ij->ji"), 13),
    "permute into out": (lambda: weft.permute(A, "ij->ji", out=OUT), 15),
    "permute by labels": (lambda: weft.permute(A, (("i", "j"), ("j", "i"))), 14),
    "permute with a function": (lambda: weft.permute(A, "ij->ji", fn=torch.relu), 17),
    "an operation": (lambda: operation("mk,kn->mn", A, B)(), 17),
    "an operation with a function": (lambda: operation("mk,kn->mn", A, B, epilogue=torch.relu)(), 18),
    "an operation that permutes": (lambda: operation("ij->ji", A)(), 17),
    "transpose_": (lambda: weft.transpose_(A), 8),
    "grouped": (lambda: weft.grouped("mk,kn->mn", UNEVEN), 13),
    "grouped of forty": (lambda: weft.grouped("mk,kn->mn", EVEN * 10), 13),
    "grouped with a function": (lambda: weft.grouped("mk,kn->mn", UNEVEN, epilogue=torch.relu), 86),
    "lists": (lambda: weft.contract("bjd,bde->bje", A, STACK, ragged={"j": [0, 2, 3, 5, 8]}), 56),
    "blocks": (lambda: weft.blocks.contract("ij,jk->ik", BLOCKS, BLOCKS), 50),
    "network": (lambda: network()(A, B, C), 13),
    "network of four": (lambda: network_of_four()(A, B, C, OUT), 16),
    "chain": (lambda: weft.chain("pq,qc,cr->pr", A, B, C), 56),
    "gradient": (lambda: weft.contract("mk,kn->mn", LEAF, B).sum().backward(), 50),
    "gradient of labels": (lambda: weft.contract((("m", "k"), ("k", "n"), ("m", "n")), LEAF, B).sum().backward(), 51),
    "gradient of four modes with an epilogue": (
        lambda: weft.contract("acbd,cedf->abef", WIDE, LONG, epilogue=torch.nn.functional.gelu).sum().backward(), 71,
    ),
    "gradient of permute": (lambda: weft.permute(LEAF, "ij->ji").sum().backward(), 55),
    "cascade": (lambda: weft.cascade(ATTENTION, A, B, C, between=_weights, alpha=0.25), 14),
    "a plan's cascade": (lambda: attention()(A, B, C), 16),
    "gradient of a cascade": (lambda: weft.cascade(ATTENTION, LEAF, B, C, between=_weights).sum().backward(), 27),
}


@pytest.mark.keeps
@pytest.mark.parametrize("name", CALLS)
def test_repeated_calls_are_known(name: str) -> None:
    call, most = CALLS[name]
    for _ in range(3):
        call()
    before = len(TABLE)
    found = frames(call)
    assert found <= most, f"{found} functions are entered"
    assert len(TABLE) == before, "a repeated call leaves an entry"


def test_a_new_network_of_three_is_planned_with_few_looks() -> None:
    """It took 1,140 when paths of libraries were compared, where there are but three."""
    weft.network("ij,jk,kl->il", (3, 4), (4, 5), (5, 6))
    assert frames(lambda: weft.network("ij,jk,kl->il", (7, 8), (8, 9), (9, 11))) <= 480


def test_known_calls_of_arrays_and_labels_compute_anew() -> None:
    a, b = torch.rand(5, 6, dtype=torch.float64).numpy(), torch.rand(6, 7, dtype=torch.float64).numpy()
    for _ in range(3):
        a += 1
        assert abs(weft.contract("mk,kn->mn", a, b) - a @ b).max() < 1e-12
        assert abs(weft.contract([[0, 1], [1, 2], [2, 0]], a, b) - (a @ b).T).max() < 1e-12
        assert abs(weft.contract("mk,kn->mn", a, b, alpha=3) - 3 * (a @ b)).max() < 1e-11
    labels = [["m", "k"], ["k", "n"], ["m", "n"]]
    x, y = torch.from_numpy(a), torch.from_numpy(b)
    weft.contract(labels, x, y)
    labels[2].reverse()
    assert torch.allclose(weft.contract(labels, x, y), (x @ y).T)


def test_known_gradients_compute_anew() -> None:
    """A step of a backward pass takes the launch of the pass before, with the factors and values of this one."""
    c = torch.rand(4, 6, dtype=torch.float64, requires_grad=True)
    for at in range(4):
        a = torch.rand(4, 5, dtype=torch.float64, requires_grad=True)
        b = torch.rand(5, 6, dtype=torch.float64, requires_grad=True)
        alpha, beta = 1.0 + at % 2, float(at // 2)
        found = weft.contract("mk,kn->mn", a, b, c=c, alpha=alpha, beta=beta, epilogue=torch.sin)
        moved = weft.permute(c, "ij->jki", fn=torch.sin, extents={"k": 3})
        wanted_of = torch.sin(alpha * (a @ b) + beta * c), c.sin().T[:, None].expand(6, 3, 4)
        for made, wanted, leaves in zip((found, moved), wanted_of, ((a, b, c), (c,)), strict=True):
            for first, second in zip(_twice(made, leaves), _twice(wanted, leaves), strict=True):
                assert torch.allclose(first, second, atol=1e-12)


@pytest.mark.keeps
def test_a_first_backward_pass_plans_no_more_than_its_contractions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Three of them, and one derivative: the gradient of the sums is made once on a CPU."""
    monkeypatch.setenv("WEFT_TIERS", "1")
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))  # where nothing is stored that a plan would ask for

    def entered(function: Callable[[torch.Tensor], torch.Tensor], rows: int) -> int:
        a, b = (torch.rand(shape, requires_grad=True) for shape in ((rows, 15, 16, 17), (15, 16, 17, 13)))
        found = weft.contract("mkpl,kqln->mpqn", a, b, epilogue=function)
        return frames(lambda: torch.autograd.grad(found, (a, b), torch.ones_like(found)))

    entered(torch.sigmoid, 13)  # imports
    passes = [entered(torch.nn.functional.gelu, 14) for _ in range(3)]
    assert passes[0] <= 6600, passes
    assert passes[2] <= 125, passes


def _twice(value: torch.Tensor, leaves: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """First derivatives, and those of the sum of their squares."""
    first = torch.autograd.grad(value.sum(), leaves, create_graph=True, materialize_grads=True)
    total = sum(((each**2).sum() for each in first), torch.zeros(()))
    return (*first, *torch.autograd.grad(total, leaves, materialize_grads=True))


def test_known_products_of_matrices_refuse_what_does_not_multiply() -> None:
    a, b, one = torch.rand(4, 6), torch.rand(6, 5), torch.rand(1, 5)
    weft.contract("...mk,...kn->...mn", a, one)  # broadcasts there
    for _ in range(3):
        assert torch.allclose(weft.matmul(a, b), a @ b, atol=1e-5)
        assert torch.allclose(weft.matmul(a, a, transpose_a=True), a.T @ a, atol=1e-5)
        with pytest.raises(weft.ShapeError, match="rows 1"):
            weft.matmul(a, one)
        with pytest.raises(weft.ArgumentError):
            weft.matmul(a, b, transpose_a=1)  # type: ignore[call-overload]


def test_known_moves_and_labels_of_einsum_compute_anew() -> None:
    for _ in range(3):
        a, b = torch.rand(5, 5), torch.rand(5, 7)
        assert torch.equal(weft.einsum("ii->i", a), a.diagonal())
        assert torch.equal(weft.einsum("ij->ji", b), b.T)
        assert torch.allclose(weft.einsum(a, [0, 1], b, [1, 2], [2, 0]), (a @ b).T, atol=1e-5)
        assert torch.allclose(weft.einsum(a, "mk", b, "kn", "mn"), a @ b, atol=1e-5)
        assert torch.equal(weft.einsum("i...->...i", b), b.T)


def test_known_tensordots_look_at_their_axes() -> None:
    a, b = torch.rand(3, 4, 5), torch.rand(4, 3, 6)
    for _ in range(3):
        assert torch.allclose(weft.tensordot(a, b, ((0, 1), (1, 0))), torch.tensordot(a, b, ((0, 1), (1, 0))))
        assert torch.allclose(weft.tensordot(a, b, [[1], [0]]), torch.tensordot(a, b, ([1], [0])))
        with pytest.raises(weft.ShapeError, match="axis 0 of a has extent 3"):
            weft.tensordot(a, b, ((0, 1), (0, 1)))
        with pytest.raises(weft.ShapeError):
            weft.tensordot(a, b[:, :2], ((0, 1), (1, 0)))


def test_a_few_small_pairs_take_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_TIERS", "1")
    for _ in range(3):
        pairs = [(torch.rand(rows, 4, requires_grad=rows == 3), torch.rand(4, 5)) for rows in (2, 3, 7)]
        found = weft.grouped("mk,kn->nm", pairs)
        for (a, b), one in zip(pairs, found, strict=True):
            assert torch.allclose(one, (a @ b).T, atol=1e-6)
        assert [one.requires_grad for one in found] == [False, True, False]
        with pytest.raises(weft.ShapeError):
            weft.grouped("mk,kn->nm", [*pairs, (torch.rand(2, 3), torch.rand(4, 5))])


def test_grouped_evenly_inside_vmap_nested() -> None:
    """The batch mode that a map adds has a label of its own at every depth."""
    x, y = torch.rand(2, 3, 4, 5), torch.rand(2, 3, 5, 6)

    def pair(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return weft.grouped("mk,kn->mn", [(a, b), (a, b)])[1]

    found = torch.func.vmap(torch.func.vmap(pair))(x, y)
    assert torch.allclose(found, x @ y, atol=1e-5)
