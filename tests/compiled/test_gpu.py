"""The compiler that people use, on a GPU: Triton code around weft's kernels, and CUDA graphs of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import weft
from weft import nn
from weft.machine.timing import measure

pytestmark = pytest.mark.gpu

F16 = {"device": "cuda", "dtype": torch.float16}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def layer() -> torch.nn.Module:
    torch.manual_seed(0)
    first, second = nn.GatedLinear(256, 512, bias=True), nn.Linear(512, 128, activation="gelu")
    return torch.nn.Sequential(first, second).to(**F16)


def step(call: Callable[..., Any], module: torch.nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    module.zero_grad()
    x = x.clone().requires_grad_()
    y = call(x)
    y.float().square().mean().backward()
    found = [y.detach(), x.grad, *(parameter.grad for parameter in module.parameters())]
    return [each.clone() for each in found if each is not None]


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_training_step(mode: str, dynamic: bool) -> None:
    module = layer()
    compiled = torch.compile(module, fullgraph=True, mode=mode, dynamic=dynamic)
    for rows in (64, 64, 64, 96, 96):
        x = torch.randn(rows, 256, **F16)
        torch.compiler.cudagraph_mark_step_begin()
        found = step(compiled, module, x)
        for one, other in zip(found, step(module, module, x), strict=True):
            torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-3)


def test_graphs_are_replayed_on_new_values() -> None:
    """Kernels of weft are within the CUDA graph: its replay, which calls no Python of ours, has new results."""
    weight = torch.randn(256, 512, **F16)

    def call(x: torch.Tensor) -> Any:
        return weft.matmul(x, weight, epilogue=torch.relu) * 2

    compiled = torch.compile(call, fullgraph=True, mode="reduce-overhead")
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(64, 256, **F16)
            torch.compiler.cudagraph_mark_step_begin()
            torch.testing.assert_close(compiled(x).clone(), call(x), rtol=1e-2, atol=1e-2)
    counters = torch._dynamo.utils.counters["inductor"]
    assert not counters.get("cudagraph_skips"), dict(counters)


def test_einsum_permutation_and_algebra_under_inductor() -> None:
    a, b, c = (torch.randn(*shape, device="cuda") for shape in ((32, 48), (48, 64), (64, 16)))

    def call(a: torch.Tensor) -> Any:
        product = weft.einsum("ab,bc,cd->ad", a.sin(), b, c, epilogue=torch.tanh)
        best, where = weft.contract("ik,kj->ij", a, b, algebra="max_plus", return_arg=True)
        return weft.permute(product, "ad->da", fn=torch.exp) + 1, best, where

    found, expected = torch.compile(call, fullgraph=True)(a), call(a)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def nothing() -> Iterator[Callable[..., torch.Tensor]]:
    """An operation written in Python, registered as weft's are, that does next to nothing."""
    library = torch.library.Library("weft_tests", "DEF")
    library.define("nothing(Tensor a, Tensor b) -> Tensor")
    library.impl("nothing", plain, "CUDA")
    torch.library.register_fake("weft_tests::nothing", plain, lib=library)
    yield torch.ops.weft_tests.nothing
    library._destroy()


def plain(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.new_empty(a.shape[0], b.shape[1])


@pytest.mark.alone
def test_a_compiled_call_costs_the_host_an_eager_one_and_torchs_wrapper(nothing: Callable[..., torch.Tensor]) -> None:
    """The wrapper is what a compiled function costs that calls an operation which does next to nothing.

    What comes on top is torch's handing over of a text, a list of tensors and two numbers.
    """
    a, b = torch.randn(64, 32, **F16), torch.randn(32, 48, **F16)

    def call(a: torch.Tensor, b: torch.Tensor) -> Any:
        return weft.contract("mk,kn->mn", a, b)

    calls = {
        "weft": call,
        "compiled": torch.compile(call, fullgraph=True),
        "wrapped": torch.compile(lambda a, b: nothing(a, b), fullgraph=True),
        "plain": plain,
    }
    times = {}
    with torch.no_grad():
        for name, each in calls.items():
            taken = measure(each, [(a, b)], device="cuda", mode="hot", capture=False)
            times[name] = float(np.median(taken.samples))
    assert times["compiled"] <= times["weft"] + times["wrapped"] - times["plain"] + 60e-6, times
