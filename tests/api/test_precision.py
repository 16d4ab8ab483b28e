"""`precision="ieee_bound"`, and the precision of calls that name none."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from typer.testing import CliRunner

import weft
from weft.cli.main import app

PAIR = torch.randn(40, 64), torch.randn(64, 30)


@pytest.fixture(autouse=True)
def _as_at_the_start() -> object:
    yield
    weft.set_precision("ieee")


def words(plan: weft.Plan) -> str:
    return next(line for line in plan.explain().splitlines() if line.startswith("types"))


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128, torch.int32]
)
def test_every_type_of_operands_takes_it(dtype: torch.dtype) -> None:
    a, b = (x.mul(4).to(dtype) for x in PAIR)
    found = weft.contract("mk,kn->mn", a, b, precision="ieee_bound", validate=True)
    assert torch.equal(found, weft.contract("mk,kn->mn", a, b))


def test_calls_without_a_precision_take_the_default_and_others_their_own() -> None:
    assert "(ieee)" in words(weft.plan("mk,kn->mn", *PAIR))
    weft.set_precision("ieee_bound")
    assert "(ieee_bound)" in words(weft.plan("mk,kn->mn", *PAIR))
    assert "(ieee)" in words(weft.plan("mk,kn->mn", *PAIR, precision="ieee"))
    with weft.precision("ieee"):
        assert "(ieee)" in words(weft.plan("mk,kn->mn", *PAIR))
        with weft.precision("ieee_bound"):
            assert "(ieee_bound)" in words(weft.plan("mk,kn->mn", *PAIR))
    assert "(ieee_bound)" in words(weft.plan("mk,kn->mn", *PAIR))


def test_a_block_holds_in_its_own_thread_alone() -> None:
    found = []
    with weft.precision("ieee_bound"):
        thread = threading.Thread(target=lambda: found.append(words(weft.plan("mk,kn->mn", *PAIR))))
        thread.start()
        thread.join()
    assert "(ieee)" in found[0]


def test_plans_and_networks_keep_the_precision_that_they_were_made_with() -> None:
    with weft.precision("ieee_bound"):
        plan, net = weft.plan("mk,kn->mn", *PAIR), weft.network("mk,kn,ml->nl", *PAIR, torch.ones(40, 3))
    plan(*PAIR)
    assert "(ieee_bound)" in words(plan)
    assert net.plan.settings.options.precision == "ieee_bound"


@pytest.mark.parametrize(
    "call",
    [
        lambda a, b: weft.contract("mk,kn->mn", a, b),
        lambda a, b: weft.einsum("mk,kn->mn", a, b),
        lambda a, b: weft.einsum("mk,kn,nl->ml", a, b, b.mT),
        lambda a, b: weft.matmul(a, b),
        lambda a, b: weft.einsum("mk->m", a),
        lambda a, b: weft.grouped("mk,kn->mn", [(a, b), (a[:3], b)])[1],
        lambda a, b: weft.contract("mk,kn->mn", a, b, algebra="max_plus"),
        lambda a, b: weft.nn.Linear(64, 5)(a),
    ],
    ids=["contract", "einsum", "path", "matmul", "one operand", "grouped", "algebra", "layer"],
)
def test_every_call_works_under_either_default_and_in_turn(call: Callable[..., torch.Tensor]) -> None:
    torch.manual_seed(0)
    expected = [call(*PAIR) for _ in range(2)][1]
    for default in ("ieee_bound", "ieee", "ieee_bound"):
        with weft.precision(default):
            torch.manual_seed(0)
            found = [call(*PAIR) for _ in range(2)][1]
        assert torch.allclose(found, expected, atol=1e-3)


def test_gradients_have_the_precision_of_the_call() -> None:
    a = PAIR[0].clone().requires_grad_()
    weft.contract("mk,kn->mn", a, PAIR[1], precision="ieee_bound").sum().backward()
    assert torch.allclose(a.grad, PAIR[1].sum(1).expand(40, 64), atol=1e-4)


def test_compiled_calls_take_it() -> None:
    torch._dynamo.reset()
    step = torch.compile(
        lambda a, b: weft.contract("mk,kn->mn", a, b, precision="ieee_bound"), fullgraph=True, backend="eager"
    )
    assert torch.allclose(step(*PAIR), PAIR[0] @ PAIR[1], atol=1e-4)


@pytest.mark.parametrize("set_it", [weft.set_precision, weft.precision])
def test_less_exact_modes_are_for_single_calls(set_it: Callable[[str], object]) -> None:
    with pytest.raises(weft.ArgumentError, match="'ieee' or 'ieee_bound', not 'tf32'"):
        set_it("tf32")


@pytest.mark.parametrize(("target", "splits"), [("sm_90", True), ("sm_80", False)])
def test_terms_serve_gpus_whose_matrix_units_are_known(target: str, splits: bool) -> None:
    asked = ["--extents", "m=4096,n=4096,k=4096", "--target", target, "--precision", "ieee_bound"]
    told = CliRunner().invoke(app, ["explain", "mk,kn->mn", *asked]).output
    chosen = next(line for line in told.splitlines() if line.startswith("plan"))
    assert ("split: matrix products of shorter terms" in chosen) == splits
