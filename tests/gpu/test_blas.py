"""What the vendor's library is and is not asked for; its calls themselves run through torch on any device."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import weft
from weft.gpu.blas import family as blas
from weft.planner.planner import choose
from weft.planner.schedule import ResourceError, Target
from weft.spec import Contraction, Strides

H200 = Target("cuda", 0, "NVIDIA H200", 90, 132, 232448)


def described(equation: str, a: torch.Tensor, b: torch.Tensor, **options: Any) -> Contraction:
    return weft.plan(equation, a, b, backend="reference", **options).contraction


@pytest.mark.parametrize(
    ("equation", "a_shape", "b_shape"),
    [
        ("ik,kj->ij", (33, 40), (40, 29)),
        ("ki,jk->ji", (40, 33), (29, 40)),
        ("bik,bkj->bij", (3, 33, 40), (3, 40, 29)),
        ("bik,bjk->ibj", (3, 33, 40), (3, 29, 40)),
        ("ik,k->i", (33, 40), (40,)),
        ("abk,kc->abc", (3, 4, 5), (5, 6)),
        ("kcm,nk->cnm", (6, 3, 8), (5, 6)),  # a mode of m as the batch
        ("km,ckn->cnm", (6, 8), (3, 6, 5)),  # and one of n
    ],
)
def test_products_as_they_lie_are_one_call(equation: str, a_shape: tuple[int, ...], b_shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randint(-4, 5, shape, generator=generator).double() for shape in (a_shape, b_shape))
    contraction = described(equation, a, b)
    assert blas.supports(contraction, H200) is None
    (schedule,) = blas.schedules(contraction, H200).schedules
    d = torch.full_like(torch.einsum(equation, a, b), float("nan")).contiguous()
    blas.build(contraction, schedule, H200)(a, b, None, d, 2.0, 0.0)  # type: ignore[arg-type]
    assert torch.equal(d, 2 * torch.einsum(equation, a, b))


@pytest.mark.parametrize(
    ("equation", "a_shape", "b_shape", "options", "reason"),
    [
        ("ik,kj->ij", (4, 5), (5, 6), {"epilogue": torch.relu}, "a function is fused"),
        ("ik,kj->ij", (4, 5), (5, 6), {"precision": "tf32x3"}, "makes no tf32x3 products"),
        ("ik,kj->ij", (4, 5), (5, 6), {"precision": torch.float16}, "storage type only"),
        ("ik,kj->ij", (4, 5), (5, 6), {"out_dtype": torch.float64}, "not asked for float64 of float32"),
        ("aik,kbj->abij", (2, 4, 5), (5, 3, 6), {}, "the modes of some role do not lie together"),
        ("ik,kj->ij", (4, 0), (0, 6), {}, "a mode is empty"),
    ],
)
def test_what_the_library_is_not_asked_for(
    equation: str, a_shape: tuple[int, ...], b_shape: tuple[int, ...], options: dict[str, Any], reason: str
) -> None:
    contraction = described(equation, torch.ones(a_shape), torch.ones(b_shape), **options)
    assert reason in str(blas.supports(contraction, H200))


def test_strides_past_32_bits_are_kept_from_the_library() -> None:
    """FIELD-BUGS 1: 32-bit offsets; BLAS takes leading dimensions as 32-bit integers."""
    contraction = described("ik,kj->ij", torch.ones(2, 4), torch.ones(4, 3))
    far = [mode._replace(strides=Strides(2**31 * mode.strides.a, *mode.strides[1:])) for mode in contraction.modes]
    assert "32-bit" in str(blas.supports(replace(contraction, modes=tuple(far)), H200))


def test_halves_are_not_added_to_rounded_sums() -> None:
    """C of halves is not for the library, which rounds twice; C of a result in single precision is."""
    a, b = torch.empty(16, 24, dtype=torch.float16), torch.empty(24, 32, dtype=torch.float16)
    for dtype, refused in ((torch.float16, True), (torch.float32, False)):
        found = described("ik,kj->ij", a, b, c=torch.empty(16, 32, dtype=dtype), out_dtype=dtype)
        assert found.c is not None
        assert (blas.supports(found, H200) is not None) is refused


@pytest.mark.parametrize("tensor", ["a", "b", "d"])
def test_half_products_are_slow_where_a_tensor_lies_between_words(tensor: str) -> None:
    a, b = (torch.empty(4096, 4096, dtype=torch.float16, device="meta") for _ in range(2))
    contraction = described("ik,kj->ij", a, b)
    (schedule,) = blas.schedules(contraction, H200).schedules
    moved = replace(contraction, **{tensor: getattr(contraction, tensor)._replace(alignment=2)})
    aligned, between = (blas.predict(each, schedule, H200) for each in (contraction, moved))
    assert between > 3 * aligned
    rows = described("ik,kj->ij", *(torch.empty(4095, 4095, dtype=torch.float16, device="meta") for _ in range(2)))
    assert blas.predict(rows, blas.schedules(rows, H200).schedules[0], H200) > 3 * aligned  # type: ignore[arg-type]
    single = described("ik,kj->ij", a.float(), b.float())
    offset = replace(single, a=single.a._replace(alignment=4))
    assert blas.predict(single, schedule, H200) == blas.predict(offset, schedule, H200)


def test_half_products_with_single_results_are_as_slow_between_words() -> None:
    a, b = (torch.empty(4098, 4098, dtype=torch.float16, device="meta") for _ in range(2))
    half, single = (described("ik,kj->ij", a, b, out_dtype=dtype) for dtype in (torch.float16, torch.float32))
    times = [blas.predict(each, blas.schedules(each, H200).schedules[0], H200) for each in (half, single)]
    assert times[1] == pytest.approx(times[0], rel=0.1)


def stand_in(*arguments: Any) -> int:
    """`cublasGemmStridedBatchedEx` by its documentation, for float32 in memory of the CPU."""
    _, op_a, op_b, m, n, k, alpha, *rest = arguments
    (a, type_a, lda, step_a), (b, type_b, ldb, step_b), (beta,) = rest[:4], rest[4:8], rest[8:9]
    d, type_d, ldd, step_d, count, compute, algorithm = rest[9:]
    assert (type_a, type_b, type_d, compute, algorithm) == (0, 0, 0, 77, -1)
    factor, kept = (ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float))[0] for pointer in (alpha, beta))

    def matrix(address: int, rows: int, columns: int, leading: int) -> Any:
        assert leading >= max(rows, 1)
        memory = (ctypes.c_float * ((columns - 1) * leading + rows)).from_address(address)
        whole = np.frombuffer(memory, np.float32)
        return np.lib.stride_tricks.as_strided(whole, (rows, columns), (4, 4 * leading))

    for at in range(count):
        x = matrix(a + 4 * at * step_a, *((k, m) if op_a else (m, k)), lda)
        y = matrix(b + 4 * at * step_b, *((n, k) if op_b else (k, n)), ldb)
        z = matrix(d + 4 * at * step_d, m, n, ldd)
        product = factor * (x.T if op_a else x) @ (y.T if op_b else y)
        z[...] = product if kept == 0 else product + kept * z
    return 0


@pytest.mark.parametrize(
    ("equation", "a_shape", "b_shape"),
    [
        ("ik,kj->ij", (33, 40), (40, 29)),
        ("ki,jk->ji", (40, 33), (29, 40)),
        ("bik,bjk->ibj", (3, 33, 40), (3, 29, 40)),
        ("ik,k->i", (33, 40), (40,)),
        ("i,j->ij", (33,), (40,)),
        ("kcm,nk->cnm", (6, 3, 8), (5, 6)),
    ],
)
def test_tf32_is_asked_for_call_by_call(
    equation: str, a_shape: tuple[int, ...], b_shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blas, "multiply", lambda: stand_in)
    monkeypatch.setattr(torch.cuda, "current_blas_handle", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", lambda _: torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randint(-4, 5, shape, generator=generator).float() for shape in (a_shape, b_shape))
    contraction = described(equation, a, b, precision="tf32")
    (schedule,) = blas.schedules(contraction, H200).schedules
    expected = torch.einsum(equation, a, b)
    d = torch.full_like(expected, float("nan")).contiguous()
    launch = blas.build(contraction, schedule, H200)
    launch(a, b, None, d, 2.0, 0.0)
    assert torch.equal(d, 2 * expected)
    launch(a, b, d, d, 1.0, -1.0)
    assert torch.equal(d, -expected)


def test_without_a_library_another_schedule_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "multiply", lambda: None)
    contraction = described("ik,kj->ij", torch.ones(4, 5), torch.ones(5, 6), precision="tf32")
    (schedule,) = blas.schedules(contraction, H200).schedules
    with pytest.raises(ResourceError, match="cuBLAS"):
        blas.build(contraction, schedule, H200)


@pytest.mark.gpu
@pytest.mark.parametrize("equation", ["mk,kn->mn", "km,nk->nm", "bmk,bnk->mbn"])
def test_tf32_on_a_device(equation: str) -> None:
    extents = {"b": 3, "m": 72, "n": 40, "k": 96}
    terms = equation.split("->")[0].split(",")
    generator = torch.Generator("cuda").manual_seed(0)
    a, b = (torch.randint(-4, 5, [extents[i] for i in t], generator=generator, device="cuda").float() for t in terms)
    assert blas.multiply() is not None
    plan = weft.plan(equation, a, b, precision="tf32", backend="triton")
    (schedule,) = blas.schedules(plan.contraction, plan._request.target).schedules
    expected = torch.einsum(equation, a.double(), b.double()).float()
    d = torch.full_like(expected, float("nan")).contiguous()
    launch = blas.build(plan.contraction, schedule, plan._request.target)
    launch(a, b, None, d, 1.0, 0.0)
    assert torch.equal(d, expected)  # whole numbers up to 4 are the same in TF32
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch(a, b, d, d, 1.0, 1.0)
    graph.replay()
    assert torch.equal(d, 2 * expected)
    fine = torch.full((72, 96), 1 + 2**-20, device="cuda")  # what TF32 has no digits for
    same = torch.empty(72, 72, device="cuda")
    plain = weft.plan("mk,nk->mn", fine, fine, precision="tf32", backend="triton")
    (schedule,) = blas.schedules(plain.contraction, plain._request.target).schedules
    blas.build(plain.contraction, schedule, plain._request.target)(fine, fine, None, same, 1.0, 0.0)
    assert bool((same == 96).all())


@pytest.mark.parametrize(
    ("m", "n", "k", "microseconds"),
    [
        (1024, 1024, 8192, 26.7),
        (1280, 1280, 5120, 28.9),
        (1536, 1536, 4096, 28.4),
        (768, 3072, 4096, 29.6),
        (2304, 2304, 2304, 35.8),
        (2560, 2560, 4096, 77.3),
    ],
)
def test_the_library_chooses_tiles_that_fill_the_device(m: int, n: int, k: int, microseconds: float) -> None:
    """Timed on an H200. With square tiles alone the third, the fourth and the fifth would take two or three rounds."""
    contraction = described("mk,kn->mn", torch.empty(m, k, dtype=torch.half), torch.empty(k, n, dtype=torch.half))
    (schedule,) = blas.schedules(contraction, H200).schedules
    assert blas.predict(contraction, schedule, H200) == pytest.approx(microseconds * 1e-6, rel=0.15)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
def test_no_call_is_as_quick_as_a_few_elements_are(dtype: torch.dtype) -> None:
    """cuBLAS takes 2 to 4 us for one element of 100 products and 6 for a short side and a long sum; kernels of weft's
    own take 1.2 and 3 to 5."""
    for m, k in ((1, 100), (12, 1200)):
        contraction = described("mk,kn->mn", torch.empty(m, k, dtype=dtype), torch.empty(k, m, dtype=dtype))
        assert choose(contraction, "triton", H200).best.schedule.family != "blas"


def test_sums_of_double_precision_are_not_split_where_rows_start_within_words() -> None:
    """25 x 2500 x 25 took cuBLAS 33 us, 36 x 3600 x 36 took it 8."""
    seconds = []
    for tiled_dim in (25, 24):
        a, b = torch.empty(tiled_dim, 2500, dtype=torch.float64), torch.empty(2500, tiled_dim, dtype=torch.float64)
        (schedule,) = blas.schedules(described("mk,kn->mn", a, b), H200).schedules
        seconds.append(blas.predict(described("mk,kn->mn", a, b), schedule, H200))
    assert seconds[0] > 1.5 * seconds[1]
