"""Launches in their later calls, and the plain call of one kernel on a new D: the same kernel with the same
parameters."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Lock
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

import weft
from weft.gpu.common.driver import DirectLaunch
from weft.gpu.common.launch import collected
from weft.planner.planner import choose
from weft.planner.schedule import Target
from weft.planner.target import target_of
from weft.testing import assert_close, expectation, poisoned, random_operand

pytest.importorskip("triton")

TARGET = Target("cuda", name="NVIDIA H100 80GB HBM3", capability=90, processors=132, shared_memory=232448)
HALF, DOUBLE, COMPLEX = torch.float16, torch.float64, torch.complex64


class Direct(DirectLaunch):
    """A launch whose driver does nothing: the parameters of its launches are written down."""

    launched: ClassVar[list[tuple[int, list[int]]]] = []

    def __init__(self, number: int) -> None:
        self.device, self._lock, self._maps = 0, Lock(), []
        self._driver, self._config = SimpleNamespace(cuLaunchKernelEx=lambda *given: 0), SimpleNamespace(stream=0)
        self._words = self._by_reference = self._function = self._params = None
        self._pack = lambda buffer, at, *words: self.launched.append((number, list(words)))


@pytest.fixture(autouse=True)
def one_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 0, raising=False)
    yield
    Direct.launched.clear()


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("text", ["gett", "simt"])
def test_a_plain_call_is_the_launch_on_a_new_d(text: str, swapped: bool) -> None:
    equation, shapes = ("bvls,wpsv->bpwl", ((16, 5, 31, 2), (5, 2, 2, 5)))
    a, b = (torch.ones(shape, dtype=DOUBLE) for shape in shapes[::-1 if swapped else 1])
    equation = "wpsv,bvls->bpwl" if swapped else equation
    found = weft.plan(equation, a, b, backend="reference").contraction
    tried = 0
    for rank in [each for each in choose(found, "triton", TARGET).ranked if str(each.schedule).startswith(text)][:8]:
        with collected():
            launch = rank.build(found, TARGET)
        if len(launch.kernels) > 1:
            continue
        launch.kernels[0]._direct = Direct(0)
        make = launch.maker(((16, 2, 5, 31), (310, 155, 31, 1), DOUBLE, a.device))
        Direct.launched.clear()
        d = make(a, b, ())
        launch(a, b, None, d, 1.0, 1.0)
        plain, usual = Direct.launched
        assert plain == usual
        tried += 1
    assert tried


EVERY: dict[str, Any] = {
    "half": ("acd,dbc->abc", (72, 24, 64), (64, 80, 24), HALF, None),
    "half, long sums": ("mk,kn->mn", (64, 8192), (8192, 72), HALF, None),
    "single": ("mk,kn->mn", (1001, 777), (777, 1003), torch.float32, None),
    "single, batch": ("acd,dbc->abc", (312, 24, 312), (312, 312, 24), torch.float32, None),
    "tf32": ("mk,kn->mn", (1001, 777), (777, 1003), torch.float32, "tf32"),
    "tf32, batch": ("acd,dbc->abc", (312, 24, 312), (312, 312, 24), torch.float32, "tf32"),
    "tf32, both packed": ("dbea,ecfd->abcf", (16, 32, 16, 32), (16, 32, 32, 16), torch.float32, "tf32"),
    "bound": ("mk,kn->mn", (1024, 2048), (2048, 1024), torch.float32, "ieee_bound"),
    "double": ("mk,kn->mn", (1001, 777), (777, 1003), DOUBLE, None),
    "double, narrow": ("bvls,wpsv->bpwl", (16, 5, 31, 2), (5, 2, 2, 5), DOUBLE, None),
    "double, odd": ("mk,kn->mn", (7, 9), (9, 5), DOUBLE, None),
    "double, small": ("awl,lstr->awstr", (32, 5, 32), (32, 2, 2, 32), DOUBLE, None),
    "complex": ("lps,sqr->lpqr", (256, 2, 256), (256, 2, 256), COMPLEX, None),
    "complex128": ("mk,kn->mn", (501, 300), (300, 203), torch.complex128, None),
}


@pytest.mark.gpu
@pytest.mark.parametrize("case", EVERY)
def test_every_call_of_every_family_is_right(case: str) -> None:
    """In the first calls and in later ones; each writes over poison."""
    equation, left, right, dtype, precision = EVERY[case]
    device = torch.device("cuda")
    a, b = (random_operand(shape, dtype, seed, device=device) for seed, shape in enumerate((left, right)))
    found = weft.plan(equation, a, b, backend="triton", precision=precision).contraction
    target = target_of("triton", device)
    expected = expectation(equation, a, b, precision=precision)
    families: dict[str, int] = {}
    for rank in choose(found, "triton", target).ranked:
        text = str(rank.schedule)
        kind = f"{rank.schedule.family} {text.partition(';')[2][:6]}"
        families[kind] = families.get(kind, 0) + 1
        if families[kind] > 2:
            continue
        launch = rank.build(found, target)
        shape = tuple(expected[0].shape)
        new = (shape, torch.empty(shape, device="meta").stride(), dtype, device)
        make = launch.maker(new) if hasattr(launch, "maker") else None
        if make is not None:
            assert_close(make(a, b, ()), *expected)
        for call in range(1, 5):
            place = poisoned(shape, dtype, device=device)
            launch(a, b, None, place.tensor, 1.0, 1.0)
            place.check_guards()
            try:
                assert_close(place.tensor, *expected)
            except AssertionError as error:
                raise AssertionError(f"{text}, call {call}: {error}") from error
