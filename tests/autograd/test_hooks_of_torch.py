"""Every way in which torch asks for derivatives, and what it says where one is not there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import func
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import weft

F64 = torch.float64
A, B, U = torch.randn(3, 4, dtype=F64), torch.randn(4, 5, dtype=F64), torch.randn(5, dtype=F64)
TANGENTS = tuple(torch.randn_like(each) for each in (A, B, U))


def layer(a: Any, b: Any, u: Any) -> Any:
    return weft.contract(
        "mk,kn->mn", a, b, a_fn=torch.sin, epilogue=lambda s, u: F.silu(s + u), operands={"u": ("n", u)}
    )


def layer_of_torch(a: Any, b: Any, u: Any) -> Any:
    return F.silu(torch.sin(a) @ b + u)


def both(transform: Callable[[Callable[..., Any]], Any], *arguments: Any) -> None:
    torch.testing.assert_close(transform(layer)(*arguments), transform(layer_of_torch)(*arguments))


def total(call: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments: call(*arguments).sum()


EVERY = (0, 1, 2)


@pytest.mark.parametrize(
    "transform",
    [
        pytest.param(lambda call: func.grad(total(call), argnums=EVERY), id="grad"),
        pytest.param(lambda call: func.jacrev(call, argnums=EVERY), id="jacrev"),
        pytest.param(lambda call: func.jacfwd(call, argnums=EVERY), id="jacfwd"),
        pytest.param(lambda call: func.hessian(total(call), argnums=EVERY), id="hessian"),
        pytest.param(lambda call: lambda *given: func.jvp(call, given, TANGENTS), id="jvp"),
        pytest.param(lambda call: lambda *given: func.vjp(call, *given)[1](torch.ones(3, 5, dtype=F64)), id="vjp"),
    ],
)
def test_transforms(transform: Any) -> None:
    both(transform, A, B, U)


@pytest.mark.parametrize("dims", [(0, None, 0), (None, 2, None), (None, None, 0), (0, 0, 0)])
def test_vmap_is_a_batch_mode(dims: tuple[Any, ...]) -> None:
    given = [
        each if dim is None else torch.stack([each, 2 * each, each - 1], dim)
        for each, dim in zip((A, B, U), dims, strict=True)
    ]
    both(lambda call: func.vmap(call, dims), *given)
    both(lambda call: func.vmap(func.grad(total(call), argnums=EVERY), dims), *given)


@pytest.mark.parametrize("algebra", ["max_plus", "log"])
def test_transforms_of_other_algebras(algebra: str) -> None:
    def mine(a: Any, b: Any) -> Any:
        return weft.contract("mk,kn->mn", a, b, algebra=algebra)

    def theirs(a: Any, b: Any) -> Any:
        pairs = a[:, :, None] + b
        return pairs.amax(1) if algebra == "max_plus" else pairs.logsumexp(1)

    several = torch.stack([A, A.flip(1)])
    for transform, first in ((lambda call: func.grad(total(call), argnums=(0, 1)), A),
                             (lambda call: func.vmap(func.grad(total(call)), (0, None)), several)):  # fmt: skip
        torch.testing.assert_close(transform(mine)(first, B), transform(theirs)(first, B))
    torch.testing.assert_close(func.jvp(mine, (A, B), TANGENTS[:2]), func.jvp(theirs, (A, B), TANGENTS[:2]))


def test_what_is_made_inside_a_transform_of_others_is_not_kept() -> None:
    found = func.vmap(lambda x: x * weft.contract("mk,kn->mn", A, B))(torch.ones(2, 3, 5, dtype=F64))
    torch.testing.assert_close(found, (A @ B).expand(2, 3, 5))
    torch.testing.assert_close(weft.einsum("mk->m", A), A.sum(1))


def test_forward_mode_of_duals() -> None:
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(each, tangent) for each, tangent in zip((A, B, U), TANGENTS, strict=True)]
        found, expected = (forward_ad.unpack_dual(call(*duals)) for call in (layer, layer_of_torch))
        torch.testing.assert_close((found.primal, found.tangent), (expected.primal, expected.tangent))


def leaves() -> list[torch.Tensor]:
    return [each.clone().requires_grad_() for each in (A, B, U)]


def test_checkpoint_and_retain_graph() -> None:
    expected = torch.autograd.grad(layer_of_torch(*(given := leaves())).sum(), given)
    given = leaves()
    torch.testing.assert_close(
        torch.autograd.grad(checkpoint(layer, *given, use_reentrant=False).sum(), given), expected
    )
    found = layer(*given).sum()
    for _ in range(2):
        torch.testing.assert_close(torch.autograd.grad(found, given, retain_graph=True), expected)
    found.backward()
    with pytest.raises(RuntimeError, match="a second time"):
        found.backward()


def test_saved_tensors_go_through_hooks() -> None:
    packed: list[torch.Tensor] = []
    given = leaves()
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (packed.append(x), x * 1)[1], lambda x: x):
        found = layer(*given)
    torch.testing.assert_close(
        torch.autograd.grad(found.sum(), given), torch.autograd.grad(layer_of_torch(*given).sum(), given)
    )
    assert packed


def test_writes_to_what_backward_needs_are_caught() -> None:
    given = leaves()
    found = layer(*given)
    with torch.no_grad():
        given[1].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        found.sum().backward()
    found = weft.contract("mk,kn->mn", *given[:2], epilogue=torch.relu)
    found.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        found.sum().backward()


def test_leaves_that_are_strided_or_expanded() -> None:
    weight = torch.randn(5, 4, dtype=F64).T.requires_grad_()
    row = torch.randn(4, dtype=F64).expand(3, 4).requires_grad_()
    weft.contract("mk,kn->mn", row, weight).sum().backward()
    assert weight.grad is not None
    assert row.grad is not None
    torch.testing.assert_close(weight.grad, row.detach().sum(0)[:, None].expand(4, 5))
    torch.testing.assert_close(row.grad, weight.detach().sum(1).expand(3, 4))


def test_plans() -> None:
    """A plan made of tensors with or without gradients; it describes the backward pass of the former."""
    given = leaves()
    options: dict[str, Any] = {"a_fn": torch.sin, "epilogue": lambda s, u: F.silu(s + u)}
    plan = weft.plan("mk,kn->mn", *given[:2], operands={"u": ("n", given[2])}, **options)
    text = plan.explain()
    for words in ("dA = mn,kn->mk", "dB = mn,mk->kn", "d u = mn,->n", "kept besides operands and results"):
        assert words in text
    expected = torch.autograd.grad(layer_of_torch(*given).sum(), given)
    for _ in range(2):
        torch.testing.assert_close(
            torch.autograd.grad(plan(*given[:2], operands={"u": given[2]}).sum(), given), expected
        )
    bare = weft.plan("mk,kn->mn", A, B)
    assert "backward" not in bare.explain()
    torch.testing.assert_close(
        torch.autograd.grad(bare(*given[:2]).sum(), given[0])[0], B.sum(1).expand(3, 4)
    )
    with pytest.raises(weft.ShapeError, match="planned were"):
        bare(given[0][:2], given[1])
    moved = weft.plan_permute(given[0], "ab->ba", fn=torch.sin)
    assert "dA = ba,->ab" in moved.explain()
    torch.testing.assert_close(torch.autograd.grad(moved(given[0]).sum(), given[0])[0], torch.cos(A))


def test_autocast() -> None:
    """Gradients of float32 leaves, made as torch makes them: products in autocast's type."""
    x, w = torch.randn(16, 24, requires_grad=True), torch.randn(24, 32, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mine, theirs = weft.matmul(x, w), x @ w
    assert mine.dtype == theirs.dtype == torch.bfloat16
    found = torch.autograd.grad(mine.float().square().sum(), (x, w))
    expected = torch.autograd.grad(theirs.float().square().sum(), (x, w))
    assert all(each.dtype == torch.float32 for each in found)
    for have, want in zip(found, expected, strict=True):
        assert (have - want).abs().max() <= 2.0**-6 * want.abs().max()


def test_places_come_without_a_gradient_and_values_with_one() -> None:
    given = leaves()
    value, where = weft.contract("mk,kn->mn", *given[:2], algebra="max_plus", return_arg=True)
    assert value.requires_grad
    assert not where.requires_grad
    results = weft.contract("mk,kn->mn", *given[:2], epilogue=lambda s: (s * 2, s > 0))
    assert [each.requires_grad for each in results] == [True, False]


WHOLE: dict[str, tuple[torch.dtype, dict[str, Any]]] = {
    "sums of products": (torch.int32, {}),
    "largest sums": (torch.int64, {"algebra": "max_plus"}),
    "parities": (torch.bool, {"algebra": "gf2"}),
    "truth values and C": (torch.bool, {"algebra": "or_and", "c": torch.rand(3, 6) > 0.5}),
    "functions": (torch.int64, {"algebra": "min_max", "a_fn": lambda x: x * 3 - 1, "epilogue": lambda s: (s, s > 1)}),
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
def test_vmap_of_whole_numbers_and_truth_values(name: str) -> None:
    """They have no derivatives, and vmap needs none."""
    dtype, how = WHOLE[name]
    x, y = (torch.randint(0, 2, shape).to(dtype) for shape in ((4, 3, 5), (5, 6)))

    def call(a: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = weft.contract("mk,kn->mn", a, y, **how)
        return found if isinstance(found, tuple) else (found,)

    for found, each in zip(func.vmap(call)(x), zip(*map(call, x), strict=True), strict=True):
        assert torch.equal(found, torch.stack(each))


BAD: dict[str, tuple[Callable[[torch.Tensor], Any], type[Exception], str]] = {
    "out": (lambda x: weft.contract("mk,kn->mn", x, B, out=torch.empty(3, 5, dtype=F64)), weft.UnsupportedError,
            "out= has no derivative: leave it out"),
    "out of permute": (lambda x: weft.permute(x, "ab->ba", out=torch.empty(4, 3, dtype=F64)), weft.UnsupportedError,
                       "out= has no derivative"),
    "an integer result": (
        lambda x: weft.contract("mk,kn->mn", x, B, epilogue=lambda s: s.int(), out_dtype=torch.int32),
        weft.DTypeError, "int32 is not differentiable, and an operand requires a gradient: detach it",
    ),
    "no known reduce": (lambda x: weft.contract("mk,kn->mn", x, B, algebra="or_and"), weft.UnsupportedError,
                        "or_and has no derivative that is known: its reduce is neither a sum nor a selection"),
    "no derivative": (lambda x: weft.contract("mk,kn->mn", x, B, epilogue=torch.lgamma), weft.FunctionError,
                      r"the derivative of epilogue: aten\.digamma cannot be fused"),
    "a wrong vjp": (lambda x: weft.contract("mk,kn->mn", x, B, algebra=weft.Algebra(
        torch.add, torch.logaddexp, "lowest", "odd", vjp=lambda x, y, total, grad: grad)), weft.FunctionError,
                    "vjp of the algebra odd returns the gradients of x and y, a pair"),
    "a factor of several": (lambda x: weft.contract("mk,kn->mn", x, B, alpha=torch.ones(2)), weft.ShapeError,
                            r"alpha has shape \(2,\): a factor is a number, or a tensor of no dimensions"),
    "in place": (lambda x: weft.transpose_(x), weft.UnsupportedError, "gradient"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "error", "words"), BAD.values(), ids=BAD)
def test_what_has_no_derivative_says_so(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call(A.clone().requires_grad_())
    with torch.no_grad():
        if "derivative" in words:
            call(A.clone().requires_grad_())


def test_calls_without_derivatives_say_so_inside_transforms() -> None:
    with pytest.raises(weft.UnsupportedError, match=r"inside a transform of torch.func, which this call does not"):
        func.vmap(weft.transpose_)(torch.rand(2, 3, 3))
    with pytest.raises(weft.UnsupportedError, match=r"a plan is made of tensors, .*: make it outside"):
        func.grad(lambda a: weft.plan("mk,kn->mn", a, B)(a, B).sum())(A)


def test_finite_fields_and_integers_are_refused_in_a_sentence() -> None:
    whole = torch.ones(3, 3, dtype=torch.int32)
    scale = torch.ones(3, requires_grad=True)
    with pytest.raises(weft.DTypeError, match="is not differentiable, and an operand requires a gradient"):
        weft.contract("mk,kn->mn", whole, whole, algebra=weft.algebra.plus_times_mod(7), out_dtype=torch.int32,
                      epilogue=lambda s, u: (s * u).int(), operands={"u": ("n", scale)})  # fmt: skip


MINE = weft.Algebra(lambda x, y: torch.sin(x * y) + x, torch.add, 0, "mine")
EXPLICIT = weft.Algebra(
    torch.add, torch.logaddexp, "lowest", "with vjp",
    vjp=lambda x, y, total, grad: (grad * torch.exp(x + y - total),) * 2,
)
PAIRS = {
    "log": ("log", lambda a, b: (a[:, :, None] + b).logsumexp(1)),
    "mine": (MINE, lambda a, b: (torch.sin(a[:, :, None] * b) + a[:, :, None]).sum(1)),
    "with vjp": (EXPLICIT, lambda a, b: (a[:, :, None] + b).logsumexp(1)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_transforms_of_transforms_of_algebras_that_sum(name: str) -> None:
    algebra, theirs = PAIRS[name]

    def mine(a: Any, b: Any) -> Any:
        return weft.contract("mk,kn->mn", a, b, algebra=algebra)

    a, b, step = A[:2, :3], B[:3, :2], TANGENTS[0][:2, :3]
    several = torch.stack([a, 2 * a])
    for transform in (
        lambda call: func.hessian(total(call))(a, b),
        lambda call: func.jacrev(func.jacfwd(total(call)))(a, b),
        lambda call: func.vmap(func.hessian(total(call)), (0, None))(several, b),
        lambda call: func.jvp(func.grad(total(call)), (a, b), (step, b)),
        lambda call: func.vmap(lambda t: func.jvp(call, (a, b), (t, b))[1])(several),
    ):
        torch.testing.assert_close(transform(mine), transform(theirs))


def test_second_derivatives_of_log_where_nothing_is_reached_or_nothing_is_asked() -> None:
    """Rows without a share, gradients that are zero, and modes of one operand alone, at values that would overflow."""
    a, b = A.clone() * 400, torch.stack([B, B - 800], 2)
    a[1], a[0, 2], b[0, 1] = -torch.inf, -torch.inf, -torch.inf
    weights = torch.tensor([1.0, 0.0, -2.0], dtype=F64)[:, None]
    given = [a.requires_grad_(), b.requires_grad_()]

    def second(call: Any) -> list[torch.Tensor]:
        value = (call(*given) * weights[[0, 2]]).square().sum()
        first = torch.autograd.grad(value, given, create_graph=True)
        return [*first, *torch.autograd.grad(sum((g * g.detach().cos()).sum() for g in first), given)]

    found = second(lambda a, b: weft.contract("mk,knl->mn", a, b, algebra="log")[[0, 2]])
    expected = second(lambda a, b: (a[[0, 2], :, None, None] + b).logsumexp((1, 3)))
    assert all(each.isfinite().all() for each in found)
    torch.testing.assert_close(found, expected)


def test_arrays_of_other_kinds_are_as_before() -> None:
    weight = B.clone().requires_grad_()
    found = weft.contract("mk,kn->mn", A, weight)
    assert isinstance(weft.contract("mk,kn->mn", A.numpy(), B.numpy()), np.ndarray)
    torch.testing.assert_close(torch.autograd.grad(found.sum(), weight)[0], A.sum(0)[:, None].expand(4, 5))


@pytest.mark.parametrize("hook", ["a_fn", "c_fn", "epilogue"])
@pytest.mark.parametrize("function", [torch.abs, torch.round, torch.sign, F.logsigmoid, lambda x: x * torch.sign(x)])
def test_forward_mode_of_functions_that_are_flat_in_parts_and_of_their_gradients(function: Any, hook: str) -> None:
    def mine(a: Any, b: Any, c: Any) -> Any:
        return weft.contract("mk,kn->mn", a, b, c=c, specialize="now", **{hook: function})

    def theirs(a: Any, b: Any, c: Any) -> Any:
        a, c = function(a) if hook == "a_fn" else a, function(c) if hook == "c_fn" else c
        return function(a @ b + c) if hook == "epilogue" else a @ b + c

    given = A, B, torch.randn(3, 5, dtype=F64)
    steps = tuple(torch.randn_like(each) for each in given)
    for transform in (
        lambda call: func.jvp(call, given, steps),
        lambda call: func.jvp(func.grad(total(lambda *x: call(*x).square()), EVERY), given, steps),
        lambda call: func.hessian(total(lambda *x: call(*x).square()), EVERY)(*given),
    ):
        torch.testing.assert_close(transform(mine), transform(theirs))
    slope = func.jvp(lambda a: mine(a, *given[1:]).sum(), (A,), (steps[0],))
    torch.testing.assert_close(slope, func.jvp(lambda a: theirs(a, *given[1:]).sum(), (A,), (steps[0],)))


def test_forward_mode_of_hardsigmoid() -> None:
    """torch has no second derivatives of it, by which weft finds tangents."""
    primals, tangents = (A, B), TANGENTS[:2]
    found = func.jvp(lambda a, b: weft.contract("mk,kn->mn", a, b, epilogue=F.hardsigmoid), primals, tangents)
    torch.testing.assert_close(found, func.jvp(lambda a, b: F.hardsigmoid(a @ b), primals, tangents))


@pytest.mark.parametrize("specialize", ["auto", "library"])
@pytest.mark.parametrize("how", [{}, {"algebra": "log"}, {"algebra": "max_plus"}], ids=str)
def test_anomaly_detection_reads_no_traced_derivative(how: dict[str, Any], specialize: str) -> None:
    def twice(value: torch.Tensor) -> torch.Tensor:  # of this test alone: its derivative is traced here
        return torch.where(value > 0, torch.sin(value), value * 2)

    a, b = A.detach().clone().requires_grad_(), B.detach().clone().requires_grad_()
    with torch.autograd.set_detect_anomaly(True):
        found = weft.contract("mk,kn->mn", a, b, a_fn=twice, epilogue=twice, specialize=specialize, **how)
        grads = torch.autograd.grad(found.sum(), (a, b))
        assert torch.is_anomaly_enabled()
    again = weft.contract("mk,kn->mn", a, b, a_fn=twice, epilogue=twice, specialize=specialize, **how)
    torch.testing.assert_close(grads, torch.autograd.grad(again.sum(), (a, b)))
