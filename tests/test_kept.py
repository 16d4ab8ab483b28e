"""What outlives a call on a device: made with the plan, never within a capture. Captures are played on the CPU here."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest
import torch

import weft
from support import Backend
from weft.base import kept
from weft.groups import launch as group_launches
from weft.groups import plan as group_plans
from weft.networks import operands, program
from weft.planner import planner, pre_reduce

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    kept.forget()
    yield
    kept.forget()


class Capture:
    """Within, rooms believe that a CUDA graph is being captured."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *rooms: ModuleType) -> None:
        self.on = False
        for room in rooms:
            monkeypatch.setattr(room, "is_capturing", lambda device: self.on)

    def __enter__(self) -> None:
        self.on = True

    def __exit__(self, *_: object) -> None:
        self.on = False


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The constants that are made, each when it is."""
    found: list[Any] = []
    make = kept._made

    def told(key: Any) -> torch.Tensor:
        found.append(key)
        return make(key)

    monkeypatch.setattr(kept, "_made", told)
    return found


CALLS: tuple[tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any], str], ...] = (
    ("mki,kn->mn", (6, 5, 40), (5, 3), {}, "pre_reduce"),
    ("abcd,dcef->aebf", (2, 3, 2, 5), (5, 2, 3, 2), {"epilogue": torch.relu}, "ttgt"),
    ("mk,kn->mn", (20, 30), (30, 20), {"algebra": "log"}, "logsumexp"),
)


@pytest.mark.parametrize(("equation", "left", "right", "options", "family"), CALLS, ids=[call[-1] for call in CALLS])
def test_a_call_of_a_plan_makes_none(
    equation: str, left: tuple[int, ...], right: tuple[int, ...], options: dict[str, Any], family: str,
    made: list[Any], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    pytest.importorskip("triton")
    composite = f"weft.gpu.composite.{family}"
    module: Any = pre_reduce if family == "pre_reduce" else import_module(composite)
    a, b = torch.randint(-3, 4, left).float(), torch.randint(-3, 4, right).float()
    plan = weft.plan(equation, a, b, backend="triton", **options)
    contraction, target = plan.contraction, plan.request.target
    schedule = module.schedules(contraction, target).schedules[-1]
    kept.forget()
    made.clear()
    launch = module.build(contraction, schedule, target)
    assert made, "the plan has its constants made"
    made.clear()
    d = torch.full(plan.shape, torch.nan)
    launch(a, b, None, d, 1.0, 0.0)
    assert not made, "the call makes none"
    exact = weft.contract(equation, a, b, backend="reference", **options)
    torch.testing.assert_close(d, exact, rtol=1e-5, atol=1e-5)
    with Capture(monkeypatch, kept):  # a plan that is built within has its own in every call, until there are any
        kept.forget()
        launch = module.build(contraction, schedule, target)
        launch(a, b, None, d, 1.0, 0.0)
        assert not kept._constants


def test_a_constant_of_a_capture_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    with Capture(monkeypatch, kept):
        first = kept.constant(1, torch.float32, CPU)
        assert kept.constant(1, torch.float32, CPU) is not first
        assert weft.einsum("ij->i", torch.ones(2, 3)).tolist() == [3.0, 3.0]
    assert not kept._constants
    known = kept.constant(1, torch.float32, CPU)
    assert kept.constant(1, torch.float32, CPU) is known
    with Capture(monkeypatch, kept):
        assert kept.constant(1, torch.float32, CPU) is known


def test_a_constant_serves_whatever_the_first_call_was_in() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    with torch.inference_mode():
        weft.einsum("ij->i", x)
    leaf = x.clone().requires_grad_()
    weft.einsum("ij->i", leaf).sum().backward()
    assert torch.equal(leaf.grad, torch.ones(2, 3))  # type: ignore[arg-type]
    kept.forget()
    torch.func.vmap(lambda row: weft.einsum("j->", row))(x)
    assert not any(torch._C._functorch.is_functorch_wrapped_tensor(one) for one in kept._constants.values())


def test_a_value_of_a_capture_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    capture, count = Capture(monkeypatch, kept), iter(range(9))
    with capture:
        value = kept.Kept(lambda: next(count), CPU)
        assert (value.value, value.value) == (0, 1)
    assert (value.value, value.value) == (2, 2)
    assert kept.Kept(lambda: next(count), CPU).value == 3


def test_constants_of_a_network_made_within(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = torch.ones(50, 3), torch.ones(3, 3)
    with Capture(monkeypatch, kept, program):
        network = weft.network("ij,jk,kl->il", a, b, b, constants=(1, 2))
        network(a)
        [own] = network.fixed.operands
        assert own is not b
        own.fill_(torch.nan)  # as memory of a graph that was not replayed
    assert torch.equal(network(a), a @ b @ b)
    assert network.fixed.operands[0] is network.fixed.operands[0]


def test_a_network_that_reuses_has_no_intermediates_in_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    capture = Capture(monkeypatch, program, operands)
    a, b, c = (torch.randint(-3, 4, (4, 4)).float() for _ in range(3))
    network = weft.network("ij,jk,kl->il", a, b, c, reuse=True)
    assert torch.equal(network(a, b, c), a @ b @ c)
    c.copy_(c + 1)
    with capture:
        assert torch.equal(network(a, b, c), a @ b @ c)
    c.copy_(c + 1)
    assert torch.equal(network(a, b, c, changed=[2]), a @ b @ c)


def test_a_group_within_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """No table is sent there: pairs are contracted one by one, and the plan serves with its own kernel after it."""
    pytest.importorskip("triton")
    capture = Capture(monkeypatch, kept, group_plans, group_launches)

    def pairs() -> list[Any]:
        return [(torch.randint(-3, 4, (n, 5)).float(), torch.randint(-3, 4, (5, 2)).float()) for n in (3, 7)]

    first, second, third = pairs(), pairs(), pairs()
    with capture:
        plan = weft.plan_grouped("mk,kn->mn", first, backend="triton")
        assert "one by one" in plan.explain()
        for found, (a, b) in zip(plan(), first, strict=True):
            assert torch.equal(found, a @ b)
    for found, (a, b) in zip(plan(second), second, strict=True):
        assert torch.equal(found, a @ b)
    assert "one launch" in plan.explain()
    own = plan._own
    with capture:
        plan()  # a graph reads the tables from now on
        read = own._rows.clone(), own._rows
        for found, (a, b) in zip(plan(third), third, strict=True):
            assert torch.equal(found, a @ b)
    for found, (a, b) in zip(plan(first), first, strict=True):
        assert torch.equal(found, a @ b)
    assert torch.equal(*read), "the graph's tables are as they were"
    assert own._rows is not read[1]


FACTORS = [(2.0, 3.0), (1 + 2j, 2.0), (2.0, 1j), (1 - 2j, 3 + 1j)]


@pytest.mark.parametrize("within", [False, True], ids=["C apart", "C is D"])
@pytest.mark.parametrize("operands", ["both complex", "one real"])
def test_complex_factors_plan_nothing_in_a_call(
    operands: str, within: bool, triton_backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = triton_backend.device
    a, b, c = (torch.randint(-3, 4, shape, device=device) + 1j * torch.randint(-3, 4, shape, device=device)
               for shape in ((6, 5), (5, 4), (6, 4)))  # fmt: skip
    a, b, c = a.to(torch.complex64), b.to(torch.complex64), c.to(torch.complex64)
    b = b.real.contiguous() if operands == "one real" else b
    out = c.clone() if within else torch.empty_like(c)
    plan = weft.plan("mk,kn->mn", a, b, c=out if within else c, out=out, backend=triton_backend.name, specialize="now")
    contraction, target = plan._first().description, plan.request.target
    from weft.gpu.complex import real_forms as family

    offered = family.schedules(contraction, target).schedules
    launches = [family.build(contraction, schedule, target) for schedule in offered]
    assert launches
    monkeypatch.setattr(planner, "choose_among", lambda *_, **__: pytest.fail("a call plans"))
    for launch in launches:
        for alpha, beta in FACTORS:
            d = c.clone() if within else torch.full_like(c, torch.nan)
            launch(a, b, d if within else c, d, alpha, beta)
            assert torch.equal(d, (alpha * (a @ b.to(a.dtype)) + beta * c).to(d.dtype)), (str(launch), alpha, beta)


def test_an_infinity_of_c_stays_in_its_part(triton_backend: Backend) -> None:
    a = torch.ones(2, 2, dtype=torch.complex64, device=triton_backend.device)
    b = torch.ones(2, 2, device=triton_backend.device)
    c = torch.full((2, 2), complex(torch.inf, 0.0), dtype=torch.complex64, device=triton_backend.device)
    for alpha in (1.0, 1 + 1j):
        found = weft.contract("mk,kn->mn", a, b, c=c, alpha=alpha, beta=2 + 1j, backend=triton_backend.name)
        assert (found.real == torch.inf).all()
        assert (found.imag == torch.inf).all()
