"""A group that comes again gives what its tensors say, whichever kind of views they are and whatever surrounds it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import weft

TYPE = torch.complex128


@pytest.fixture(autouse=True)
def tiers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call of a group is served otherwise than the second and the third, as it is for users."""
    monkeypatch.setenv("WEFT_TIERS", "1")


def _pairs(kind: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
    found = []
    for at in range(11):
        a, b = torch.randn(3 + at, 7, dtype=TYPE).conj(), torch.randn(7, 5, dtype=TYPE)
        found.append((a, b) if kind == "conjugate" else (a.imag, b.conj().imag))
    return found


def _check(found: Any, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    torch.testing.assert_close(list(found), [a @ b for a, b in pairs])


@pytest.mark.parametrize("kind", ["conjugate", "negative"])
def test_views_are_read_in_each_call(kind: str) -> None:
    plan = weft.plan_grouped("mk,kn->mn", _pairs(kind))
    for _ in range(4):
        pairs = _pairs(kind)
        assert pairs[0][0].is_conj() or pairs[0][0].is_neg()
        _check(weft.grouped("mk,kn->mn", pairs), pairs)
        _check(plan(pairs), pairs)
        _check(plan(), pairs)


def test_gradients_of_complex_groups_are_right_in_each_call() -> None:
    for _ in range(4):
        pairs = [(a.resolve_conj().requires_grad_(), b.requires_grad_()) for a, b in _pairs("conjugate")]
        leaves = [each for pair in pairs for each in pair]
        grads = [torch.randn(len(a), 5, dtype=TYPE) for a, _ in pairs]
        found = torch.autograd.grad(list(weft.grouped("mk,kn->mn", pairs)), leaves, grads)
        torch.testing.assert_close(found, torch.autograd.grad([a @ b for a, b in pairs], leaves, grads))


def test_autocast_is_that_of_each_call() -> None:
    pairs = [(torch.randn(3 + at, 7), torch.randn(7, 5)) for at in range(11)]
    for group in (pairs, pairs[:2]):
        halves = [(a.bfloat16(), b.bfloat16()) for a, b in group]
        for _ in range(3):
            with torch.autocast("cpu", torch.bfloat16):
                _check(weft.grouped("mk,kn->mn", group), halves)
            _check(weft.grouped("mk,kn->mn", group), group)



def test_tensors_whose_memory_was_freed_are_refused() -> None:
    pairs = [(a.imag.contiguous(), b.real.contiguous()) for a, b in _pairs("conjugate")]
    plan = weft.plan_grouped("mk,kn->mn", pairs)
    for _ in range(3):
        weft.grouped("mk,kn->mn", pairs)
    pairs[4][1].untyped_storage().resize_(0)
    for call in (weft.plan_grouped, weft.grouped):
        with pytest.raises(weft.ShapeError, match="its storage was freed"):
            call("mk,kn->mn", pairs)
    with pytest.raises(weft.ShapeError, match="its storage was freed"):
        plan(pairs)


def _charged(buffer: torch.Tensor) -> weft.blocks.ChargedTensor:
    leg = weft.blocks.Leg(weft.blocks.U1, {0: 2, 1: 2})
    return weft.blocks.ChargedTensor([leg, leg.dual], buffer)


PACKED = {
    "ragged": lambda a, b: weft.contract("bjd,de->bje", a.view(4, 2), b.view(2, 4), ragged={"j": [0, 2, 3, 4]}),
    "ragged sums": lambda a, b: weft.contract("bjd,bje->de", a.view(4, 2), b.view(4, 2), ragged={"j": [0, 2, 3, 4]}),
    "ragged weights": lambda a, b: weft.contract(
        "bjd,bde->bje", a.view(4, 2), b.view(2, 2, 2), ragged={"j": [0, 1, 4]}
    ),
    "blocks": lambda a, b: weft.blocks.contract("ij,jk->ik", _charged(a), _charged(b)),
}  # fmt: skip


@pytest.mark.parametrize("freed", [0, 1])
@pytest.mark.parametrize("calls", [0, 3])
@pytest.mark.parametrize("name", PACKED)
def test_packed_tensors_whose_memory_was_freed_are_refused(name: str, calls: int, freed: int) -> None:
    a, b = torch.randn(8), torch.randn(8)
    for _ in range(calls):
        PACKED[name](a, b)
    (a, b)[freed].untyped_storage().resize_(0)
    with pytest.raises(weft.ShapeError, match="its storage was freed"):
        PACKED[name](a, b)


@pytest.mark.parametrize("count", [2, 12])
def test_results_of_pairs_that_need_no_gradient_need_none(count: int) -> None:
    pairs = [(torch.randn(3, 4), torch.randn(4, 5)) for _ in range(count)]
    pairs[1][0].requires_grad_()
    for _ in range(4):
        found = weft.grouped("mk,kn->mn", pairs)
        assert [each.requires_grad for each in found] == [at == 1 for at in range(count)]
        (grad,) = torch.autograd.grad(found[1].sum(), pairs[1][0])
        torch.testing.assert_close(grad, pairs[1][1].sum(1).expand(3, 4))


@pytest.mark.one_of(5)
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("equation", ["mk,kn->mn", "km,kn->nm"])
@pytest.mark.parametrize(("count", "size"), [(2, 4), (2, 64), (11, 16), (70, 3)])
def test_checkpoints_make_a_group_again_as_it_was_made(
    count: int, size: int, equation: str, alike: bool, reentrant: bool
) -> None:
    shapes = [(size + (0 if alike else at % 5), size) for at in range(count)]
    turned = equation.startswith("km")
    leaves = [torch.randn(k if turned else m, m if turned else k, requires_grad=True) for m, k in shapes]
    leaves += [torch.randn(k, 7, requires_grad=True) for _, k in shapes]

    def layer(*given: torch.Tensor) -> torch.Tensor:
        found = weft.grouped(equation, list(zip(given[:count], given[count:], strict=True)))
        return sum((at + 1) * each.square().sum() for at, each in enumerate(found))

    pairs = list(zip(leaves[:count], leaves[count:], strict=True))
    total = sum((at + 1) * torch.einsum(equation, a, b).square().sum() for at, (a, b) in enumerate(pairs))
    right = torch.autograd.grad(total, leaves)
    for _ in range(12):
        found = torch.autograd.grad if not reentrant else _backward
        for grad, wanted in zip(found(checkpoint(layer, *leaves, use_reentrant=reentrant), leaves), right, strict=True):
            torch.testing.assert_close(grad, wanted, rtol=1e-4, atol=1e-3 * size)


def _backward(total: torch.Tensor, leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    """Gradients as reentrant checkpoints have them: they take no `torch.autograd.grad`."""
    for each in leaves:
        each.grad = None
    total.backward()
    return [each.grad for each in leaves]


def test_groups_that_come_again_have_tangents() -> None:
    a, b, c = (torch.randn(64, 64) for _ in range(3))
    for _ in range(3):
        weft.grouped("mk,kn->mn", [(a, b), (c, b)])
        with forward_ad.dual_level():
            first, second = weft.grouped("mk,kn->mn", [(forward_ad.make_dual(a, c), b), (c, b)])
            torch.testing.assert_close(forward_ad.unpack_dual(first).tangent, c @ b, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(forward_ad.unpack_dual(second).primal, c @ b, rtol=1e-4, atol=1e-4)


def test_gradients_are_recorded_again_after_a_call_without_them() -> None:
    pairs = [(torch.randn(3, 4, requires_grad=True), torch.randn(4, 3, requires_grad=True)) for _ in range(3)]
    plan = weft.plan_grouped("mk,kn->mn", pairs)
    for _ in range(2):
        assert all(each.requires_grad for each in plan(pairs))
        with torch.no_grad():
            assert not any(each.requires_grad for each in plan(pairs))
        assert all(each.requires_grad for each in plan(pairs))
