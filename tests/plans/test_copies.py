"""Copies and pickles of what is planned: they compute the same, and on their own."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

import weft

A, B, C = torch.rand(6, 5), torch.rand(5, 4), torch.rand(4, 3)
PAIRS = [(A, B), (A[:2], B)]

HOW: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy, "deepcopy": copy.deepcopy, "pickle": lambda value: pickle.loads(pickle.dumps(value)),
}  # fmt: skip

#: What is planned, and a call of it.
PLANNED: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "plan": (lambda: weft.plan("ij,jk->ik", A, B, epilogue=torch.relu), lambda it: it(A, B)),
    "plan with places": (
        lambda: weft.plan("ij,jk->ik", A, B, algebra="max_plus", return_arg=True), lambda it: it(A, B)
    ),
    "plan_permute": (lambda: weft.plan_permute(A, "ij->ji"), lambda it: it(A)),
    "grouped": (lambda: weft.plan_grouped("ij,jk->ik", PAIRS, epilogue=torch.relu), lambda it: it()),
    "grouped evenly": (lambda: weft.plan_grouped("ij,jk->ik", [(A, B)] * 2), lambda it: it([(A, B)] * 2)),
    "grouped to places": (
        lambda: weft.plan_grouped("ij,jk->ik", PAIRS, out=[torch.zeros(6, 4), torch.zeros(2, 4)]), lambda it: it()
    ),
    "operator_sum": (lambda: weft.OperatorSum([(torch.eye(6), None, torch.ones(5, 5))]), lambda it: it(A[:, None])),
    **{
        f"network {options}": (
            lambda options=options: weft.network("ij,jk,kl->il", A, B, C, **options), lambda it: it(A, B, C)
        )
        for options in ({}, {"reuse": True}, {"slices": "j"}, {"strip_exponent": True}, {"algebra": "max_plus"})
    },
    "network with a constant": (lambda: weft.network("ij,jk,kl->il", A, B, C, constants=[1]), lambda it: it(A, C)),
}


def results(found: Any) -> list[torch.Tensor]:
    return [found.clone()] if isinstance(found, torch.Tensor) else [one.clone() for one in found]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("called", [False, True], ids=["new", "called"])
@pytest.mark.parametrize("name", PLANNED)
def test_a_copy_computes_the_same(name: str, called: bool, how: str) -> None:
    make, call = PLANNED[name]
    planned = make()
    right = results(call(make()))
    if called:
        call(planned)
    copied = HOW[how](planned)
    for each in (copied, planned, copied):
        assert all(map(torch.equal, results(call(each)), right))
    assert str(copied) == str(planned)


def test_a_deep_copy_of_a_network_has_constants_of_its_own() -> None:
    net = weft.network("ij,jk->ik", A, B, constants=[1])
    copied = copy.deepcopy(net)
    for one in copied.fixed.operands:
        one.zero_()
    torch.testing.assert_close(net(A), A @ B)


def test_a_copy_of_a_group_is_told_apart_from_the_first() -> None:
    plan = weft.plan_grouped("ij,jk->ik", PAIRS)
    copied = copy.copy(plan)
    copied([(2 * A, B), (2 * A[:2], B)])
    torch.testing.assert_close(plan()[0], A @ B)
    torch.testing.assert_close(copied()[0], 2 * A @ B)
