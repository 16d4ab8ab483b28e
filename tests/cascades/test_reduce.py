"""`weft.contract(reduce=)`: further results that keep some of D's modes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import weft

REDUCE: dict[str, Any] = {
    "peak": ("m", "max"), "least": ("n", "min"), "norm": ("m", "sum", torch.square), "all": ("", "mean"),
    "log": ("n", "logsumexp", lambda s: s * 0.5), "place": ("m", "argmax"), "last": ("n", "argmin"),
    "turned": ("nm", "sum", torch.exp), "count": ("m", "sum", lambda s: s > 0),
}  # fmt: skip


def plainly(d: Tensor) -> dict[str, Tensor]:
    return {
        "peak": d.amax(1), "least": d.amin(0), "norm": d.square().sum(1), "all": d.mean(),
        "log": (d * 0.5).logsumexp(0), "place": d.argmax(1), "last": d.argmin(0), "turned": d.T.exp(),
        "count": (d > 0).sum(1),
    }  # fmt: skip


@pytest.mark.parametrize(("m", "k", "n"), [(7, 5, 9), (1, 3, 1), (33, 1, 20)])
def test_every_algebra_beside_d(m: int, k: int, n: int) -> None:
    x, w = torch.randn(m, k, dtype=torch.float64), torch.randn(k, n, dtype=torch.float64)
    d, found = weft.contract("mk,kn->mn", x, w, reduce=REDUCE)
    torch.testing.assert_close(d, x @ w)
    expected = plainly(x @ w)
    assert list(found) == list(REDUCE)
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name])


def test_functions_operands_and_gradients_go_along() -> None:
    x, w = torch.randn(6, 5, requires_grad=True), torch.randn(5, 7, requires_grad=True)
    bias, target = torch.randn(7, requires_grad=True), torch.arange(6)

    def picked(s: Tensor, j: Tensor, target: Tensor) -> Tensor:
        return torch.where(j == target, s, 0.0)

    d, found = weft.contract(
        "mk,kn->mn", x, w, alpha=0.5, epilogue=lambda s, bias: torch.tanh(s + bias), indices={"j": "n"},
        operands={"bias": ("n", bias), "target": ("m", target)},
        reduce={"picked": ("m", "sum", picked), "log": ("m", "logsumexp"), "peak": ("n", "max")},
    )  # fmt: skip
    plain = torch.tanh(0.5 * x @ w + bias)
    expected = plain.gather(1, target[:, None])[:, 0], plain.logsumexp(1), plain.amax(0)
    torch.testing.assert_close(tuple(found.values()), expected)
    mine, theirs = (
        torch.autograd.grad(one.square().sum() + torch.cat([*others]).sum(), (x, w, bias))
        for one, others in ((d, found.values()), (plain, expected))
    )
    torch.testing.assert_close(mine, theirs)


def test_d_goes_where_it_is_told() -> None:
    x, w = np.ones((2, 3), np.float32), np.ones((3, 4), np.float32)
    out = np.empty((2, 4), np.float32)
    d, found = weft.contract("mk,kn->mn", x, w, out=out, reduce={"sum": ("m", "sum")})
    assert d is out
    assert isinstance(found["sum"], np.ndarray)
    np.testing.assert_array_equal(found["sum"], [12, 12])


def test_permutations_groups_and_sums_of_many_have_them_too() -> None:
    """The form is one for all of them, their functions and gradients as well."""
    wanted: dict[str, Any] = {"norm": ("m", "sum", torch.square), "peak": ("n", "max"), "at": ("m", "argmax")}

    def expected(d: Tensor) -> dict[str, Tensor]:
        return {"norm": d.square().sum(1), "peak": d.amax(0), "at": d.argmax(1)}

    x = torch.randn(7, 5, requires_grad=True)
    y, found = weft.permute(x, "nm->mn", fn=torch.tanh, reduce=wanted)
    torch.testing.assert_close(y, torch.tanh(x.T))
    torch.testing.assert_close(found, expected(torch.tanh(x.T)))
    (grad,) = torch.autograd.grad(found["norm"].sum() + found["peak"].sum(), x)
    plain = torch.tanh(x.T)
    (exact,) = torch.autograd.grad(plain.square().sum() + plain.amax(0).sum(), x)
    torch.testing.assert_close(grad, exact)

    pairs = [(torch.randn(m, 3), torch.randn(3, n)) for m, n in ((2, 4), (1, 6), (5, 1))]
    results, lists = weft.grouped("mk,kn->mn", pairs, reduce=wanted)
    for at, (a, b) in enumerate(pairs):
        torch.testing.assert_close(results[at], a @ b)
        torch.testing.assert_close({name: each[at] for name, each in lists.items()}, expected(a @ b))
    assert weft.grouped("mk,kn->mn", [], reduce=wanted) == ([], {"norm": [], "peak": [], "at": []})

    a, b, c = torch.randn(4, 3), torch.randn(3, 6), torch.randn(6, 5)
    bias = torch.randn(5)
    d, named = weft.einsum("mk,kl,ln->mn", a, b, c, operands={"bias": ("n", bias)},
                           reduce={"norm": ("m", "sum", lambda s, bias: (s + bias) ** 2)})  # fmt: skip
    torch.testing.assert_close(d, a @ b @ c)
    torch.testing.assert_close(named["norm"], (a @ b @ c + bias).square().sum(1))
    one, named = weft.einsum("mn", a, reduce={"all": ("", "sum")})
    torch.testing.assert_close((one, named["all"]), (a, a.sum()))


def test_each_call_says_what_is_wrong_with_its_reductions() -> None:
    x = torch.ones(3, 4)
    with pytest.raises(weft.NotationError, match=r"(?s)keeps 'q', which D \('ba'\).*permute"):
        weft.permute(x, "ab->ba", reduce={"a": ("q", "max")})
    with pytest.raises(weft.NotationError, match=r"(?s)keeps 'q', which D \('ab'\).*einsum"):
        weft.einsum("ab,bc,cd->ab", x, x.T, x, reduce={"a": ("q", "max")})
    with pytest.raises(weft.NotationError, match=r"(?s)keeps 'q'.*grouped"):
        weft.grouped("ab,bc->ac", [(x, x.T)], reduce={"a": ("q", "max")})
    with pytest.raises(weft.FunctionError, match="'z'"):
        weft.permute(x, "ab->ba", reduce={"a": ("a", "max", lambda s, z: s * z)})
    with pytest.raises(weft.DTypeError, match="reduce is of float16, bfloat16, float32 and float64, D is int32"):
        weft.permute(x.int(), "ab->ba", reduce={"a": ("a", "max")})
    with pytest.raises(weft.ArgumentError, match="plan_grouped takes no keyword 'reduce'"):
        weft.plan_grouped("ab,bc->ac", [(x, x.T)], reduce={"a": ("a", "max")})


@pytest.mark.parametrize(
    ("reduce", "kind", "message"),
    [
        ({"a": ("q", "max")}, weft.NotationError, r"keeps 'q', which D \('mn'\) does not have"),
        ({"a": ("", "argmax")}, weft.NotationError, r"'a' is an argmax over one mode, and of D \('mn'\) it leaves mn"),
        ({"a": ("nm", "argmin")}, weft.NotationError, r"an argmin over one mode, and of D \('mn'\) it leaves none"),
        ({"a": ("mm", "max")}, weft.NotationError, "keeps a mode twice"),
        ({"a": ("m", "largest")}, weft.ArgumentError, "algebra is one of sum, mean, max"),
        ({"a": "m"}, weft.ArgumentError, r"reduce 'a' is \(modes, algebra\)"),
        ({"a": ("m", "max", 3)}, weft.FunctionError, "int is not a function"),
        ({}, weft.ArgumentError, "a mapping from names"),
        ("max", weft.ArgumentError, "a mapping from names"),
    ],
)
def test_bad_reductions_are_refused(reduce: Any, kind: type[Exception], message: str) -> None:
    out = torch.zeros(2, 4)
    with pytest.raises(kind, match=message):
        weft.contract("mk,kn->mn", torch.ones(2, 3), torch.ones(3, 4), out=out, reduce=reduce)
    assert not bool(out.any())


@pytest.mark.parametrize("keywords", [{}, {"slices": "c"}, {"functions": {"ad": torch.tanh}}, {"constants": (1,)}])
def test_a_network_returns_reductions_of_its_result(keywords: Any) -> None:
    a, b, c = (torch.randn(shape, dtype=torch.float64) for shape in ((4, 5), (5, 6), (6, 7)))
    wanted = {"norm": ("d", "sum", torch.square), "at": ("a", "argmax"), "all": ("", "logsumexp")}
    net = weft.network("ab,bc,cd->ad", a, b, c, reduce=wanted, **keywords)
    given = (a, c) if "constants" in keywords else (a, b, c)
    plain = a @ b @ c
    plain = plain.tanh() if "functions" in keywords else plain
    for _ in range(2):
        d, found = net(*given)
        torch.testing.assert_close(d, plain)
        torch.testing.assert_close(found["norm"], plain.square().sum(0))
        torch.testing.assert_close(found["all"], plain.flatten().logsumexp(0))
        assert torch.equal(found["at"], plain.argmax(1))


def test_reductions_of_a_network_have_gradients_and_other_kinds_of_results() -> None:
    a, b, c = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((4, 5), (5, 6), (6, 7)))
    net = weft.network("ab,bc,cd->da", a, b, c, reduce={"rows": ("a", "logsumexp")})
    d, found = net(a, b, c)
    expected = (a @ b @ c).logsumexp(1)
    torch.testing.assert_close(found["rows"], expected)
    mine = torch.autograd.grad(found["rows"].sin().sum() + d.sum(), (a, b, c))
    right = torch.autograd.grad(expected.sin().sum() + (a @ b @ c).sum(), (a, b, c))
    torch.testing.assert_close(mine, right)
    arrays = [each.detach().numpy() for each in (a, b, c)]
    d, found = net(*arrays)
    assert type(d) is type(found["rows"]) is type(arrays[0])
    out = torch.empty(7, 4, dtype=torch.float64)
    with torch.no_grad():
        assert net(a, b, c, out=out)[0] is out


def test_a_network_refuses_reductions_that_it_cannot_make() -> None:
    a, b, c = torch.ones(4, 5), torch.ones(5, 6), torch.ones(6, 7)
    with pytest.raises(weft.NotationError, match="reduce 'peak' keeps 'b', which D"):
        weft.network("ab,bc,cd->ad", a, b, c, reduce={"peak": ("b", "max")})
    with pytest.raises(weft.UnsupportedError, match="strip_exponent and reduce do not go together"):
        weft.network("ab,bc,cd->ad", a, b, c, reduce={"peak": ("a", "max")}, strip_exponent=True)
    with pytest.raises(weft.UnsupportedError, match="only networks whose call is their steps"):
        weft.network("ab,bc,cd->ad", a, b, c, reduce={"peak": ("a", "max")}).bind(a, b, c)
