"""Every public call inside torch's dispatch modes: flops are counted, and fake tensors give fake tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cotengra as ctg
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import weft
import weft.hooks
from weft.blocks import BlockTensor

A = torch.arange(12.0, dtype=torch.float64).reshape(3, 4)
B = A.T.contiguous()
PAIRS = [(A, B), (A[:2], B)]
BLOCKS = BlockTensor({(0, 0): A, (1, 1): B})
TREE = ctg.ContractionTree.from_path(
    ["ij", "jk", "kl"], "il", {"i": 3, "j": 4, "k": 3, "l": 4}, path=[(0, 1), (0, 1)]
)  # fmt: skip


def _network(**options: Any) -> Callable[[], Any]:
    net = weft.network("ij,jk,kl->il", A, B, A, **options)
    return lambda: net(A, B, A)


def _plan(**options: Any) -> Callable[[], Any]:
    plan = weft.plan("ij,jk->ik", A, B, **options)
    return lambda: plan(A, B)


def _moved() -> Callable[[], Any]:
    plan = weft.plan_permute(A, "ij->ji")
    return lambda: plan(A)


def _group(*given: Any) -> Callable[[], Any]:
    plan = weft.plan_grouped("ij,jk->ik", PAIRS)
    return lambda: plan(*given)


def _sum() -> Callable[[], Any]:
    operators = weft.OperatorSum([(torch.eye(3), None, None), (None, torch.eye(2), torch.eye(4))])
    state = torch.rand(3, 2, 4)
    return lambda: operators(state)


def _layer() -> Callable[[], Any]:
    layer, x = weft.nn.Einsum("ij,jk->ik", (4, 5)).double(), A.clone()
    return lambda: layer(x)


PRODUCT = 2 * 3 * 4 * 3
#: How each call is made, and its flops: None for calls whose sums torch does not count.
CALLS: dict[str, tuple[Callable[[], Callable[[], Any]], int | None]] = {
    "contract": (lambda: lambda: weft.contract("ij,jk->ik", A, B), PRODUCT),
    "contract with c": (lambda: lambda: weft.contract("ij,jk->ik", A, B, c=A[:, :3]), PRODUCT),
    "contract with places": (
        lambda: lambda: weft.contract("ij,jk->ik", A, B, algebra="max_plus", return_arg=True), PRODUCT
    ),
    "plan": (_plan, PRODUCT),
    "plan with places": (lambda: _plan(algebra="max_plus", return_arg=True), PRODUCT),
    "einsum of three": (lambda: lambda: weft.einsum("ij,jk,kl->il", A, B, A), 2 * PRODUCT),
    "matmul": (lambda: lambda: weft.matmul(A, B), PRODUCT),
    "tensordot": (lambda: lambda: weft.tensordot(A, B, 1), PRODUCT),
    "permute": (lambda: lambda: weft.permute(A, "ij->ji"), None),
    "plan_permute": (_moved, None),
    "transpose_": (lambda: lambda: weft.transpose_(A.clone()), None),
    "network": (_network, 2 * PRODUCT),
    "network that keeps": (lambda: _network(reuse=True), 2 * PRODUCT),
    "network in slices": (lambda: _network(slices="i", optimize=[(0, 1), (0, 1)]), 2 * PRODUCT),
    "network and exponent": (lambda: _network(strip_exponent=True), 2 * PRODUCT),
    "contract_tree": (lambda: lambda: weft.hooks.contract_tree(TREE, [A, B, A]), 2 * PRODUCT),
    "grouped": (lambda: lambda: weft.grouped("ij,jk->ik", PAIRS), PRODUCT * 5 // 3),
    "grouped evenly": (lambda: lambda: weft.grouped("ij,jk->ik", [(A, B)] * 2), 2 * PRODUCT),
    "plan_grouped": (_group, PRODUCT * 5 // 3),
    "plan_grouped of others": (lambda: _group([(A.clone(), B), (A[:2], B)]), PRODUCT * 5 // 3),
    "blocks": (lambda: lambda: weft.blocks.contract("ij,kj->ik", BLOCKS, BLOCKS).buffer, 168),
    "chain": (lambda: lambda: weft.chain("ij,jk,kl->il", A, B, A), 2 * PRODUCT),
    "operator_sum": (_sum, None),
    "nn.Einsum": (_layer, 2 * 3 * 4 * 5),
}  # fmt: skip


class Seen(TorchDispatchMode):
    """The names of operations that are made within."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(operation))
        return operation(*args, **(kwargs or {}))


def tensors(found: Any) -> list[torch.Tensor]:
    return [found] if isinstance(found, torch.Tensor) else list(found)


@pytest.mark.parametrize("name", CALLS)
def test_flops_are_counted_in_every_call(name: str) -> None:
    make, flops = CALLS[name]
    call = make()
    counts = []
    for _ in range(2):
        right = tensors(call())
        with FlopCounterMode(display=False) as counter:
            found = tensors(call())
        counts.append(counter.get_total_flops())
        for one, other in zip(found, right, strict=True):
            if name != "network and exponent":  # whose exponent may be another for the same value
                torch.testing.assert_close(one, other)
    assert counts[0] == counts[1]
    assert flops is None or counts[0] == flops


@pytest.mark.parametrize("name", CALLS)
def test_a_mode_sees_an_operation_for_each_call(name: str) -> None:
    call = CALLS[name][0]()
    call()
    with Seen() as seen:
        call()
    assert any(one.startswith("weft") for one in seen.names) or name == "transpose_", seen.names


@pytest.mark.parametrize("name", CALLS)
def test_fake_tensors_come_of_fake_tensors(name: str) -> None:
    call = CALLS[name][0]()
    right = tensors(call())
    with FakeTensorMode(allow_non_fake_inputs=True):
        found = tensors(call())
    assert all(isinstance(one, FakeTensor) for one in found)
    assert [(one.shape, one.dtype) for one in found] == [(one.shape, one.dtype) for one in right]
    for one, other in zip(tensors(call()), right, strict=True):
        torch.testing.assert_close(one, other)


def test_exponents_stand_for_the_same_value_within_a_mode() -> None:
    big = 1e200 * (A + 1)
    net = weft.network("ij,jk,kl->il", big, big.T.contiguous(), big, strip_exponent=True, slices="j")
    value, exponent = net(big, big.T.contiguous(), big)
    place = torch.empty_like(value)
    with FlopCounterMode(display=False):
        other, power = net(big, big.T.contiguous(), big, out=place)
    assert other is place
    torch.testing.assert_close(other.log10() + power, value.log10() + exponent)


def test_groups_add_to_their_places_within_a_mode() -> None:
    out = [torch.ones(3, 3, dtype=torch.float64), torch.ones(2, 3, dtype=torch.float64)]
    with FlopCounterMode(display=False):
        weft.grouped("ij,jk->ik", PAIRS, out=out, accumulate_into=True)
        with pytest.raises(weft.ShapeError, match="out is a list of a place for each pair: 2, not 1"):
            weft.grouped("ij,jk->ik", PAIRS, out=out[:1])
        with pytest.raises(weft.ArgumentError, match="pass out"):
            weft.grouped("ij,jk->ik", PAIRS, accumulate_into=True)
    for place, (a, b) in zip(out, PAIRS, strict=True):
        torch.testing.assert_close(place, a @ b + 1)
