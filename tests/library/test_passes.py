"""One pass behind the sums, its kernel compiled for the CPU in the place of a GPU's: values, and when it serves."""

from __future__ import annotations

import ctypes
from concurrent.futures import Future
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fn.compiled_cuda import HOST, kernel
from library.calls import BRAIN, DOUBLE, HALF, SINGLE, SIZES, Call, case, check, check_permutation, run
from weft.gpu.common import direct
from weft.gpu.common.cubins import Cubin
from weft.gpu.pointwise import launch, nvrtc
from weft.gpu.pointwise import launch as kernels
from weft.gpu.pointwise.launch import PassKernel
from weft.gpu.pointwise.source import NAME, THREADS, KernelText, PassTensor
from weft.library import products, scheme
from weft.library.passes import moving_pass
from weft.planner.schedule import Target
from weft.testing import random_operand


class HostDriver:
    """A driver whose launches run on the CPU; it reads parameters as CUDA's does."""

    def __init__(self) -> None:
        self.launched = 0
        self._kernels: list[tuple[Any, list[int]]] = []

    def loaded(self, text: KernelText) -> Any:
        """A kernel as a loader returns it."""
        self._kernels.append((kernel(text.source, NAME, THREADS), [*text.sizes, 8, 8]))
        cubin = Cubin(b"", NAME, THREADS, 1, 0, 0, False, sizes=text.sizes, maps=(), triton="")
        return SimpleNamespace(cubin=cubin, function=len(self._kernels))

    def at_hand(self, text: KernelText, target: Any) -> Any:
        """A kernel that an earlier process has compiled."""
        loaded = self.loaded(text)
        return SimpleNamespace(settled=loaded, wait=lambda: loaded)

    def cuFuncGetParamInfo(self, function: Any, at: Any, offset: Any, size: Any) -> int:
        sizes = self._kernels[function.value - 1][1]
        if at.value >= len(sizes):
            return 1
        size._obj.value = sizes[at.value]
        return 0

    def cuLaunchKernelEx(self, config: Any, function: Any, params: Any, extra: Any) -> int:
        run, sizes = self._kernels[function.value - 1]
        kinds = {8: ctypes.c_int64, 4: ctypes.c_uint32}
        words = [kinds[size].from_address(at).value for size, at in zip(sizes, params, strict=True)]
        assert config._obj.block_x == THREADS
        run(config._obj.grid_x, tuple(words[:-2]))
        self.launched += 1
        return 0


DRIVER = HostDriver()


@pytest.fixture(autouse=True)
def on_the_host(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.get_closest_marker("gpu"):
        monkeypatch.setenv("WEFT_NVRTC", "1")
        return
    monkeypatch.setattr(scheme, "identity", lambda: "a compiler")
    monkeypatch.setattr(products, "_HALVES", ())  # torch has products of them that widen on a GPU alone
    monkeypatch.setattr(launch, "kernel_text", partial(launch.kernel_text, prelude=HOST))
    monkeypatch.setattr(launch, "kernel_of", DRIVER.at_hand)
    monkeypatch.setattr(direct, "loaded_driver", lambda: DRIVER)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 0, raising=False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    DRIVER.launched = 0


def fused(call: Call, launches: int = 1, limit: int | None = None) -> None:
    """The call, right within the oracle's bounds, with so many launches of a pass."""
    DRIVER.launched = 0
    check(call, "stand-in", limit)
    assert DRIVER.launched == launches


EVEN = {**SIZES, "m": 16, "n": 24, "b": 2}


@pytest.mark.parametrize("dtype", [SINGLE, HALF, BRAIN, DOUBLE], ids=str)
@pytest.mark.parametrize("sizes", [EVEN, SIZES], ids=["even", "odd"])
@pytest.mark.parametrize("equation", ["mk,kn->mn", "bmk,bkn->bmn"])
def test_linear_layers(equation: str, sizes: dict[str, int], dtype: torch.dtype) -> None:
    """A bias along n and an activation: vectors of elements where extents allow."""
    bias = torch.linspace(-1, 1, sizes["n"], dtype=dtype)
    options = {"epilogue": lambda x, s: torch.nn.functional.gelu(x + s), "operands": {"s": ("n", bias)}}
    fused(case(equation, sizes, dtype, **options))


@pytest.mark.parametrize("layout", ["contiguous", "padded", "offset", "strided"])
def test_layouts_of_results(layout: str) -> None:
    for sizes in (EVEN, SIZES):
        fused(case("mk,kn->mn", sizes, HALF, layout=layout, epilogue=torch.sigmoid))
        fused(case("mk,kn->mn", sizes, SINGLE, layout=layout, epilogue=torch.sigmoid))


def test_coordinates() -> None:
    mask = {"epilogue": lambda s, i, j: torch.where(i >= j, s, -torch.inf), "indices": {"i": "m", "j": "n"}}
    for sizes in (EVEN, SIZES):
        fused(case("bmk,bnk->bmn", sizes, SINGLE, alpha=0.5, **mask))
        fused(case("bmk,bnk->bmn", sizes, HALF, alpha=0.5, **mask))


def test_several_results_of_their_types() -> None:
    tall = torch.linspace(-1, 1, EVEN["m"])
    options = {
        "epilogue": lambda x, s: (x * s, (x - s).half(), x > 0), "operands": {"s": ("m", tall)},
        "out_dtype": SINGLE,
    }  # fmt: skip
    fused(case("mk,kn->mn", EVEN, SINGLE, **options))


@pytest.mark.parametrize("dtype", [SINGLE, HALF, DOUBLE, torch.int32, torch.int64], ids=str)
def test_what_is_added(dtype: torch.dtype) -> None:
    for options in ({}, {"epilogue": lambda x: x * 3 - 1}):
        fused(case("mk,kn->mn", EVEN, dtype, add=dtype, alpha=2, beta=-3, c_fn=lambda x: x * x, **options))
        fused(case("bmk,bkn->bmn", SIZES, dtype, add=dtype, beta=2, c_fn=lambda x: x + 1, **options))


@pytest.mark.parametrize("dtype", [SINGLE, HALF, torch.int32], ids=str)
def test_functions_of_operands(dtype: torch.dtype) -> None:
    """Each is written once as the product takes it, coordinates and operands of other modes beside it."""
    for sizes in (EVEN, SIZES):
        for equation in ("mk,kn->mn", "bmk,nbk->bmn", "kam,kcn->amcn"):
            tall = torch.linspace(-2, 2, sizes["n"]).to(dtype)
            options = {
                "a_fn": lambda x, k: x * k - 1, "indices": {"k": "k"}, "b_fn": lambda y, s: y * s,
                "operands": {"s": ("n", tall)},
            }  # fmt: skip
            fused(case(equation, sizes, dtype, **options), 2)
    fused(case("mk,kn->mn", EVEN, HALF, a_fn=torch.tanh, epilogue=torch.sigmoid), 2)
    fused(case("mik,kn->mn", EVEN, HALF, a_fn=torch.tanh), 0)


@pytest.mark.parametrize("dtype", [SINGLE, HALF, torch.int32], ids=str)
def test_products_of_elements(dtype: torch.dtype) -> None:
    """Functions of A and of B, the product, alpha, C and the epilogue at once."""
    for sizes in (EVEN, SIZES):
        for equation in ("mn,mn->mn", "m,n->mn", "mn,n->mn"):
            fused(case(equation, sizes, dtype, a_fn=lambda x, i: x * 2 - i, indices={"i": "m"}, alpha=3))
            fused(case(equation, sizes, dtype, add=dtype, beta=-2, b_fn=torch.neg, epilogue=lambda x: (x, x * 2)))
    fused(case("ab,ab->ab", SIZES, HALF, add=HALF, alpha=2, beta=3))
    fused(case("a,a->a", SIZES, HALF), 0)


def test_algebras() -> None:
    fused(case("mk,kn->mn", SIZES, SINGLE, algebra="max_plus", add=SINGLE, epilogue=torch.neg))
    fused(case("mk,kn->mn", SIZES, SINGLE, algebra="log", epilogue=torch.exp))


def test_parts_and_empty_sums() -> None:
    """Coordinates count on from part to part; sums of parts along k have one pass."""
    options = {"epilogue": lambda x, i, j: x + i - 2 * j, "indices": {"i": "m", "j": "n"}}
    fused(case("mk,kn->mn", {"m": 32, "n": 48, "k": 9}, HALF, **options), 4, 9000)
    fused(case("k,k->", {"k": 999}, HALF, epilogue=torch.sigmoid), 1, 3000)
    fused(case("mk,kn->mn", {**SIZES, "k": 0}, add=SINGLE, epilogue=lambda x: x + 1))


@pytest.mark.parametrize("dtype", [SINGLE, HALF, torch.int32], ids=str)
def test_permutations(dtype: torch.dtype) -> None:
    """Where X and D have one innermost mode; what is turned is left to torch."""
    x = random_operand((7, 5, 16), dtype, 1, integers=dtype is torch.int32)
    for options in ({"fn": lambda x: x * 2 - 1}, {"alpha": 3}, {"alpha": 2, "beta": -1, "fn": torch.neg}):
        for equation, launches in (("abc->abc", 1), ("abc->bac", 1), ("abc->cba", 0)):
            DRIVER.launched = 0
            check_permutation(x, equation, options, "stand-in", apart=equation == "abc->bac")
            assert DRIVER.launched == launches


@pytest.mark.parametrize("dtype", [SINGLE, HALF, torch.complex64, torch.int32, torch.complex128], ids=str)
def test_copies_along_many_modes(dtype: torch.dtype) -> None:
    """Operands whose modes of k stand between others, sums that are scattered over D, and permutations."""
    sizes = dict.fromkeys("abcdefghpqrs", 2) | {"a": 3, "c": 1, "e": 4, "f": 3, "h": 4, "q": 3, "s": 4}
    moved = 0 if dtype is torch.complex128 else 1
    fused(case("apbqcrdse,pfqgrhs->abcdefgh", sizes, dtype), 2 * moved)
    fused(case("apbqcrdse,pfqgrhs->hagbfced", sizes | {"d": 4}, dtype), 3 * moved)
    x = random_operand((4, 3, 2, 3, 2, 2, 4, 4), dtype, 1, integers=dtype is torch.int32)
    for equation in ("abcdefgh->hgfedcba", "abcdefgh->badcfehg", "abcdefgh->cabdefgh"):
        DRIVER.launched = 0
        check_permutation(x, equation, {}, "stand-in")
        assert DRIVER.launched == (moved and equation != "abcdefgh->cabdefgh")


@pytest.mark.parametrize("inner", [2, 3])
def test_copies_of_few_elements_a_thread_are_left_to_torch(inner: int) -> None:
    x = random_operand((2, 3, 2, 3, 2, 2, 2, 4), SINGLE, 1)
    check_permutation(x[:inner], "abcdefgh->hgfedcba", {}, "stand-in")
    assert not DRIVER.launched


def test_functions_along_many_modes() -> None:
    sizes = dict.fromkeys("abcdefghpqrs", 2) | {"d": 5, "h": 4, "s": 4}
    options = {"a_fn": torch.tanh, "epilogue": lambda x, i: x * i - 1, "indices": {"i": "f"}}
    fused(case("apbqcrdse,pfqgrhs->hagbfced", sizes, SINGLE, **options), 3)
    fused(case("abcdefgh,hgfedcba->hagbfced", sizes, SINGLE, alpha=2, epilogue=torch.relu))


def test_other_orders_are_left_to_torch() -> None:
    """A product that is transposed on its way to D, and complex functions."""
    for call in (
        case("m,n->nm", EVEN, HALF, epilogue=torch.relu),
        case("mk,kn->mn", EVEN, torch.complex64, epilogue=lambda x: x * 2),
    ):
        check(call, "stand-in")


class Slow:
    """A compiler that is there at the second call, or never."""

    def __init__(self, text: KernelText, found: Any) -> None:
        self.settled, self._found = None, found

    def wait(self) -> Any:
        self.settled = self._found
        return self._found


@pytest.mark.parametrize("late", [False, True])
def test_it_serves_from_the_second_call_on(late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether its compiler is quick or dead, a call's number says what serves it."""

    def on_its_way(text: KernelText, target: Any) -> Any:
        return Slow(text, "its compiler was late" if late else DRIVER.loaded(text))

    monkeypatch.setattr(launch, "kernel_of", on_its_way)
    call = case("mk,kn->mn", EVEN, HALF, epilogue=torch.sigmoid)
    one, three = (run(call, "stand-in", times=times) for times in (1, 3))
    assert DRIVER.launched == (0 if late else 2)
    assert torch.equal(one.results[0], three.results[0])


@pytest.mark.parametrize("modes", [24, 27])
def test_more_modes_than_torch_takes_are_waited_for(modes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "kernel_of", lambda text, target: Slow(text, DRIVER.loaded(text)))
    strides = [(1, *(4 * base**at for at in range(modes - 1))) for base in (3, 5)]
    tensors = [PassTensor(SINGLE, each) for each in strides]
    made = moving_pass((4,) + (2,) * (modes - 1), tensors, Target("cuda", 0, "", 90, 132, 0))
    assert not isinstance(made, str)
    assert made.serves is (modes > 25)


def test_a_kernel_that_does_not_come_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    class Never:
        def submit(self, *_: Any) -> Future[Any]:
            return Future()

    monkeypatch.setattr(kernels, "_compilers", lambda process: Never())
    monkeypatch.setattr(kernels.cubins, "loaded", lambda key, target, device: None)
    monkeypatch.setattr(kernels, "LEAST", 0.01)
    monkeypatch.setattr(kernels, "_EXPECTED", 0.0)
    waited = PassKernel(KernelText("", ()), "key", Target("cuda"))
    assert waited.settled is None
    assert waited.wait() == waited.settled == "its compiler was late"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("dtype", [SINGLE, HALF, BRAIN, DOUBLE], ids=str)
@pytest.mark.parametrize("sizes", [EVEN, SIZES], ids=["even", "odd"])
def test_on_a_gpu(sizes: dict[str, int], dtype: torch.dtype) -> None:
    """The first call by torch's operations, the third by the pass."""
    if nvrtc.identity() is None:
        pytest.skip("no NVRTC is installed here")
    bias = torch.linspace(-1, 1, sizes["n"], dtype=dtype)
    for options in (
        {"epilogue": lambda x, s: torch.nn.functional.gelu(x + s), "operands": {"s": ("n", bias)}},
        {"epilogue": lambda x, i, j: torch.where(i >= j, x, -torch.inf), "indices": {"i": "m", "j": "n"}},
        {"a_fn": torch.tanh, "b_fn": lambda y: y * 2, "epilogue": lambda x: (x, torch.sigmoid(x))},
        {"add": dtype, "alpha": 2, "beta": -3, "c_fn": lambda x: x * x},
    ):
        call = case("mk,kn->mn", sizes, dtype, **options)
        check(call, "cuda")
        found = check(call, "cuda", times=3)
        assert "one fused pass" in str(found.choice.build().state)
