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


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_jagged_tensors_are_held_against_the_offsets() -> None:
    x = torch.nested.nested_tensor([torch.randn(n, 4) for n in (3, 1, 5)], layout=torch.jagged)
    y = torch.nested.nested_tensor([torch.randn(n, 4) for n in (1, 4, 2)], layout=torch.jagged)
    with pytest.raises(weft.ShapeError, match="of a jagged tensor begin at 0, 3, 4, 9, and ragged says otherwise"):
        weft.contract("bjd,bde->bje", x, torch.randn(3, 4, 2), ragged={"j": [0, 1, 5, 9]})
    offsets = torch.tensor([0, 3, 4, 9])
    holes = torch.nested.nested_tensor_from_jagged(torch.randn(9, 4), offsets=offsets, lengths=torch.tensor([2, 1, 5]))
    with pytest.raises(weft.UnsupportedError, match="a jagged tensor with holes"):
        weft.contract("bjd,bde->bje", holes, torch.randn(3, 4, 2), ragged={"j": offsets})
    found = weft.contract("bqd,bkd->bk", x, y, ragged={"q": x.offsets(), "k": y.offsets()})
    for one, p, q in zip(found.unbind(), x.unbind(), y.unbind(), strict=True):
        torch.testing.assert_close(one, q @ p.sum(0))


def test_transposed_jagged_tensors_are_refused() -> None:
    x = torch.nested.nested_tensor([torch.randn(n, 4) for n in (1, 0, 3)], layout=torch.jagged)  # rows as columns
    with pytest.raises(weft.UnsupportedError, match="lie along dimension 2: transpose it"):
        weft.contract("bjd,bde->bje", x.transpose(1, 2), torch.randn(3, 4, 5), ragged={"j": [0, 1, 1, 4]})



def test_conjugate_views_of_any_strides() -> None:
    whole, weights = torch.randn(40, 12, dtype=torch.cdouble), torch.randn(8, 6, 16, dtype=torch.cdouble)
    offsets = [0, 5, 5, 17, 20]

    def ours(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return weft.contract("bjd,bde->bje", x[::2, ::2].conj(), w[::2, :, ::2].conj(), ragged={"j": offsets})

    def plain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        parts = x[::2, ::2].conj().tensor_split(offsets[1:-1])
        return torch.cat([part @ own for part, own in zip(parts, w[::2, :, ::2].conj(), strict=True)])

    torch.testing.assert_close(ours(whole, weights), plain(whole, weights))
    leaves = whole.requires_grad_(), weights.requires_grad_()
    found, right = (torch.autograd.grad(f(*leaves).abs().square().sum(), leaves) for f in (ours, plain))
    torch.testing.assert_close(found, right)


def test_forward_mode_of_two_ragged_modes() -> None:
    x, y = (torch.randn(rows, 2, dtype=torch.double, requires_grad=True) for rows in (5, 4))
    given = {"q": [0, 2, 2, 5], "k": [0, 1, 3, 4]}
    call = lambda x, y: weft.contract("bqd,bkd->bqk", x, y, ragged=given, epilogue=torch.tanh)  # noqa: E731
    assert torch.autograd.gradcheck(call, (x, y), check_forward_ad=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("leaf", [False, True])
def test_sums_over_lists_of_halves_are_rounded_once(dtype: torch.dtype, leaf: bool) -> None:
    x, w = torch.ones(4000, 1, dtype=dtype, requires_grad=leaf), torch.ones(4000, 1, 2, dtype=dtype)
    found = weft.contract("bjd,bde->e", x, w, ragged={"j": list(range(4001))}, epilogue=lambda s: s - 3990)
    assert found.tolist() == [10, 10]


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
    with pytest.raises(weft.ArgumentError, match=r"one more than lists \(of lengths: their cumulative sum"):
        weft.contract("bjd,bde->bje", x, w, ragged={"j": torch.tensor(OFFSETS["j"]).diff()})
    for wrong in ([0.0, 3.0], "abc", None, torch.tensor([0.0, 15.0])):
        with pytest.raises(weft.ArgumentError, match="the offsets of 'j' are whole numbers"):
            weft.contract("bjd,bde->bje", x, w, ragged={"j": wrong})
    with pytest.raises(weft.UnsupportedError, match="operands is not for ragged modes"):
        weft.contract("bjd,bde->bje", x, w, ragged={"j": OFFSETS["j"]}, operands={"x": ("e", w[0, 0])})
    with pytest.raises(weft.UnsupportedError, match="return_arg is not for ragged modes"):
        weft.contract("bjd,bde->bje", x, w, ragged={"j": OFFSETS["j"]}, return_arg=True)
    with pytest.raises(weft.ArgumentError, match=r"ragged is a mapping from labels to offsets, not list"):
        weft.contract("bjd,bde->bje", x, w, ragged=OFFSETS["j"])  # type: ignore[call-overload]


@pytest.mark.parametrize("leaf", [False, True])
@pytest.mark.parametrize(
    ("equation", "shapes", "shape", "value"),
    [
        ("bjd,bde->bje", ((0, 6), (0, 6, 4)), (0, 4), 0),
        ("bqd,bkd->bqk", ((0, 6), (0, 6)), (0,), 0),
        ("bjd,bje->bde", ((0, 6), (0, 3)), (0, 6, 3), 0),
        ("bjd,bde->e", ((0, 6), (0, 6, 4)), (4,), 1),
        ("bjd,bje->de", ((0, 6), (0, 3)), (6, 3), 1),
    ],
)
def test_no_lists_at_all(
    equation: str, shapes: tuple[tuple[int, ...], ...], shape: tuple[int, ...], value: float, leaf: bool
) -> None:
    """A result of no rows, or the function of a sum of nothing; gradients are zeros that are there."""
    x, y = (torch.ones(each, dtype=torch.float64, requires_grad=leaf) for each in shapes)
    offsets = {label: [0] for label in "jqk" if label in equation}
    for _ in range(3):
        found = weft.contract(equation, x, y, ragged=offsets, epilogue=torch.cos)
        assert (found.dtype, found.requires_grad) == (torch.float64, leaf)
        assert torch.equal(found, torch.full(shape, value, dtype=torch.float64))
        if leaf:
            assert all(map(torch.equal, torch.autograd.grad(found.sum(), (x, y)), (x, y)))
    with pytest.raises(weft.ShapeError, match="a has 2 rows of 'bj', the offsets end at 0"):
        weft.contract("bjd,bde->bje", torch.ones(2, 6), torch.ones(0, 6, 4), ragged={"j": [0]})
    with pytest.raises(weft.ArgumentError, match="begin with 0 and do not fall"):
        weft.contract("bjd,bde->bje", torch.ones(0, 6), torch.ones(0, 6, 4), ragged={"j": []})
