"""Operands of networks that reuse, and constants, that were written between calls."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch

import weft

SIZE = 4
UNIT = torch.eye(SIZE)


def by_bound(x: torch.Tensor) -> None:
    weft.plan("ij,jk->ik", UNIT, UNIT).bind(2 * x, UNIT, x)()


def by_bound_permutation(x: torch.Tensor) -> None:
    weft.plan_permute(UNIT, "ij->ji").bind(2 * x, x)()


def swapped(x: torch.Tensor) -> None:
    x.data = (2 * x.detach()).T.contiguous().T


#: What torch counts, or weft, which does as torch.
SEEN: dict[str, Callable[[torch.Tensor], object]] = {
    "in place": lambda x: x.mul_(2),
    "through a view": lambda x: x.view(-1)[: SIZE * SIZE].mul_(2),
    "detached": lambda x: x.detach().mul_(2),
    "out": lambda x: torch.mul(x.clone(), 2, out=x),
    "contract": lambda x: weft.contract("ij,jk->ik", 2 * x, UNIT, out=x),
    "einsum": lambda x: weft.einsum("ij,jk,kl->il", 2 * x, UNIT, UNIT, out=x),
    "permute": lambda x: weft.permute(x + 1, "ij->ji", out=x),
    "transpose_": lambda x: weft.transpose_(x),
    "grouped": lambda x: weft.grouped("ij,jk->ik", [(2 * x, UNIT), (UNIT, UNIT)], out=[x, torch.empty(SIZE, SIZE)]),
    "a bound call": by_bound,
    "a bound permutation": by_bound_permutation,
    "other memory": swapped,
}
#: What nobody counts.
UNSEEN: dict[str, Callable[[torch.Tensor], object]] = {
    "data": lambda x: x.data.mul_(2),
    "storage": lambda x: x.untyped_storage().copy_((x + 1).untyped_storage()),
    "NumPy": lambda x: x.numpy().__imul__(2),
}
#: Constants, by place: contracted when the network is made, as they are, and both.
CONSTANTS = [(0, 1), (0,), (2,), (0, 2), (0, 1, 2)]


def operands() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.rand(SIZE, SIZE) for _ in range(3)]


def check(net: Any, tensors: list[torch.Tensor], left: list[int]) -> None:
    torch.testing.assert_close(net(*[tensors[at] for at in left]), torch.linalg.multi_dot(tensors))


@pytest.mark.parametrize("write", SEEN.values(), ids=SEEN)
@pytest.mark.parametrize("calls", [1, 12])
@pytest.mark.parametrize("constants", [*CONSTANTS, None], ids=str)
def test_what_was_written_counts(
    constants: tuple[int, ...] | None, calls: int, write: Callable[[torch.Tensor], object]
) -> None:
    tensors = operands()
    kept = {"reuse": True} if constants is None else {"constants": constants}
    net = weft.network("ab,bc,cd->ad", *tensors, optimize=[(0, 1), (0, 1)], **kept)
    left = [at for at in range(3) if at not in (constants or ())]
    for at in range(3):
        for _ in range(calls):
            check(net, tensors, left)
        write(tensors[at])
        check(net, tensors, left)


@pytest.mark.parametrize("write", UNSEEN.values(), ids=UNSEEN)
@pytest.mark.parametrize("constants", [*CONSTANTS, None], ids=str)
def test_refresh_says_what_nobody_counts(
    constants: tuple[int, ...] | None, write: Callable[[torch.Tensor], object]
) -> None:
    tensors = operands()
    kept = {"reuse": True} if constants is None else {"constants": constants}
    net = weft.network("ab,bc,cd->ad", *tensors, optimize=[(0, 1), (0, 1)], **kept)
    left = [at for at in range(3) if at not in (constants or ())]
    for at in range(3):
        check(net, tensors, left)
        write(tensors[at])
        net.refresh()
        check(net, tensors, left)


OPTIMIZERS = [
    lambda p, fused: torch.optim.SGD(p, lr=0.1, fused=fused), lambda p, fused: torch.optim.Adam(p, lr=0.1, fused=fused),
    lambda p, fused: torch.optim.AdamW(p, lr=0.1, fused=fused),
    lambda p, fused: torch.optim.Adagrad(p, lr=0.1, fused=fused),
]  # fmt: skip


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("make", OPTIMIZERS, ids=["SGD", "Adam", "AdamW", "Adagrad"])
def test_reuse_sees_the_steps_of_optimizers(make: Callable[..., torch.optim.Optimizer], fused: bool) -> None:
    tensors = operands()
    tensors[0] = torch.nn.Parameter(tensors[0])
    optimizer = make([tensors[0]], fused)
    net = weft.network("ab,bc,cd->ad", *[each.detach() for each in tensors], reuse=True)
    for _ in range(12):
        with torch.no_grad():
            check(net, tensors, [0, 1, 2])
        tensors[0].grad = torch.ones(SIZE, SIZE)
        optimizer.step()


def test_copies_of_a_network_have_constants_of_their_own() -> None:
    tensors = operands()
    net = weft.network("ab,bc,cd->ad", *tensors, constants=(0, 1))
    check(net, tensors, [2])
    other, before = copy.deepcopy(net), [each.clone() for each in tensors]
    tensors[0].mul_(2)
    check(net, tensors, [2])
    check(other, before, [2])


def test_constants_that_were_given_another_shape_are_refused() -> None:
    tensors = operands()
    net = weft.network("ab,bc,cd->ad", *tensors, constants=(0,))
    tensors[0].data = torch.rand(SIZE, SIZE + 1)
    with pytest.raises(weft.ShapeError, match="operand 0 has shape"):
        net(*tensors[1:])


def test_negative_constants_are_followed() -> None:
    tensors = operands()
    z = torch.complex(tensors[0], tensors[1])
    given = [z.conj().imag, *tensors[1:]]
    net = weft.network("ab,bc,cd->ad", *given, constants=(0,))
    for _ in range(3):
        check(net, given, [1, 2])
        z.mul_(2)


@pytest.mark.parametrize("calls", [14])
def test_bound_calls_count_what_they_write(calls: int) -> None:
    a, b, out, turned = torch.rand(6, 5), torch.rand(5, 4), torch.empty(6, 4), torch.empty(5, 6)
    c = torch.rand(4, 4)
    for run, place in (
        (weft.plan("ij,jk->ik", a, b).bind(a, b, out), out),
        (weft.plan("ij,jk->ik", a, b, epilogue=torch.relu).bind(a, b, out), out),
        (weft.plan_permute(a, "ij->ji").bind(a, turned), turned),
        (weft.network("ij,jk,kl->il", a, b, c).bind(a, b, c, out=out), out),
    ):
        versions = [(run(), place._version)[1] for _ in range(calls)]
        assert all(after > before for before, after in pairwise(versions))


def test_a_result_that_a_bound_call_wrote_anew_is_no_longer_saved() -> None:
    a, b = torch.rand(4, 4), torch.rand(4, 4)
    run = weft.plan("ij,jk->ik", a, b).bind(a, b)
    x = torch.rand(4, 4, requires_grad=True)
    result = (run() * x).sum()
    run()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()
