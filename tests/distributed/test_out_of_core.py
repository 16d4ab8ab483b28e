"""Contractions in blocks that fit a memory limit: the same bits as at once, whatever is cut."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import weft
from rank_problems import biased, leaky, values
from weft.distributed.host_blocks import HostProblem, as_rows, estimated, grids
from weft.distributed.link import PCIE
from weft.distributed.prediction import KernelModel
from weft.planner.schedule import Target

GPU = pytest.param("cuda", marks=pytest.mark.gpu)
DEVICES = pytest.mark.parametrize("device", ["cpu", GPU])
M, N, K = 37, 41, 29


def operands(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return values((M, K), dtype, 1), values((K, N), dtype, 2), values((M, N), dtype, 3)


@DEVICES
@pytest.mark.parametrize("limit", [None, 20_000, 3_000, 1_500])
def test_blocks_with_functions_and_c_are_the_whole(device: str, limit: int | None) -> None:
    a, b, c = operands()
    bias = values((N,), torch.float64, 4)
    said: dict[str, Any] = {
        "a_fn": leaky, "c_fn": torch.neg, "epilogue": biased, "operands": {"bias": ("n", bias)},
        "indices": {"row": "m"},
    }  # fmt: skip
    right = weft.contract("mk,kn->mn", a, b, c=c, alpha=2, beta=3, **said)
    plan = weft.distributed.plan("mk,kn->mn", a, b, device=device, memory_limit=limit, c=c, **said)
    assert torch.equal(plan(a, b, c=c, alpha=2, beta=3), right)
    assert limit is None or plan.grid.memory() <= limit
    assert limit is None or plan.grid.steps > 1


@DEVICES
def test_sums_that_go_on_in_a_wider_type(device: str) -> None:
    a, b, _ = operands(torch.float16)
    plan = weft.distributed.plan("mk,kn->mn", a, b, device=device, memory_limit=400)
    assert plan.grid.cuts["k"] > 1
    assert torch.equal(plan(a, b), (a.double() @ b.double()).half())


@DEVICES
def test_batches_diagonals_and_further_modes(device: str) -> None:
    a, b = values((5, 6, 7, 4), torch.float64, 1), values((7, 5, 9, 4), torch.float64, 2)
    out = torch.empty(9, 6, 5, dtype=torch.float64)
    assert weft.distributed.contract("bmkl,kbnl->nmb", a, b, device=device, memory_limit="4 KiB", out=out) is out
    assert torch.equal(out, torch.einsum("bmkl,kbnl->nmb", a, b))
    x, y = values((8, 6, 6), torch.float64, 3), values((6, 7), torch.float64, 4)
    found = weft.distributed.contract("mkk,kn->mn", x, y, device=device, memory_limit="2 KiB")
    assert torch.equal(found, torch.einsum("mkk,kn->mn", x, y))


@DEVICES
def test_algebras_and_empty_extents(device: str) -> None:
    a, b, c = operands()
    plan = weft.distributed.plan("mk,kn->mn", a, b, device=device, memory_limit=2_000, algebra="max_plus", c=c)
    assert torch.equal(plan(a, b, c=c), torch.maximum((a[:, :, None] + b).amax(1), c))
    empty = weft.distributed.contract("mk,kn->mn", a[:, :0], b[:0], device=device, memory_limit=5_000)
    assert torch.equal(empty, torch.zeros(M, N, dtype=torch.float64))
    assert weft.distributed.contract("mk,kn->mn", a[:0], b, device=device).shape == (0, N)


def test_a_timeline_has_copies_beside_contractions() -> None:
    a, b, _ = operands()
    plan = weft.distributed.plan("mk,kn->mn", a, b, device="cpu", memory_limit=12_000)
    found = plan.timeline(a, b)
    assert set(found.transfers) == {"copy in", "copy out"}
    assert found.compute > 0
    assert "copy out |" in str(found)
    assert f"in {plan.grid.steps} steps on cpu" in plan.explain()
    assert "bounds it" in plan.explain()


@pytest.mark.parametrize("k", [1, 29])
def test_validated_blocks(monkeypatch: pytest.MonkeyPatch, k: int) -> None:
    from weft.distributed import out_of_core

    a, b, c = operands()
    bias = values((N,), torch.float64, 4)
    said: dict[str, Any] = {
        "epilogue": lambda total, bias: torch.tanh(total) + bias, "operands": {"bias": ("n", bias)}, "c": c,
    }  # fmt: skip
    plan = weft.distributed.plan("mk,kn->mn", a[:, :k], b[:k], device="cpu", memory_limit=9_000, **said)
    right = plan(a[:, :k], b[:k], c=c, beta=2, validate=True)
    assert torch.allclose(right, torch.tanh(a[:, :k] @ b[:k] + 2 * c) + bias)
    leave = out_of_core._Pass._leave

    def lost(self: Any, tile: Any, runs: Any) -> None:
        leave(self, [torch.zeros_like(memory) for memory in tile], runs)

    monkeypatch.setattr(out_of_core._Pass, "_leave", lost)
    with pytest.raises(weft.AccuracyError, match=r"D\[m=\d+, n=\d+\] is 0.0, expected"):
        plan(a[:, :k], b[:k], c=c, beta=2, validate=True)


@pytest.mark.parametrize("text", ["k,k->", "km,kn->mn"])
def test_validated_blocks_that_overwrite_c(text: str) -> None:
    shape, out = ((29,), ()) if text == "k,k->" else ((29, 3), (3, 3))
    a, b, c = values(shape, torch.float64, 1), values(shape, torch.float64, 2), values(out, torch.float64, 3)
    expected = torch.einsum(text, a, b) + c
    found = weft.distributed.contract(text, a, b, device="cpu", memory_limit=9_000, c=c, out=c, validate=True)
    assert found is c
    torch.testing.assert_close(c, expected)


def test_bad_input_is_named() -> None:
    a, b, c = operands()
    bad: dict[str, dict[str, Any]] = {
        "the least that would do is": {"device": "cpu", "memory_limit": 10},
        "memory_limit='much' is no size": {"device": "cpu", "memory_limit": "much"},
        "is no device": {"device": "toaster"},
        "device= is for tensors that one device does not hold, group=": {"device": "cpu", "group": object()},
        "validate= is not for several ranks": {"device": "cpu", "validate": True},
        "return_arg= is not for device=": {"device": "cpu", "algebra": "max_plus", "return_arg": True},
    }
    for words, said in bad.items():
        with pytest.raises(weft.WeftError) as caught:
            weft.distributed.plan("mk,kn->mn", a, b, **said)
        assert words in str(caught.value)
    plan = weft.distributed.plan("mk,kn->mn", a, b, device="cpu")
    with pytest.raises(weft.ArgumentError, match=r"a 'mk' has shape \(36, 29\) here, the plan was made for \(37, 29\)"):
        plan(a[1:], b)
    with pytest.raises(weft.ArgumentError, match="plan with c="):
        plan(a, b, c=c)
    with pytest.raises(weft.ShapeError, match="out has shape"):
        plan(a, b, out=torch.empty(3, 3))
    with pytest.raises(weft.ShapeError, match="out overlaps a in memory"):
        weft.distributed.contract("mk,kn->mn", a[:, :29], b[:, :29], device="cpu", out=a)


def test_the_least_that_would_do_is_the_least() -> None:
    """Two results of half types take as much as the sums that stay beside them until they are complete."""
    a, b, c = (tensor[:6, :6].half() for tensor in operands())  # the least is a step for each element or so

    def halves(total: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.relu(total), -total

    for added in (None, c):
        said: dict[str, Any] = {"device": "cpu", "epilogue": halves, "c": added}
        with pytest.raises(weft.WorkspaceError) as caught:
            weft.distributed.plan("mk,kn->mn", a, b, memory_limit=10, **said)
        least = int(re.search(r"\((\d+) bytes\)", str(caught.value))[1])  # type: ignore[index]
        plan = weft.distributed.plan("mk,kn->mn", a, b, memory_limit=least, **said)
        right = a.double() @ b.double() + (0 if added is None else added.double())
        found = plan(a, b, c=added)
        assert torch.equal(found[0], torch.relu(right).half())
        assert torch.equal(found[1], -right.half())
        with pytest.raises(weft.WorkspaceError):
            weft.distributed.plan("mk,kn->mn", a, b, memory_limit=least - 1, **said)


def test_memory_is_what_the_plan_says(monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.distributed import out_of_core

    a, b, _ = (tensor.half() for tensor in operands())
    plan = weft.distributed.plan("mk,kn->mn", a, b, device="cpu", memory_limit=400,
                                 epilogue=lambda total: (total, -total))  # fmt: skip
    taken = []
    memory = out_of_core._Pass._memory

    def counted(self: Any, elements: int, dtypes: Any) -> list[torch.Tensor]:
        found = memory(self, elements, dtypes)
        taken.extend(tensor.nbytes for tensor in found)
        return found

    monkeypatch.setattr(out_of_core._Pass, "_memory", counted)
    plan(a, b)
    assert plan.grid.cuts["k"] > 1
    assert sum(taken) == plan.grid.memory() <= 400


def test_a_conjugate_view_is_not_copied_as_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.distributed import host_blocks

    monkeypatch.setattr(host_blocks, "_copy_rows", lambda *_: pytest.fail("rows of a view that says it is conjugate"))
    source, to = values((5, 6), torch.complex128, 1), torch.empty(5, 3, dtype=torch.complex128)
    host_blocks._copied(to, source.conj()[:, :3])
    assert torch.equal(to, source[:, :3].conj().resolve_conj())


def test_two_hundred_gigabytes_are_bound_by_one_resource() -> None:
    """Operands of 100 GB each through 139 GB: square blocks of D, so that copying hides behind contracting."""
    side = 223_606
    whole = HostProblem({"a": ("m", "k"), "b": ("k", "n"), "d": ("m", "n")}, dict.fromkeys("mnk", side),
                  {"a": 2, "b": 2, "d": 4, "sum": 4})  # fmt: skip
    target = Target("cuda", name="NVIDIA H200", capability=90, processors=132, shared_memory=232448)
    kernel = KernelModel((("m", "k"), ("k", "n"), ("m", "n")), (torch.float16, torch.float16, torch.float32), target)
    fitting = [grid for grid in grids(whole) if grid.memory() <= 125e9]
    best = min((estimated(grid, kernel, PCIE) for grid in fitting), key=lambda one: one.seconds)
    assert max(best.lanes, key=best.busy) == "compute"
    assert best.seconds < 1.1 * max(map(best.busy, best.lanes))


def test_rows_of_blocks() -> None:
    whole = torch.empty(6, 8, 10)
    assert as_rows(whole) == (1, 480, 480)
    assert as_rows(whole[2:4]) == (1, 160, 160)
    assert as_rows(whole[:, 2:4]) == (6, 20, 80)
    assert as_rows(whole[:, :, 3:7]) == (48, 4, 10)
    assert as_rows(whole[1:3, 2:4, 3:7]) is None
    assert as_rows(whole.transpose(1, 2)) is None


@pytest.mark.gpu
def test_memory_that_is_not_pinned_and_blocks_by_rows() -> None:
    a, b = torch.randn(2048, 1536).half(), torch.randn(1536, 3072).half()
    right = a.double() @ b.double()
    for pin in (False, True):
        x, y = (a.pin_memory(), b.pin_memory()) if pin else (a, b)
        plan = weft.distributed.plan("mk,kn->mn", x, y, device="cuda", memory_limit="4 MiB", out_dtype=torch.float32)
        assert plan.grid.steps > 4
        assert torch.allclose(plan(x, y).double(), right, atol=1e-2, rtol=1e-3)
    found = plan.timeline(x, y)
    assert found.transfer > 0
