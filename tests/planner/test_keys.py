"""Every field of what a call says is in the key of its plan, and reaches it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

import cotengra as ctg
import pytest
import torch

import weft
import weft.hooks.libraries
from weft.algebra import find, plus_times_mod
from weft.api.lookup import find_plan
from weft.networks.steps import StepOptions
from weft.planner.options import Options

A, B, C = torch.rand(3, 4), torch.rand(4, 5), torch.rand(5, 3)
FORCED = weft.plan("mk,kn->mn", A, B).report().candidates[-1].schedule


def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def beside(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return x * other


EPILOGUE = (None, None, None, beside)
ON_ROWS = Options(functions=EPILOGUE, operands={"other": ("m", A[:, 0])})
#: Options that differ from each other in one field.
FIELDS: dict[str, tuple[Options, Options]] = {
    name: (Options(), Options(**{name: value}))
    for name, value in {
        "out_dtype": torch.float64, "precision": "ieee_bound", "accumulate": torch.float64,
        "functions": (None, None, None, twice), "algebra": find("max_plus"), "deterministic": False,
        "workspace_limit": 1 << 20, "backend": "reference", "tune": "load", "specialize": "never", "schedule": FORCED,
        "promote": True, "kept_dtype": torch.float64, "invariant": ("m",),
    }.items()
} | {
    "operands": (ON_ROWS, replace(ON_ROWS, operands={"other": ("n", B[0])})),
    "indices": tuple(Options(functions=EPILOGUE, indices={"other": label}) for label in "mn"),
}  # fmt: skip


def test_every_field_is_here() -> None:
    assert {each.name for each in fields(Options)} == FIELDS.keys()
    assert {each.name for each in fields(weft.Algebra)} == OTHERS.keys()
    assert {each.name for each in fields(StepOptions)} == {"options", "halves"}


@pytest.mark.keeps
@pytest.mark.parametrize("name", FIELDS)
def test_calls_that_differ_in_an_option_share_no_plan(name: str) -> None:
    one, other = FIELDS[name]
    assert one.said() != other.said() == replace(other).said() is not None
    plans = [find_plan("mk,kn->mn", A, B, each) for each in (one, other, one)]
    assert plans[0] is plans[2]
    if name != "deterministic":  # results are the same from run to run with either value
        assert plans[0].request != plans[1].request


def plus(x: Any, y: Any) -> Any:
    return x + y


def times(x: Any, y: Any) -> Any:
    return x * y


def pulled(x: Any, y: Any, total: Any, grad: Any) -> Any:
    return grad * y, grad * x


def pulled_twice(x: Any, y: Any, total: Any, grad: Any) -> Any:
    return 2 * grad * y, 2 * grad * x


USUAL = weft.Algebra(times, plus, 0, "mine", lambda dtype: None, pulled)
OTHERS: dict[str, weft.Algebra] = {
    name: replace(USUAL, **{name: value})
    for name, value in {
        "combine": plus, "reduce": times, "identity": 0.0, "name": "yours",
        "requires": lambda dtype: "never" if dtype.is_complex else None, "vjp": pulled_twice,
    }.items()
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_calls_whose_algebras_differ_share_no_plan(name: str) -> None:
    one, other = (Options(algebra=each) for each in (USUAL, OTHERS[name]))
    assert one.said() != other.said() == replace(other).said() is not None
    for each in (one, other, one):
        assert find_plan("mk,kn->mn", A, B, each).request.raw_algebra is each.algebra


def test_ready_algebras_have_keys() -> None:
    for algebra in (find("log"), plus_times_mod(7)):
        assert Options(algebra=algebra).said() is not None


@pytest.mark.parametrize("calls", [1, 12])
@pytest.mark.parametrize("call", [
    lambda given, algebra: weft.einsum("ij,jk,kl->il", *given, algebra=algebra),
    lambda given, algebra: weft.contract("ij,jk->ik", *given[:2], algebra=algebra),
    lambda given, algebra: weft.network("ij,jk,kl->il", *given, algebra=algebra)(*given),
], ids=["einsum", "contract", "network"])  # fmt: skip
def test_a_gradient_is_that_of_the_calls_algebra(call: Callable[..., Any], calls: int) -> None:
    given = [each.clone().requires_grad_() for each in (A, B, C)]
    steps = 1 if call(given, USUAL).shape == (3, 5) else 2
    found = [
        torch.autograd.grad(call(given, algebra).sum(), given[0])[0]
        for algebra in (USUAL, OTHERS["vjp"]) for _ in range(calls)
    ]  # fmt: skip
    torch.testing.assert_close(found[-1], 2**steps * found[0])


def scaled(by: list[float]) -> weft.Algebra:
    return weft.Algebra(lambda x, y: x * y * by[0], plus, 0, "scaled", vjp=lambda x, y, t, g: (g * y, g * x))


@pytest.mark.parametrize("calls", [1, 12])
def test_what_one_algebra_closes_over_changes_no_call_of_another(calls: int) -> None:
    values = [1.0], [1.0]
    first, second = map(scaled, values)
    given = [each.clone().requires_grad_() for each in (A, B, C)]
    for _ in range(calls):
        weft.einsum("ij,jk,kl->il", *given, algebra=first)
    values[0][0] = 3.0
    for _ in range(calls):
        found = weft.einsum("ij,jk,kl->il", *given, algebra=second)
    torch.testing.assert_close(found, A @ B @ C)


def test_options_of_steps_reach_their_plans() -> None:
    halves = StepOptions(Options(), True).having(epilogue=twice)
    assert halves.halves
    assert halves.options == Options().having(epilogue=twice)
    assert halves.of(torch.float16, torch.float32) != replace(halves, halves=False).of(torch.float16, torch.float32)


@pytest.fixture
def in_any_precision() -> Iterator[None]:
    yield
    weft.set_precision("ieee")


def _tree() -> Any:
    extents = {"i": 3, "j": 4, "k": 5, "l": 3}
    return ctg.ContractionTree.from_path(["ij", "jk", "kl"], "il", extents, path=[(0, 1), (0, 1)])


def network_of(tree: Any, **options: Any) -> Any:
    return weft.hooks.libraries._network(tree, [A, B, C], options)


@pytest.mark.keeps
@pytest.mark.parametrize("set_by", ["with", "everywhere"])
def test_a_tree_has_the_precision_of_its_own_call(set_by: str, in_any_precision: None) -> None:
    tree = _tree()
    if set_by == "with":
        with weft.precision("ieee_bound"):
            within = network_of(tree)
    else:
        weft.set_precision("ieee_bound")
        within = network_of(tree)
        weft.set_precision("ieee")
    assert within.plan.settings.options.precision == "ieee_bound"
    assert network_of(tree).plan.settings.options.precision is None
    assert network_of(tree) is network_of(tree)


@pytest.mark.parametrize("option", [
    {"precision": "ieee_bound"}, {"accumulate": torch.float64}, {"out_dtype": torch.float64}, {"algebra": "max_plus"},
    {"algebra": USUAL}, {"algebra": OTHERS["vjp"]}, {"backend": "reference"}, {"memory_limit": 1 << 20},
    {"strip_exponent": True}, {"reuse": True}, {"check_finite": True}, {"slices": "j"},
])  # fmt: skip
def test_trees_that_differ_in_an_option_share_no_network(option: dict[str, Any]) -> None:
    tree = _tree()
    networks = [network_of(tree), network_of(tree, **option), network_of(tree, algebra=replace(USUAL, name="its"))]
    assert len({id(each) for each in networks}) == 3
