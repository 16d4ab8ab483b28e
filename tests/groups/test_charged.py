"""Tensors that conserve charges against dense ones, and against the algebra of fermions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import weft
from support import Backend
from weft.blocks import U1, Z2, ChargedTensor, Leg, Symmetry, contract

P, N = {0: 2, 1: 3, -1: 1}, {1: 2, 0: 1, 2: 2}
LEGS = {"a": Leg(U1, P), "b": Leg(U1, N), "c": Leg(U1, {-1: 2, 0: 2}), "d": Leg(U1, {0: 3, 1: 1}, sign=-1)}


def tensor(labels: str, seed: int, duals: str = "", charge: int = 0, legs: dict[str, Leg] = LEGS) -> ChargedTensor:
    made = [legs[label].dual if label in duals else legs[label] for label in labels]
    found = ChargedTensor.random(made, charge, seed=seed)
    return ChargedTensor(made, (found.buffer * 3).round(), charge)


@pytest.mark.parametrize(
    ("equation", "duals", "charge"),
    [("abc,cd->abd", "c", 0), ("abd,bcd->ac", "bd", 0), ("adb,bad->", "abd", -1), ("ad,cb->cabd", "cb", 1),
     ("bca,ad->cdb", "a", 0)],
)  # fmt: skip
def test_values(equation: str, duals: str, charge: int, backend: Backend) -> None:
    first, second, output = equation.replace("->", ",").split(",")
    a = tensor(first, 1, charge=charge).to(backend.device)
    b = tensor(second, 2, duals, charge=1 if output else -charge).to(backend.device)
    found = contract(equation, a, b, backend=backend.name)
    right = torch.einsum(equation, a.to_dense(), b.to_dense())
    assert torch.equal(found.to_dense() if output else found, right)  # type: ignore[arg-type]
    assert not output or found.charge == charge + 1


@pytest.mark.parametrize("symmetry", [Z2, U1 * Z2, U1 * U1, Symmetry((3,), (False,))])
def test_products_of_groups(symmetry: Symmetry) -> None:
    ranges = [range(-1, 2) if order == 0 else range(order) for order in symmetry.orders]
    charges = [each if len(each) > 1 else each[0] for each in itertools.product(*ranges)]
    leg = Leg(symmetry, {charge: 1 + at % 3 for at, charge in enumerate(charges)})
    a, b = ChargedTensor.random([leg, leg, leg.dual], seed=1), ChargedTensor.random([leg, leg.dual, leg], seed=2)
    torch.testing.assert_close(
        contract("abc,cde->abde", a, b).to_dense(), torch.einsum("abc,cde->abde", a.to_dense(), b.to_dense())
    )
    fused = a.fuse(0, 2)
    assert len(fused.structure.keys) <= len(fused.legs[0].sectors)
    assert torch.equal(fused.split_leg(0).buffer, a.buffer)
    assert torch.equal(ChargedTensor.from_dense(a.to_dense(), a.legs).buffer, a.buffer)
    torch.testing.assert_close(fused.norm(), a.to_dense().norm())


def test_legs_are_permuted_fused_and_split() -> None:
    a = tensor("abcd", 4, charge=1)
    assert torch.equal(a.permute(2, 0, 3, 1).to_dense(), a.to_dense().permute(2, 0, 3, 1))
    fused = a.fuse(1, 2, sign=-1)
    other = tensor("bc", 5, "bc").fuse(0, 2)
    assert fused.legs[1].dual.sectors == other.legs[0].sectors
    found = contract("afd,f->ad", fused, other)
    right = torch.einsum("abcd,bc->ad", a.to_dense(), tensor("bc", 5, "bc").to_dense())
    torch.testing.assert_close(found.to_dense(), right)


FERMIONS = {
    "a": Leg(U1.fermionic, {0: 2, 1: 2}), "b": Leg(U1.fermionic, {0: 1, 1: 2, 2: 1}),
    "c": Leg(U1.fermionic, {0: 1, 1: 1}, -1), "d": Leg(U1.fermionic, {0: 2, 1: 1, -1: 1}, -1),
    "e": Leg(U1.fermionic, {0: 1, 1: 2}), "f": Leg(U1.fermionic, {1: 2, 0: 1}, -1),
}  # fmt: skip


def graded(labels: str, seed: int, duals: str = "", charge: int = 0) -> ChargedTensor:
    return tensor(labels, seed, duals, charge, FERMIONS)


def test_fermions_that_pass_one_another() -> None:
    odd = Leg(U1.fermionic, {1: 1})
    pair = ChargedTensor([odd, odd], torch.ones(1), 2)
    assert float(pair.permute(1, 0).buffer) == -1
    bra = ChargedTensor([odd.dual, odd.dual], torch.ones(1), -2)
    # <1|<2| on |1>|2>: the inner two meet first, and <1| has passed <2| for it
    assert float(contract("ab,ab->", bra, pair)) == -1
    assert float(contract("ab,ba->", bra, pair)) == 1
    assert float(contract("ab,ab->", pair.conj(), pair)) == 1
    # |1> on <1|: the ket passes the bra
    ket, one = ChargedTensor([odd], torch.ones(1), 1), ChargedTensor([odd.dual], torch.ones(1), -1)
    assert float(contract("a,a->", ket, one)) == -1


@pytest.mark.parametrize("charge", [0, 1])
def test_the_algebra_of_fermions(charge: int) -> None:
    a, b, c = graded("abcd", 1, charge=charge), graded("cdef", 2, "cd", 1 - charge), graded("feb", 3, "feb")
    # the order of legs within an operand, and that of contractions, change nothing
    right = contract("abcd,cdef->abef", a, b)
    for order in ("dcba", "bdac"):
        moved = a.permute(*["abcd".index(label) for label in order])
        torch.testing.assert_close(contract(f"{order},cdef->abef", moved, b).buffer, right.buffer)
    torch.testing.assert_close(contract("abcd,cdef->feba", a, b).permute(3, 2, 1, 0).buffer, right.buffer)
    one = contract("abef,feb->a", right, c)
    other = contract("abcd,cdb->a", a, contract("cdef,feb->cdb", b, c))
    torch.testing.assert_close(one.buffer, other.buffer)
    # fused legs contract to what their parts do
    for sign in (1, -1):
        fused = contract("abx,xef->abef", a.fuse(2, 2, sign=sign), b.fuse(0, 2, sign=-sign))
        torch.testing.assert_close(fused.buffer, right.buffer)
        assert torch.equal(a.fuse(1, 3, sign=sign).split_leg(1).buffer, a.buffer)
    # (a b)* = b* a*, and a tensor with its own conjugate is the square of its norm
    conjugated = contract("cdef,abcd->abef", b.conj(), a.conj())
    torch.testing.assert_close(conjugated.buffer, right.conj().buffer)
    torch.testing.assert_close(contract("abcd,abcd->", a.conj(closes=True), a), a.norm() ** 2)


def test_gradients_go_through_blocks() -> None:
    legs = [FERMIONS["a"], FERMIONS["b"], FERMIONS["d"]]
    x = ChargedTensor.random(legs, seed=1)
    leaf = x.buffer.clone().requires_grad_()
    y = graded("bed", 2, "bd")

    def value(buffer: torch.Tensor) -> torch.Tensor:
        made = contract("abd,bed->ae", ChargedTensor(legs, buffer), y).fuse(0, 2)
        return made.buffer.square().sum()

    assert torch.autograd.gradcheck(value, leaf)


@pytest.mark.parametrize("legs", [LEGS, FERMIONS])
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_factors(legs: dict[str, Leg], rows: int) -> None:
    x = tensor("abcd", 6, charge=1, legs=legs)
    inner = "".join("abcd"[:rows]) + "x,x" + "abcd"[rows:] + "->abcd"
    found = weft.blocks.split(x, rows)
    torch.testing.assert_close(contract(inner, found.left, found.right).buffer, x.buffer)
    assert float(found.error) < 1e-12
    for isometry in ("left", "right"):
        left, right = weft.blocks.qr(x, rows, isometry=isometry)  # type: ignore[arg-type]
        torch.testing.assert_close(contract(inner, left, right).buffer, x.buffer)
        dense = left.to_dense().flatten(0, rows - 1) if isometry == "left" else right.to_dense().flatten(1).mH
        torch.testing.assert_close(dense.mH @ dense, torch.eye(dense.shape[1], dtype=torch.float64))
    values = torch.linalg.svdvals(x.to_dense().flatten(0, rows - 1).flatten(1))
    cut = weft.blocks.split(x, rows, max_bond=3, absorb="left")
    kept = torch.cat(list(cut.values.values())).sort(descending=True)[0]
    torch.testing.assert_close(kept, values[:3])
    torch.testing.assert_close(cut.error, 1 - values[:3].square().sum() / values.square().sum())
    lost = contract(inner, cut.left, cut.right) - x
    torch.testing.assert_close(lost.norm() ** 2 / x.norm() ** 2, cut.error)
    with pytest.raises(weft.ShapeError, match="drops every singular value"):
        weft.blocks.split(x, rows, cutoff=1.0)


def test_what_does_not_meet() -> None:
    a = tensor("ab", 1, charge=1)
    with pytest.raises(weft.ArgumentError, match="the legs of 'b' have one sign: a leg meets its dual"):
        contract("ab,bc->ac", a, tensor("bc", 1, charge=1))
    with pytest.raises(weft.UnsupportedError, match="label 'b' stands 3 times"):
        contract("ab,bc->abc", a, tensor("bc", 1, "b"))
    with pytest.raises(weft.ShapeError, match="sector 1 of 'b' has extent 2 in a and 5 in b"):
        contract("ab,b->a", a, ChargedTensor.random([Leg(U1, {1: 5}, -1)], -1))
    with pytest.raises(weft.ArgumentError, match=r"b is a weft\.blocks\.ChargedTensor, as a is, not Tensor"):
        contract("ab,b->a", a, torch.ones(3))
    with pytest.raises(weft.ShapeError, match="no charges of the legs sum to 9"):
        ChargedTensor.zeros([LEGS["a"], LEGS["b"]], 9)
    with pytest.raises(weft.ArgumentError, match="the tensor has elements that charge 0 forbids"):
        ChargedTensor.from_dense(torch.ones(6, 5), [LEGS["a"], LEGS["b"]])
    with pytest.raises(weft.ShapeError, match="the sector of charge 0 has extent 0"):
        Leg(U1, {0: 0})
    with pytest.raises(weft.ArgumentError, match=r"\(1, 2\) is no charge of a product of 1"):
        Leg(U1, {(1, 2): 1})
    with pytest.raises(weft.ArgumentError, match="leg 0 was not fused"):
        a.split_leg(0)


def test_what_inference_mode_relaid_first_has_gradients() -> None:
    legs = [Leg(Z2, {0: 2, 1: 5}), Leg(Z2, {0: 3, 1: 2}, sign=-1), Leg(Z2, {0: 1, 1: 4})]
    made = ChargedTensor.random(legs, seed=3)
    with torch.inference_mode():
        made.permute(2, 0, 1).fuse(0, 2)
    buffer = made.buffer.clone().requires_grad_()
    found = ChargedTensor(legs, buffer, 0).permute(2, 0, 1).fuse(0, 2)
    (grad,) = torch.autograd.grad(found.buffer.square().sum(), buffer)
    torch.testing.assert_close(grad, 2 * buffer.detach())


def test_tensors_that_are_not_added() -> None:
    leg, wider = Leg(U1, {0: 2, 1: 1}), Leg(U1, {0: 2, 1: 1, 5: 3})
    x = ChargedTensor.random([leg, leg.dual])
    for legs in ([leg.dual, leg], [wider, leg.dual]):
        other = ChargedTensor.random(legs)
        assert other.structure == x.structure
        with pytest.raises(weft.ShapeError, match="the legs of the two tensors differ"):
            x + other
    for factor in (x, torch.ones(5), torch.ones(2, 1)):
        with pytest.raises(weft.ArgumentError, match="multiplied by a number or a 0-d tensor"):
            x * factor
    assert torch.equal((torch.tensor(2.0) * x).buffer, (x * 2).buffer)


def test_buffers_and_legs_are_read() -> None:
    leg = Leg(U1, {0: 2, 1: 1})
    made = ChargedTensor([leg, leg.dual], np.arange(5.0))
    assert torch.equal(made.to_dense().diagonal(), torch.tensor([0.0, 3.0, 4.0], dtype=torch.float64))
    with pytest.raises(weft.ArgumentError, match=r"legs\[0\] is a Leg, not int"):
        ChargedTensor([1, 2], torch.ones(5))  # type: ignore[list-item]
    with pytest.raises(weft.DTypeError, match="buffer is list"):
        ChargedTensor([leg, leg.dual], [1.0] * 5)  # type: ignore[arg-type]
