"""Kernels that a call launches are noted with what they take of an SM; the driver is the tests' own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from bench.sides import CPU, Side
from gpu.fake_driver import FakeDriver, a_gpu, cubin
from weft.gpu.common.cubins import load
from weft.gpu.common.direct import DirectLaunch
from weft.planner.schedule import Target
from weft_bench import launched as module
from weft_bench import runner
from weft_bench.cases import from_letters
from weft_bench.entry import Entry
from weft_bench.launched import MOST, launched
from weft_bench.records import Run
from weft_bench.runner import Runner

H200 = Target("cuda", 0, "NVIDIA H200", 90, 132, 232448)
CUDA = torch.device("cuda", 0)


class Driver(FakeDriver):
    def cuFuncGetAttribute(self, value: Any, attribute: int, function: Any) -> int:
        if attribute == 9:  # the carveout that was asked for: none
            value._obj.value = -1
            return 0
        return super().cuFuncGetAttribute(value, attribute, function)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(module, "target_of", lambda backend, device: H200)
    with a_gpu(monkeypatch, Driver()) as found:
        yield found


def kernel(text: str, programs: int, shared: int = 65536) -> DirectLaunch:
    loaded = load(cubin(text, (8,), shared), 0)
    found = DirectLaunch.of(loaded.cubin, loaded.function, programs, 0)
    assert found is not None
    return found


def test_each_kernel_and_grid_is_there_once(gpu: FakeDriver) -> None:
    """64 KiB and 40 registers a thread of 128: three blocks an SM, 12 of its 64 warps; 400 fill 396 places and 4."""
    first, second = kernel("first", 400), kernel("second", 10, shared=0)

    def call(*tensors: torch.Tensor) -> None:
        for each in (first, second, first.at(6, ()), first):
            each((1,))

    one, two, three = launched(call, (), CUDA)
    assert [each["launches"] for each in (one, two, three)] == [2, 1, 1]
    assert one == {
        "name": "kernel", "programs": 400, "warps": 4, "registers": 40, "spills": 8, "shared": 65536,
        "blocks_per_sm": 3, "occupancy": 0.1875, "limited_by": ["shared memory"], "waves": pytest.approx(400 / 396),
        "tail": 4, "slots_used": pytest.approx(400 / 792), "launches": 2,
    }  # fmt: skip
    assert (two["programs"], two["shared"]) == (10, 0)
    assert (three["programs"], three["blocks_per_sm"]) == (6, 3)


def test_a_backward_pass_runs_in_the_thread_that_notes(gpu: FakeDriver) -> None:
    """On a GPU it has a thread of its own, whose launches would be missed."""
    backward = kernel("backward", 20)
    seen = []

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            seen.append(torch._C._is_multithreading_enabled())
            backward((1,))
            return 2 * g

    x = torch.ones(3, requires_grad=True)
    (found,) = launched(lambda x: torch.autograd.grad(Twice.apply(x).sum(), x), (x,), CUDA)
    assert found["programs"] == 20
    assert seen == [False]
    assert torch._C._is_multithreading_enabled()


def test_the_largest_are_kept_in_their_order(gpu: FakeDriver) -> None:
    some = kernel("some", 1)
    grids = [some.at(programs, ()) for programs in (5, *range(100, 100 + MOST), 200)]
    found = launched(lambda: [each((1,)) for each in grids], (), CUDA)
    assert [each["programs"] for each in found] == [*range(101, 100 + MOST), 200]


def test_nothing_is_told_where_nothing_is_known(gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    assert launched(lambda: None, (), CUDA) == []
    assert launched(lambda: pytest.fail("a CPU launches nothing"), (), CPU) == []
    monkeypatch.setattr(module, "target_of", lambda backend, device: replace(H200, capability=999))
    assert launched(lambda: kernel("alien", 3)((1,)), (), CUDA) == []


def test_a_run_records_them_where_a_plan_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the best way, on tensors of its timing; a contender that launches none of weft's kernels has no such word."""
    seen = []

    def noted(call: Any, tensors: Any, device: torch.device) -> list[dict[str, Any]]:
        seen.append((call, tensors))
        return [{"name": "noted"}] if call is plain else []

    def plain(a: torch.Tensor, b: torch.Tensor, c: Any, d: torch.Tensor) -> torch.Tensor:
        return torch.mm(a, b, out=d)

    def peer(a: torch.Tensor, b: torch.Tensor, c: Any, d: torch.Tensor) -> torch.Tensor:
        return torch.mm(a, b, out=d)

    monkeypatch.setattr(runner, "launched", noted)
    sides = Side("weft", plain), Side("torch", peer)
    run = Run("test", "a CPU", ["weft", "torch"], {})
    product = from_letters("product", "mk,kn->mn", m=8, k=4, n=6)
    Runner(run, sides, CPU).go([Entry(product, "group", "product")])
    about = {name: result.about for name, result in run.cases[0].results.items()}
    assert about["weft"]["kernels"] == [{"name": "noted"}]
    assert "kernels" not in about["torch"]
    assert [call for call, _ in seen] == [plain, peer]
    assert seen[0][1].a.shape == (8, 4)
