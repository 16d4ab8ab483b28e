"""A call that comes a dozen times gives each time what its tensors say, whatever serves it by then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch

import weft
from weft.planner import validity

CALLS = 12  # the tenth is the first that is written in torch's operations, where few elements are


@pytest.fixture(autouse=True)
def tiers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Calls begin with the library, and change to what is better, as they do for users; later tests plan anew."""
    monkeypatch.setenv("WEFT_TIERS", "1")
    yield
    validity.outdate()


def _numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randint(-4, 5, shape).to(dtype)


def positive(value: torch.Tensor) -> torch.Tensor:
    return value > 0


def scaled(value: torch.Tensor, gain: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.relu(value * gain) + bias


@pytest.mark.parametrize("names", [("bias", "scale", "gain"), ("gain", "bias", "scale"), ("scale", "gain", "bias")])
def test_operands_come_in_any_order(names: tuple[str, ...]) -> None:
    for _ in range(CALLS):
        a, b, vectors = _numbers(6, 6), _numbers(6, 6), {name: _numbers(6) for name in ("bias", "scale", "gain")}
        given = {name: ("m" if name == "scale" else "n", vectors[name]) for name in names}
        found = weft.contract(
            "mk,kn->mn", a, b, a_fn=lambda value, scale: value * scale, epilogue=scaled, operands=given
        )
        products = (a * vectors["scale"][:, None]).double() @ b.double()
        assert torch.equal(found.double(), scaled(products, vectors["gain"].double(), vectors["bias"].double()))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32, torch.float64])
@pytest.mark.parametrize("algebra", ["plus_times", "max_plus", "min_plus"])
def test_functions_of_whole_numbers_and_truth_values(algebra: str, dtype: torch.dtype) -> None:
    reduce: Callable[..., Any] = {"plus_times": torch.sum, "max_plus": torch.amax, "min_plus": torch.amin}[algebra]
    combine = torch.mul if algebra == "plus_times" else torch.add
    for _ in range(CALLS):
        a, b = _numbers(5, 4, dtype=dtype), _numbers(4, 3, dtype=dtype)
        found = weft.contract("mk,kn->nm", a, b, algebra=algebra, a_fn=positive, epilogue=torch.square)
        pairs = combine((a > 0).double()[:, :, None], b.double())
        assert torch.equal(found.double(), reduce(pairs, dim=1).T.square())
        bare = weft.contract("mk,kn->nm", a, b, algebra=algebra)
        assert torch.equal(bare.double(), reduce(combine(a.double()[:, :, None], b.double()), dim=1).T)


def test_functions_of_truth_values_have_no_gradient_and_leave_that_of_the_other() -> None:
    for _ in range(3):
        a, b = _numbers(5, 4), _numbers(4, 3).requires_grad_()
        (grad,) = torch.autograd.grad(weft.contract("mk,kn->mn", a, b, a_fn=positive).sum(), b)
        assert torch.equal(grad, (a > 0).float().sum(0)[:, None].expand(4, 3))


NEGATIVE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "a product": lambda a, b: weft.contract("mk,kn->mn", a, b, specialize="library"),
    "a compiled product": lambda a, b: weft.contract("mk,kn->mn", a, b, specialize="now"),
    "what is added": lambda a, b: weft.contract("mk,kn->mn", a, b, c=a[:, :1], specialize="now") - a[:, :1],
    "an operand": lambda a, b: weft.contract(
        "mk,kn->mn", a.resolve_conj(), b, epilogue=lambda d, row: d - row, operands={"row": ("m", a[:, 0])},
        specialize="now",
    ) + a[:, :1],
    "a permutation": lambda a, b: weft.permute(weft.permute(a, "mk->km"), "km->mk") @ b,
    "a group": lambda a, b: weft.grouped("mk,kn->mn", [(a, b)] * 9)[8],
    "a network": lambda a, b: weft.einsum("mk,kl,ln->mn", a, torch.eye(40, dtype=a.dtype), b),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["negative", "conjugate"])
@pytest.mark.parametrize("name", NEGATIVE)
def test_views_that_negate_and_conjugate_have_gradients(name: str, kind: str) -> None:
    for _ in range(4):
        z, b = (torch.randn(shape, dtype=torch.complex128) for shape in ((30, 40), (40, 50)))
        a = z.requires_grad_().conj()
        if kind == "negative":
            a, b = a.imag, b.conj().imag
        assert a.is_neg() or a.is_conj()
        found, expected = NEGATIVE[name](a, b), a @ b
        torch.testing.assert_close(found, expected)
        grad = torch.randn_like(expected)
        of_found, of_expected = (torch.autograd.grad(each, z, grad, retain_graph=True)[0] for each in (found, expected))
        torch.testing.assert_close(of_found, of_expected)


X, W = torch.randn(8, 8), torch.randn(8, 8)
plan = cache(lambda: weft.plan("mk,kn->mn", X, W, specialize="now"))
move = cache(lambda: weft.plan_permute(X, "mn->nm", specialize="now"))
of_three = cache(lambda: weft.network("ab,bc,cd->ad", X, W, X))
WRITE: dict[str, Callable[[torch.Tensor], object]] = {
    "a product": lambda out: weft.contract("mk,kn->mn", X, W, out=out, specialize="now"),
    "a sum": lambda out: weft.contract("mk,kn->mn", X, W, c=out, out=out, specialize="now"),
    "a plan": lambda out: plan()(X, W, out=out),
    "a permutation": lambda out: weft.permute(X, "mn->nm", out=out, specialize="now"),
    "a plan of one": lambda out: move()(X, out=out),
    "in place": weft.transpose_,
    "a group": lambda out: weft.grouped("mk,kn->mn", [(X, W)], out=[out]),
    "a network": lambda out: of_three()(X, W, X, out=out),
    "many operands": lambda out: weft.einsum("ab,bc,cd->ad", X, W, X, out=out),
}


@pytest.mark.parametrize("name", WRITE)
def test_torch_hears_of_what_is_written(name: str) -> None:
    for _ in range(4):
        place, leaf = torch.randn(8, 8), torch.randn(8, 8, requires_grad=True)
        product = leaf * place
        WRITE[name](place)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.sum().backward()
    with torch.inference_mode():
        WRITE[name](torch.randn(8, 8))
        WRITE[name](place)
        outside = torch.randn(8, 8)
    if name not in ("a network", "many operands"):  # the last step is a product of torch's, which refuses it
        WRITE[name](outside)


@pytest.mark.parametrize("specialize", ["library", "now"])
def test_networks_that_reuse_see_what_weft_wrote(specialize: str) -> None:
    first = torch.randn(8, 8)
    network = weft.network("ab,bc,cd->ad", first, W, X, reuse=True)
    for _ in range(3):
        torch.testing.assert_close(network(first, W, X), first @ W @ X)
        weft.contract("mk,kn->mn", torch.randn(8, 8), W, out=first, specialize=specialize)
    with torch.inference_mode():
        first = torch.randn(8, 8)
        for _ in range(3):
            torch.testing.assert_close(network(first, W, X), first @ W @ X)
            first.mul_(2)


def test_second_derivatives_of_logarithms_come_again() -> None:
    for _ in range(CALLS):
        a, b = (torch.randn(60, 60, dtype=torch.float64, requires_grad=True) for _ in range(2))
        second = []
        for found in (weft.contract("mk,kn->mn", a, b, algebra="log"), (a[:, :, None] + b).logsumexp(1)):
            first = torch.autograd.grad(found.sin().sum(), (a, b), create_graph=True)
            second.append(torch.autograd.grad(sum(each.square().sum() for each in first), (a, b)))
        torch.testing.assert_close(*second)


def test_other_data_of_an_operand_are_seen() -> None:
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    network = weft.network("ab,bc,cd->ad", x, y, y)
    for _ in range(3):
        torch.testing.assert_close(network(x, y, y), x @ y @ y)
    x.data = x.data.view(torch.int32)
    with pytest.raises(weft.DTypeError, match="int32"):
        network(x, y, y)


def _leaf(value: torch.Tensor) -> torch.Tensor:
    return value.detach().requires_grad_()


ONE_DEVICE: dict[str, Callable[..., object]] = {
    "a product": lambda a, b, s: weft.contract("mk,kn->mn", a, b),
    "a product with a gradient": lambda a, b, s: weft.contract("mk,kn->mn", _leaf(a), b),
    "a sum with a gradient": lambda a, b, s: weft.contract("mk,kn->mn", a, b, c=_leaf(s)[None]),
    "an operand with a gradient": lambda a, b, s: weft.contract(
        "mk,kn->mn", a, _leaf(b), epilogue=lambda d, s: d + s, operands={"s": ("n", s)}
    ),
    "a logarithm with a gradient": lambda a, b, s: weft.contract("mk,kn->mn", _leaf(a), b, algebra="log"),
    "a group": lambda a, b, s: weft.grouped("mk,kn->mn", [(a, b), (a, b)]),
    "a group with a gradient": lambda a, b, s: weft.grouped("mk,kn->mn", [(_leaf(a), b), (a, b)]),
    "many operands": lambda a, b, s: weft.einsum("mk,kn,n->m", a, b, s),
}  # fmt: skip


@pytest.mark.parametrize("name", ONE_DEVICE)
def test_tensors_of_another_device_are_refused(name: str) -> None:
    """`torch.mm` of a tensor of the CPU and one without memory returns what lies in its result's memory."""
    given = [torch.randn(shape) for shape in ((2, 3), (3, 4), (4,))]
    for calls in (0, 3, CALLS):
        for _ in range(calls):
            ONE_DEVICE[name](*given)
        for at in (0, 1):
            odd = [each.to("meta") if place == at else each for place, each in enumerate(given)]
            with pytest.raises(weft.WeftError, match=r"is on (meta|cpu)"):
                ONE_DEVICE[name](*odd)


MADE_WITHOUT_GRADIENTS: dict[str, Callable[..., Any]] = {
    "max-plus": lambda a, b: weft.contract("mk,kn->mn", a, b, algebra="max_plus"),
    "max-plus of two": lambda a, b: weft.contract("mkl,kln->nm", a[..., None], b[:, None], algebra="max_plus"),
    "plain": lambda a, b: weft.contract("mk,kn->nm", a, b),
    "an epilogue": lambda a, b: weft.contract("mk,kn->mn", a, b, epilogue=torch.sin),
    "A alone": lambda a, b: weft.einsum("mk->km", a),
    "three": lambda a, b: weft.einsum("mk,kn,np->pm", a, b, a),
    "a cascade": lambda a, b: weft.cascade(
        "mk,kn->mn, mn,np->pm", a, b, a, between=lambda s: (weft.softmax(s, "n"), weft.logsumexp(s, "n"), s)
    ),
    "a cascade's reference": lambda a, b: weft.cascade("mk,kn->mn, mn,np->pm", a, b, a, backend="reference"),
    "reductions": lambda a, b: tuple(weft.contract(
        "mk,kn->mn", a, b, reduce={"rows": ("m", "sum"), "turned": ("nm", "max")}
    )[1].values()),
}  # fmt: skip


@pytest.mark.parametrize("name", MADE_WITHOUT_GRADIENTS)
def test_results_made_without_gradients_are_written_to(name: str) -> None:
    """A parameter may scale them in place, in every call."""
    gain = torch.full((), 2.0, requires_grad=True)
    for call in range(1, CALLS + 1):
        a, b = _numbers(6, 6), _numbers(6, 6)
        with torch.no_grad():
            found = MADE_WITHOUT_GRADIENTS[name](a, b)
        for each in found if isinstance(found, tuple) else (found,):
            before = each.clone()
            each.mul_(gain)
            assert torch.equal(each, before * 2), call
