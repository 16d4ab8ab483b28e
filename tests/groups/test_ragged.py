"""Modes whose extents differ from list to list, against a loop over the lists."""

from __future__ import annotations

import pytest
import torch

import weft
from support import Backend
from weft.testing import random_operand

LENGTHS = {"j": [3, 0, 7, 1, 4], "k": [2, 5, 0, 1, 6]}
OFFSETS = {label: [sum(each[:at]) for at in range(6)] for label, each in LENGTHS.items()}
EXTENTS = {"b": 5, "d": 4, "e": 3, "h": 2}


def packed(term: str, seed: int, device: str = "cpu") -> torch.Tensor:
    run = [label for label in term if label in LENGTHS]
    rows = sum(torch.tensor([LENGTHS[label] for label in run]).prod(0).tolist()) if run else 0
    shape = [rows if label == "b" and run else EXTENTS[label] for label in term if label not in LENGTHS]
    return random_operand(tuple(shape), torch.float64, seed, integers=True, device=device)


def lists(term: str, tensor: torch.Tensor) -> list[torch.Tensor]:
    run = [label for label in term if label in LENGTHS]
    if "b" not in term:
        return [tensor] * 5
    at = [label for label in term if label not in LENGTHS].index("b")
    if not run:
        return list(tensor.unbind(at))
    shapes = list(zip(*[LENGTHS[label] for label in run], strict=True))
    pieces = tensor.split([int(torch.tensor(shape).prod()) for shape in shapes], at)
    return [piece.unflatten(at, shape) for piece, shape in zip(pieces, shapes, strict=True)]


def looped(equation: str, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    first, second, _ = equation.replace("->", ",").split(",")
    inner = equation.replace("b", "")
    return [torch.einsum(inner, *pair) for pair in zip(lists(first, x), lists(second, y), strict=True)]


EQUATIONS = [
    "bjd,bde->bje", "bjd,de->bje", "bjd,bje->bde", "bjd,bje->de", "bjhd,bkhd->bjkh", "bjk,bke->bje", "hbjd,bdh->hbj",
    "bjd,bkd->bjk",
]  # fmt: skip


@pytest.mark.parametrize("equation", EQUATIONS)
def test_values(equation: str, backend: Backend) -> None:
    first, second, output = equation.replace("->", ",").split(",")
    x, y = packed(first, 1, backend.device), packed(second, 2, backend.device)
    given = {label: torch.tensor(OFFSETS[label]) for label in OFFSETS if label in equation}
    found = weft.contract(equation, x, y, ragged=given, backend=backend.name, epilogue=torch.relu)
    each = looped(equation, x, y)
    if "b" not in output:
        assert torch.equal(found, torch.relu(sum(each)))  # type: ignore[arg-type]
        return
    for one, right in zip(lists(output, found), each, strict=True):
        assert torch.equal(one, torch.relu(right))


@pytest.mark.parametrize("equation", EQUATIONS)
def test_gradients(equation: str) -> None:
    first, second, output = equation.replace("->", ",").split(",")
    x, y = packed(first, 1).requires_grad_(), packed(second, 2).requires_grad_()
    given = {label: OFFSETS[label] for label in OFFSETS if label in equation}
    found = weft.contract(equation, x, y, ragged=given, a_fn=torch.tanh)
    each = looped(equation, torch.tanh(x), y)
    right = sum(each).square().sum() if "b" not in output else sum(one.square().sum() for one in each)  # type: ignore[union-attr]
    wanted, grads = torch.autograd.grad(right, (x, y)), torch.autograd.grad(found.square().sum(), (x, y))  # type: ignore[arg-type]
    for one, other in zip(grads, wanted, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_jagged_tensors() -> None:
    x = torch.nested.nested_tensor([torch.randn(n, 4) for n in (3, 1, 5)], layout=torch.jagged)
    w = torch.randn(3, 4, 2)
    found = weft.contract("bjd,bde->bje", x, w, ragged={"j": x.offsets()})
    assert found.is_nested
    for one, part, own in zip(found.unbind(), x.unbind(), w, strict=True):
        torch.testing.assert_close(one, part @ own)


def test_no_lists_and_strides() -> None:
    x, w = torch.randn(4, 8).t()[::2], torch.randn(3, 4)  # rows with gaps
    found = weft.contract("bjd,ed->bje", x, w, ragged={"j": [0, 3, 4]})
    torch.testing.assert_close(found, x @ w.T)


def test_what_is_not_ragged() -> None:
    x, w = packed("bjd", 1), packed("bde", 2)
    with pytest.raises(weft.ShapeError, match="a has 15 rows of 'bj', the offsets end at 14"):
        weft.contract("bjd,bde->bje", x, w, ragged={"j": [0, 1, 2, 3, 4, 14]})
    with pytest.raises(weft.ShapeError, match="label 'b' has extent 5 in b, 2 elsewhere"):
        weft.contract("bjd,bde->bje", x, w, ragged={"j": [0, 1, 15]})
    with pytest.raises(weft.NotationError, match="stand behind one label"):
        weft.contract("jd,de->je", x, w[0], ragged={"j": OFFSETS["j"]})
    with pytest.raises(weft.NotationError, match="stand behind one label"):
        weft.contract("bdj,bde->bje", x, w, ragged={"j": OFFSETS["j"]})
    with pytest.raises(weft.NotationError, match="'j' of 'j' is ragged: it stands behind 'b', whose lists it has"):
        weft.contract("bjd,j->bd", x, w[0, 0], ragged={"j": OFFSETS["j"]})
    with pytest.raises(weft.ArgumentError, match="begin with 0 and do not fall"):
        weft.contract("bjd,bde->bje", x, w, ragged={"j": [0, 5, 3, 6, 7, 15]})
    with pytest.raises(weft.UnsupportedError, match="return_arg is not for ragged modes"):
        weft.contract("bjd,bde->bje", x, w, ragged={"j": OFFSETS["j"]}, return_arg=True)
    with pytest.raises(weft.ArgumentError, match=r"ragged is a mapping from labels to offsets, not list"):
        weft.contract("bjd,bde->bje", x, w, ragged=OFFSETS["j"])  # type: ignore[call-overload]
