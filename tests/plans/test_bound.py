"""Calls bound to their tensors: what a run reads and writes, which kernel it takes, and what cannot be bound."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import weft
from weft.plans import promoting


def filled(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32, device: str = "cpu") -> list[torch.Tensor]:
    return [torch.rand(shape, dtype=dtype, device=device) for shape in shapes]


@pytest.mark.parametrize("specialize", ["library", "now"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.int64])
@pytest.mark.parametrize("extents", [(8, 8, 8), (13, 29, 31), (1, 7, 1), (5, 0, 3), (0, 4, 3)], ids=str)
def test_each_run_reads_the_values_of_then(
    specialize: Any, dtype: torch.dtype, extents: tuple[int, int, int]
) -> None:
    m, k, n = extents
    a, b, out = (torch.empty(shape, dtype=dtype) for shape in ((m, k), (k, n), (n, m)))
    out = out.T  # of other strides than a new result
    run = weft.plan("mk,kn->mn", a, b, out=out, specialize=specialize).bind(a, b, out)
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        for each in (a, b):
            each.copy_((9 * torch.rand(each.shape, generator=generator, dtype=torch.float64)).to(dtype))
        assert run() is out
        wide = torch.complex128 if dtype.is_complex else torch.float64
        torch.testing.assert_close(out.to(wide), a.to(wide) @ b.to(wide), rtol=k * 1e-6, atol=1e-12)


CALLS: dict[str, tuple[dict[str, Any], Callable[..., torch.Tensor]]] = {
    "C": ({"c": "c", "alpha": 2, "beta": 0.5}, lambda a, b, c, bias: 2 * (a @ b) + 0.5 * c),
    "C that is not read": ({"c": "c", "beta": 0}, lambda a, b, c, bias: a @ b),
    "no products": ({"c": "c", "alpha": 0}, lambda a, b, c, bias: c),
}


@pytest.mark.parametrize("name", CALLS)
def test_factors_and_addends_are_those_of_the_binding(name: str) -> None:
    options, expected = CALLS[name]
    a, b, c, bias, out = filled((5, 6), (6, 7), (5, 7), (7,), (5, 7), dtype=torch.float64)
    given = {key: c if value == "c" else value for key, value in options.items()}
    run = weft.plan("mk,kn->mn", a, b).bind(a, b, out, **given)
    for _ in range(2):
        a.add_(1)
        c.mul_(2)
        run()
        torch.testing.assert_close(out, expected(a, b, c, bias))


def test_functions_their_operands_and_several_results() -> None:
    a, b, bias = filled((5, 6), (6, 7), (7,), dtype=torch.float64)
    factor = 2.0

    def both(total: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.sin(total + bias), factor * total

    plan = weft.plan("mk,kn->mn", a, b, epilogue=both, operands={"bias": ("n", bias)})
    run = plan.bind(a, b, operands={"bias": bias})
    first, second = run()
    bias.add_(1)
    assert run()[0] is first
    torch.testing.assert_close(first, torch.sin(a @ b + bias))
    torch.testing.assert_close(second, 2 * (a @ b))
    factor = 3.0  # another function: this call has the one that it was bound with
    run()
    torch.testing.assert_close(second, 2 * (a @ b))
    torch.testing.assert_close(plan.bind(a, b, operands={"bias": bias})()[1], 3 * (a @ b))


def test_accumulation_into_its_place() -> None:
    a, b, out = filled((5, 6), (6, 7), (5, 7), dtype=torch.float64)
    before = out.clone()
    run = weft.plan("mk,kn->mn", a, b).bind(a, b, out, c=out)
    run()
    run()
    torch.testing.assert_close(out, before + 2 * (a @ b))


def test_arrays_and_conjugates_are_read_where_they_lie() -> None:
    a, b = np.ones((3, 4)), np.ones((4, 5))
    run = weft.plan("mk,kn->mn", a, b).bind(a, b)
    found = run()
    assert isinstance(found, np.ndarray)
    a[:] = 2
    assert run() is found
    assert (found == 8).all()
    x, y = filled((3, 4), (4, 5), dtype=torch.complex64)
    twisted = weft.plan("mk,kn->mn", x.conj(), y).bind(x.conj(), y)
    x.mul_(1j)
    torch.testing.assert_close(twisted(), x.conj() @ y)


def test_a_permutation() -> None:
    x, y, c = filled((5, 6), (6, 5), (6, 5))
    plan = weft.plan_permute(x, "ij->ji", fn=torch.sin)
    run, added = plan.bind(x, y), plan.bind(x, c=c, alpha=2.0, beta=0.5)
    for _ in range(2):
        x.add_(1)
        assert run() is y
        torch.testing.assert_close(y, torch.sin(x).T)
        torch.testing.assert_close(added(), 2 * torch.sin(x).T + 0.5 * c)
    with pytest.raises(weft.UnsupportedError, match="c lies otherwise"):
        plan.bind(x, c=c.T.contiguous().T)
    with pytest.raises(weft.ShapeError, match="overlaps x"):
        weft.plan_permute(c, "ij->ij").bind(c, c)


def test_a_network() -> None:
    operands = filled((3, 4), (4, 5), (5, 6), (6, 2), dtype=torch.float64)
    net, out = weft.network("ab,bc,cd,de->ae", *operands), torch.empty(3, 2, dtype=torch.float64)
    run = net.bind(*operands, out=out)
    for _ in range(2):
        operands[1].add_(1)
        assert run() is out
        torch.testing.assert_close(out, torch.linalg.multi_dot(operands))
    assert net.bind(*operands)() is not out
    with pytest.raises(weft.ShapeError, match="overlaps operand 0"):
        net.bind(*operands, out=operands[0][:, :2])
    with pytest.raises(weft.ShapeError, match="takes 4 operands"):
        net.bind(*operands[:3])
    sliced = weft.network("ab,bc,cd,de->ae", *operands, slices="b")
    with pytest.raises(weft.UnsupportedError, match="one after the other"):
        sliced.bind(*operands)


def test_what_cannot_be_bound() -> None:
    a, b, out = filled((4, 4), (4, 4), (4, 4))
    plan = weft.plan("mk,kn->mn", a, b)
    with pytest.raises(weft.ShapeError, match="out overlaps a"):
        plan.bind(a, b, a)
    with pytest.raises(weft.ShapeError, match="planned were"):
        plan.bind(a[:2], b)
    with pytest.raises(weft.DTypeError, match="planned was float32"):
        plan.bind(a.double(), b)
    with pytest.raises(weft.DTypeError, match="alpha is a Python number"):
        plan.bind(a, b, alpha=torch.ones(()))
    with pytest.raises(weft.UnsupportedError, match="a requires a gradient"):
        plan.bind(a.clone().requires_grad_(), b)
    with pytest.raises(weft.UnsupportedError, match="has no address"):
        torch.func.vmap(lambda x: plan.bind(x, b)())(a.expand(2, 4, 4))
    z = torch.rand(4, 4, dtype=torch.complex64)
    with pytest.raises(weft.UnsupportedError, match="c is a negative or conjugate view"):
        weft.plan("mk,kn->mn", z, z).bind(z, z, c=z.conj())
    with pytest.raises(weft.UnsupportedError, match="return_arg is not bound"):
        weft.plan("mk,kn->mn", a, b, algebra="max_plus", return_arg=True).bind(a, b)
    run = plan.bind(a, b, out)
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="bind the plan"):
            copied(run)


def test_it_keeps_its_tensors_and_records_no_derivative() -> None:
    leaf = torch.rand(4, 5, requires_grad=True)
    b = torch.rand(5, 6)
    with torch.no_grad():
        run = weft.plan("mk,kn->mn", leaf, b).bind(leaf, b)
    assert not run().requires_grad
    expected = leaf.detach() @ b
    del leaf, b
    gc.collect()
    filled((4, 5), (5, 6))  # would take their places
    torch.testing.assert_close(run(), expected)


def test_a_run_enters_two_functions() -> None:
    a, b, out = filled((8, 8), (8, 8), (8, 8))
    run = weft.plan("mk,kn->mn", a, b).bind(a, b, out)
    entered: list[str] = []
    sys.setprofile(lambda frame, event, _: entered.append(frame.f_code.co_name) if event == "call" else None)
    try:
        run()
    finally:
        sys.setprofile(None)
    assert len(entered) == 2, entered


def test_a_better_kernel_is_taken_once_the_plan_has_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Runs are no calls after which one takes over."""
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("WEFT_TIERS", "1")
    monkeypatch.setattr(promoting, "is_faster", lambda choice, seconds: True)
    a, b, out = filled((37, 41), (41, 43), (37, 43))
    plan = weft.plan("mk,kn->mn", a, b, epilogue=torch.sin, specialize="auto")
    run = plan.bind(a, b, out)
    assert plan.schedule.family == "library"
    for _ in range(50):
        run()
    assert plan.schedule.family == "library"
    first = run._launch
    plan.warm()
    assert plan.schedule.family != "library"
    a.mul_(2)
    run()
    assert run._launch is not first
    torch.testing.assert_close(out, torch.sin(a @ b))


@pytest.mark.parametrize("tiers", ["0", "1"])
def test_threads_share_a_bound_call(tiers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who reads the result, which is one for all, waits until all have run."""
    monkeypatch.setenv("WEFT_TIERS", tiers)
    a, b, out = filled((64, 64), (64, 64), (64, 64), dtype=torch.float64)
    plans = (weft.plan("mk,kn->mn", a, b, specialize=kind).bind(a, b, out.clone()) for kind in ("now", "library"))
    net = weft.network("ab,bc,cd->ad", a, b, a).bind(a, b, a)
    calls, expected, wrong = (*plans, net), (a @ b, a @ b, a @ b @ a), []
    turn = threading.Barrier(4)

    def work() -> None:
        for _ in range(60):
            for call, value in zip(calls, expected, strict=True):
                turn.wait()
                found = call()
                turn.wait()
                if not torch.allclose(found, value):
                    wrong.append(call)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_runs_it() -> None:
    a, b, out = filled((300, 200), (200, 100), (300, 100))
    run = weft.plan("mk,kn->mn", a, b, specialize="now").bind(a, b, out)
    run()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            a.mul_(2)
            status = 0 if torch.allclose(run(), (a[:, None, :] * b.T[None]).sum(-1), atol=1e-3) else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


def test_compiled_code_steps_aside() -> None:
    a, b = filled((4, 5), (5, 6))
    run = weft.plan("mk,kn->mn", a, b).bind(a, b)
    found = torch.compile(lambda x: run() + x, backend="eager")(torch.ones(6))
    torch.testing.assert_close(found, a @ b + 1)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.complex64])
@pytest.mark.parametrize("extents", [(64, 64, 64), (33, 20, 17), (512, 512, 512)], ids=str)
@pytest.mark.parametrize("specialize", ["library", "never", "now"])
def test_on_a_gpu_and_in_a_graph(specialize: Any, extents: tuple[int, int, int], dtype: torch.dtype) -> None:
    m, k, n = extents
    a, b, out = filled((m, k), (k, n), (m, n), dtype=dtype, device="cuda")
    run = weft.plan("mk,kn->mn", a, b, specialize=specialize).bind(a, b, out)
    tolerance = {"rtol": 1e-2, "atol": 1e-2} if dtype == torch.float16 else {"rtol": 1e-4, "atol": 1e-4 * k}
    a.mul_(0.5)
    run()
    torch.testing.assert_close(out, a @ b, **tolerance)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    a.mul_(-1)
    graph.replay()
    torch.testing.assert_close(out, a @ b, **tolerance)
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
        b.neg_()
        run()
        torch.cuda.current_stream().synchronize()
    torch.testing.assert_close(out, a @ b, **tolerance)


@pytest.mark.gpu
def test_permutations_and_networks_on_a_gpu() -> None:
    x, y, z = filled((33, 65), (65, 40), (40, 8), device="cuda")
    moved = weft.plan_permute(x, "ij->ji", fn=torch.sin).bind(x)
    net = weft.network("ab,bc,cd->ad", x, y, z)
    run = net.bind(x, y, z)
    for _ in range(4):
        x.mul_(0.9)
        torch.testing.assert_close(moved(), torch.sin(x).T.contiguous())
        torch.testing.assert_close(run(), x @ y @ z, rtol=1e-4, atol=1e-3)


A, B, C = torch.rand(6, 5), torch.rand(5, 4), torch.rand(4, 3)
PAIRS = [(A, B), (A[:2], B)]

HOW: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy, "deepcopy": copy.deepcopy, "pickle": lambda value: pickle.loads(pickle.dumps(value)),
}  # fmt: skip

#: What is planned, and a call of it.
PLANNED: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "plan": (lambda: weft.plan("ij,jk->ik", A, B, epilogue=torch.relu), lambda it: it(A, B)),
    "plan with places": (
        lambda: weft.plan("ij,jk->ik", A, B, algebra="max_plus", return_arg=True), lambda it: it(A, B)
    ),
    "plan_permute": (lambda: weft.plan_permute(A, "ij->ji"), lambda it: it(A)),
    "grouped": (lambda: weft.plan_grouped("ij,jk->ik", PAIRS, epilogue=torch.relu), lambda it: it()),
    "grouped evenly": (lambda: weft.plan_grouped("ij,jk->ik", [(A, B)] * 2), lambda it: it([(A, B)] * 2)),
    "grouped to places": (
        lambda: weft.plan_grouped("ij,jk->ik", PAIRS, out=[torch.zeros(6, 4), torch.zeros(2, 4)]), lambda it: it()
    ),
    "operator_sum": (lambda: weft.OperatorSum([(torch.eye(6), None, torch.ones(5, 5))]), lambda it: it(A[:, None])),
    **{
        f"network {options}": (
            lambda options=options: weft.network("ij,jk,kl->il", A, B, C, **options), lambda it: it(A, B, C)
        )
        for options in ({}, {"reuse": True}, {"slices": "j"}, {"strip_exponent": True}, {"algebra": "max_plus"})
    },
    "network with a constant": (lambda: weft.network("ij,jk,kl->il", A, B, C, constants=[1]), lambda it: it(A, C)),
}


def results(found: Any) -> list[torch.Tensor]:
    return [found.clone()] if isinstance(found, torch.Tensor) else [one.clone() for one in found]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("called", [False, True], ids=["new", "called"])
@pytest.mark.parametrize("name", PLANNED)
def test_a_copy_computes_the_same(name: str, called: bool, how: str) -> None:
    make, call = PLANNED[name]
    planned = make()
    right = results(call(make()))
    if called:
        call(planned)
    copied = HOW[how](planned)
    for each in (copied, planned, copied):
        assert all(map(torch.equal, results(call(each)), right))
    assert str(copied) == str(planned)


def test_a_deep_copy_of_a_network_has_constants_of_its_own() -> None:
    net = weft.network("ij,jk->ik", A, B, constants=[1])
    copied = copy.deepcopy(net)
    for one in copied.fixed.operands:
        one.zero_()
    torch.testing.assert_close(net(A), A @ B)


def test_a_copy_of_a_group_is_told_apart_from_the_first() -> None:
    plan = weft.plan_grouped("ij,jk->ik", PAIRS)
    copied = copy.copy(plan)
    copied([(2 * A, B), (2 * A[:2], B)])
    torch.testing.assert_close(plan()[0], A @ B)
    torch.testing.assert_close(copied()[0], 2 * A @ B)
