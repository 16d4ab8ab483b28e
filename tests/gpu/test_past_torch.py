"""Products that cuBLAS launches past torch: values by a stand-in on the CPU, and when torch makes them after all."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
import torch

import weft
from weft.gpu.blas import cublas
from weft.gpu.blas import family as blas
from weft.library import direct
from weft.library import family as library
from weft.planner.planner import Choice
from weft.planner.schedule import NewTensor, Target
from weft.spec import Contraction

pytest.importorskip("triton")

H200 = Target("cuda", 0, "NVIDIA H200", 90, 132, 232448)
KINDS = {0: np.float32, 1: np.float64, 2: np.float16, 4: np.complex64, 5: np.complex128}
TYPES = [torch.float32, torch.float64, torch.complex64, torch.complex128]
EQUATIONS = [
    ("ik,kj->ij", (33, 40), (40, 29)),
    ("ki,jk->ij", (40, 33), (29, 40)),
    ("ik,kj->ji", (33, 40), (40, 29)),
    ("bik,bkj->bij", (3, 33, 40), (3, 40, 29)),
    ("bik,kj->bij", (3, 33, 40), (40, 29)),
    ("ik,k->i", (33, 40), (40,)),
    ("abk,kcd->abcd", (3, 4, 5), (5, 6, 7)),
]


class Library:
    """`cublasGemmStridedBatchedEx` by its documentation, in memory of the CPU."""

    def __init__(self, status: int = 0) -> None:
        self.calls, self.status = 0, status

    def __call__(self, handle: int, *given: Any) -> int:
        self.calls += 1
        op_a, op_b, m, n, k, alpha, a, type_a, lda, step_a, b, type_b, ldb, step_b, beta, *rest = given
        d, type_d, ldd, step_d, count, compute, algorithm = rest
        assert type_a == type_b
        assert algorithm == -1
        assert compute == (70 if type_d in (1, 5) else 68)
        number = ctypes.c_double if compute == 70 else ctypes.c_float
        parts = [ctypes.cast(each, ctypes.POINTER(number)) for each in (alpha, beta)]
        assert [each[0] for each in parts] == [1, 0]
        assert type_d < 4 or [each[1] for each in parts] == [0, 0]
        for at in range(count):
            x = self._matrix(a, type_a, at * step_a, *((k, m) if op_a else (m, k)), lda)
            y = self._matrix(b, type_b, at * step_b, *((n, k) if op_b else (k, n)), ldb)
            z = self._matrix(d, type_d, at * step_d, m, n, ldd)
            x, y = (each.astype(z.dtype) for each in (x.T if op_a else x, y.T if op_b else y))
            z[...] = x @ y
        return self.status

    @staticmethod
    def _matrix(address: int, kind: int, start: int, rows: int, columns: int, leading: int) -> Any:
        assert leading >= max(rows, 1)
        item = np.dtype(KINDS[kind]).itemsize
        memory = (ctypes.c_char * (((columns - 1) * leading + rows) * item)).from_address(address + start * item)
        whole = np.frombuffer(memory, KINDS[kind])
        return np.lib.stride_tricks.as_strided(whole, (rows, columns), (item, item * leading))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Library:
    found = Library()
    monkeypatch.setattr(cublas, "multiply", lambda: found)
    monkeypatch.setattr(cublas, "make_ready", lambda device: None)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentBlasHandle", lambda: 1, raising=False)
    for room in (direct, blas):
        monkeypatch.setattr(room, "shortened_on_a_gpu", lambda: False)
    return found


def whole_numbers(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    found = torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    return found * (1 + 2j) if dtype.is_complex else found


def described(equation: str, a: torch.Tensor, b: torch.Tensor, **options: Any) -> Contraction:
    return weft.plan(equation, a, b, backend="reference", **options).contraction


def built(contraction: Contraction) -> Any:
    choice = library.choice(contraction, "triton", H200)
    assert isinstance(choice, Choice)
    return choice.built()[1]


def made(launch: Any, like: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A new D by the plain call."""
    make = launch.maker(NewTensor(tuple(like.shape), like.stride(), like.dtype, like.device))
    found: torch.Tensor = make(a, b, ())
    return found


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(("equation", "a_shape", "b_shape"), EQUATIONS)
def test_values_of_the_library_tier_and_of_plans(
    equation: str, a_shape: tuple[int, ...], b_shape: tuple[int, ...], dtype: torch.dtype, asked: Library
) -> None:
    a, b = whole_numbers(a_shape, dtype, 0), whole_numbers(b_shape, dtype, 1)
    contraction, expected = described(equation, a, b), torch.einsum(equation, a, b).contiguous()
    launches = [built(contraction)]
    if blas.supports(contraction, H200) is None:
        launches.append(blas.build(contraction, blas.schedules(contraction, H200).schedules[0], H200))
    for calls, launch in enumerate(launches):
        d = torch.full_like(expected, float("nan"))
        launch(a, b, None, d, 1, 1)
        assert torch.equal(d, expected)
        assert torch.equal(made(launch, expected, a, b), expected)
        assert asked.calls == 2 * (calls + 1)
        launch(a, b, None, d, 2, 1)  # a factor is torch's
        assert torch.equal(d, 2 * expected)
        assert asked.calls == 2 * (calls + 1)


def test_half_products_are_summed_in_single_precision_before_a_function(asked: Library) -> None:
    a, b = whole_numbers((5, 3, 8), torch.float16, 0), whole_numbers((5, 8, 6), torch.float16, 1)
    contraction = described("bmk,bkn->bmn", a, b, epilogue=torch.abs)
    expected = torch.einsum("bmk,bkn->bmn", a.double(), b.double()).abs().half()
    d = torch.full_like(expected, float("nan"))
    built(contraction)(a, b, None, d, 1, 1)
    assert torch.equal(d, expected)
    assert asked.calls == 1


def test_where_torch_may_round_factors_it_is_asked_as_before(asked: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = (whole_numbers((9, 9), torch.float32, seed) for seed in (0, 1))
    launch, d = built(described("ik,kj->ij", a, b)), torch.empty(9, 9)
    monkeypatch.setattr(direct, "shortened_on_a_gpu", lambda: True)
    launch(a, b, None, d, 1, 1)
    assert torch.equal(d, a @ b)
    assert torch.equal(made(launch, d, a, b), d)
    assert not asked.calls


def test_another_current_device(asked: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = (whole_numbers((9, 9), torch.float64, seed) for seed in (0, 1))
    entered: list[Any] = []
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 1, raising=False)
    monkeypatch.setattr(torch.cuda, "device", lambda ordinal: entered.append(ordinal) or torch.device("cpu"))
    assert torch.equal(made(built(described("ik,kj->ij", a, b)), a, a, b), a @ b)
    assert entered == [0]


def test_an_error_of_the_library_names_the_product(asked: Library) -> None:
    asked.status = 13
    a = torch.ones(3, 4)
    launch = built(described("ik,jk->ij", a, a))
    with pytest.raises(RuntimeError, match="cuBLAS returned status 13 for a product of 3x4x3"):
        launch(a, a, None, torch.empty(3, 3), 1, 1)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(("equation", "a_shape", "b_shape"), EQUATIONS)
def test_on_a_device_values_streams_and_graphs(
    equation: str, a_shape: tuple[int, ...], b_shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    a, b = (whole_numbers(shape, dtype, at).cuda() for at, shape in enumerate((a_shape, b_shape)))
    plan, expected = weft.plan(equation, a, b, specialize="library"), torch.einsum(equation, a.cpu(), b.cpu())
    for _ in range(3):
        assert torch.equal(plan(a, b).cpu(), expected)
    with torch.cuda.stream(torch.cuda.Stream()):
        found = plan(a, b)
    torch.cuda.synchronize()
    assert torch.equal(found.cpu(), expected)
    out, graph = torch.empty_like(found), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan(a, b, out=out)
    graph.replay()
    assert torch.equal(out.cpu(), expected)
