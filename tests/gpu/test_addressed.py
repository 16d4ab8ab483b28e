"""Launches by a shorter way: several kernels whose addresses are noted once, and the plain call of one kernel on a new
D. They are the same kernels with the same parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from threading import Lock
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

import weft
from weft.gpu.common.direct import AddressedLaunch, DirectLaunch, addressed
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


def launch_of(schedule: str, equation: str, a: torch.Tensor, b: torch.Tensor, **options: Any) -> Any:
    """The first launch whose schedule begins or ends so, with kernels that stand for loaded ones."""
    precision = {"precision": "ieee_bound"} if "split" in schedule else {}
    found = weft.plan(equation, a, b, backend="reference", **precision, **options).contraction
    choice = choose(found, "triton", TARGET)
    named = [rank for rank in choice.ranked if schedule in (str(rank.schedule)[: len(schedule)], _end(rank, schedule))]
    rank = next(rank for rank in named if _is_split(rank, schedule))
    with collected() as made:
        launch = rank.build(found, TARGET)
    for number, kernel in enumerate(made):
        kernel._direct = Direct(number)
    return launch


def _end(rank: Any, schedule: str) -> str:
    return str(rank.schedule)[-len(schedule) :]


def _is_split(rank: Any, schedule: str) -> bool:
    return schedule not in ("gett", "ws.coop") or bool(rank.schedule.workspace_bytes)


def matrices(m: int, k: int, n: int, dtype: torch.dtype) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    return lambda: (torch.ones(m, k, dtype=dtype), torch.ones(k, n, dtype=dtype))


CASES: dict[str, Any] = {
    "gett": matrices(64, 8192, 64, DOUBLE),
    "ws.coop": matrices(256, 4096, 256, HALF),
    "D permuted": matrices(1001, 777, 1003, HALF),
    "complex.real_2x2": matrices(128, 64, 128, COMPLEX),
    "complex.planar A": matrices(2, 4096, 2, COMPLEX),
    "split: matrix": matrices(1024, 1024, 2048, torch.float32),
    "ttgt A as k·m; split: matrix": matrices(1024, 1024, 2048, torch.float32),
}


def launched(call: Callable[[], Any], tensors: tuple[torch.Tensor, ...]) -> list[tuple[int, list[int]]]:
    """The launches of a call, addresses within its tensors as a place and an offset, those elsewhere as 0."""
    Direct.launched.clear()
    call()
    named = []
    for number, words in Direct.launched:
        named.append((number, [_named(word, tensors) for word in words]))
    return named


def _named(word: int, tensors: tuple[torch.Tensor, ...]) -> Any:
    for at, tensor in enumerate(tensors):
        if 0 <= word - tensor.data_ptr() < tensor.untyped_storage().nbytes():
            return at, word - tensor.data_ptr()
    return 0 if 1 << 32 < word < 1 << 48 else word  # of a workspace


@pytest.mark.parametrize("schedule", CASES)
def test_it_launches_what_was_noted(schedule: str) -> None:
    make = CASES[schedule]
    a, b = make()
    plain = launch_of(schedule, "mk,kn->mn", a, b)
    noted = addressed(plain)
    assert isinstance(noted, AddressedLaunch)
    for _ in range(4):
        a, b = make()
        d = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype)
        arguments = (a, b, None, d, 1.0, 1.0)
        wanted, found = (launched(partial(call, *arguments), (a, b, d)) for call in (plain, noted))
        assert found == wanted
        assert len(found) > 1
    assert noted._sequence is not None
    scaled = launched(lambda: noted(a, b, None, d, 2.0, 1.0), (a, b, d))
    assert scaled == launched(lambda: plain(a, b, None, d, 2.0, 1.0), (a, b, d))


@pytest.mark.parametrize(
    ("schedule", "equation", "shapes", "dtype"),
    [
        ("ttgt B as k·n; blas", "mk,kn->mn", ((1001, 777), (777, 1003)), HALF),
        ("complex.real_2x2 B along qr·s; blas", "lps,sqr->lpqr", ((256, 2, 256), (256, 2, 256)), COMPLEX),
    ],
    ids=["packed", "complex"],
)
def test_products_of_the_library_are_steps(
    schedule: str, equation: str, shapes: Any, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They get the factors and the place that they got when they were noted."""
    multiplied: list[Any] = []

    def multiply(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> None:
        multiplied.append([(x.dtype, x.shape, x.stride()) for x in (left, right, out)])
        multiplied.append(out.data_ptr() - d.data_ptr())
        torch.mm(left, right, out=out)

    monkeypatch.setattr("weft.gpu.blas.family.guarded", lambda *given: multiply)
    a, b = (torch.ones(shape, dtype=dtype) for shape in shapes)
    noted = addressed(launch_of(schedule, equation, a, b))
    d = torch.empty(torch.einsum(equation, a.to("meta"), b.to("meta")).shape, dtype=dtype)
    found = []
    for _ in range(4):
        multiplied.clear()
        noted(a, b, None, d, 1.0, 1.0)
        found.append(list(multiplied))
    assert noted._sequence is not None
    assert len(found[0]) == 2
    assert all(each == found[0] for each in found)


def test_what_is_launched_past_torch_is_left_out_of_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product in TF32 is a call of the library that torch knows nothing of."""
    multiplied: list[Any] = []

    def multiply(*given: Any) -> int:
        multiplied.append(given)
        return 0

    monkeypatch.setattr("weft.gpu.blas.family.multiply", lambda: multiply)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_blas_handle", lambda: 0)
    a, b = torch.ones(1001, 777), torch.ones(777, 1003)
    noted = addressed(launch_of("ttgt B as n·k; blas", "mk,kn->mn", a, b, precision="tf32"))
    assert isinstance(noted, AddressedLaunch)
    for call in range(1, 5):
        noted(a, b, None, torch.empty(1001, 1003), 1.0, 1.0)
        assert len(multiplied) == call
    assert len(Direct.launched) == 4


def test_operands_of_functions_are_among_the_addresses() -> None:
    bias = torch.ones(256, dtype=HALF)
    options = {"epilogue": lambda s, x: torch.tanh(s + x), "operands": {"x": ("n", bias)}}
    a, b = CASES["ws.coop"]()
    plain = launch_of("ws.coop", "mk,kn->mn", a, b, **options)
    noted = addressed(plain)
    for _ in range(3):
        tensors = (*CASES["ws.coop"](), torch.empty(256, 256, dtype=HALF), torch.ones(256, dtype=HALF))
        x, y, d, beside = tensors
        wanted, found = (
            launched(partial(call, x, y, None, d, 1.0, 1.0, (beside,)), tensors) for call in (plain, noted)
        )
        assert found == wanted


def test_one_tensor_twice_is_not_noted() -> None:
    """Its address does not tell A from B."""
    a = torch.ones(1024, 1024, dtype=DOUBLE)
    plain = launch_of("gett", "mk,kn->mn", a, a)
    noted = addressed(plain)
    for _ in range(3):
        d = torch.empty(1024, 1024, dtype=DOUBLE)
        noted(a, a, None, d, 1.0, 1.0)
    assert noted._sequence is None


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
    """The first calls are noted, the others follow the notes; each writes over poison."""
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
        launch = addressed(launch) if hasattr(launch, "kernels") else launch
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
