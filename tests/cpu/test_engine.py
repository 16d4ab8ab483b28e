"""The kernels that numba compiles: values, memory, threads, first use, and the way without numba."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

import weft
from commands import python
from support import slowness
from weft.cpu.gett import family
from weft.oracle.bounds import expectation
from weft.planner.schedule import Target
from weft.spec import Contraction
from weft.testing import assert_close, poisoned, random_operand

EXTENTS = {"a": 5, "b": 3, "c": 17, "d": 9, "e": 2, "k": 23, "l": 4, "m": 37, "n": 41}
EQUATIONS = [
    "mk,kn->mn", "mk,nk->nm", "km,kn->mn", "bmk,bkn->bmn", "bmk,bkn->mnb", "ackl,lkde->edca", "mk,k->m", "m,n->mn",
    "k,k->", "mk,mk->m", "abcd,be->adec", "acm,ma->c", "mlk,kn->nm", "ab,cd->acbd",
]  # fmt: skip
KINDS = [torch.float32, torch.float64, torch.complex64, torch.complex128, torch.int32, torch.int64]
FEW = "it has too few rows and columns for register blocks"  # which is about speed
STORED = [torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16]


def operands(equation: str, dtype: torch.dtype, layout: str = "contiguous", **extents: int) -> list[torch.Tensor]:
    sizes = EXTENTS | extents
    shapes = [tuple(sizes[label] for label in term) for term in equation.split("->")[0].split(",")]
    return [random_operand(shape, dtype, seed, layout=layout) for seed, shape in enumerate(shapes, 1)]


def launch(
    equation: str, a: torch.Tensor, b: torch.Tensor, threads: int = 2, **options: Any
) -> tuple[Any, Contraction]:
    """The engine's launch, whatever family would be chosen."""
    contraction = weft.plan(equation, a, b, backend="reference", **options).contraction
    target = Target("cpu", name="CPU", processors=threads)
    assert family.supports(contraction, target) in (None, FEW)
    (schedule,) = family.schedules(contraction, target).schedules
    return family.build(contraction, schedule, target), contraction


def check(
    equation: str, a: torch.Tensor, b: torch.Tensor, layout: str = "contiguous", threads: int = 2, **options: Any
) -> None:
    """D, over poison between guards, is within its bound of the oracle."""
    expected, bound = expectation(equation, a, b, **options)
    dtype = options.get("out_dtype") or torch.promote_types(a.dtype, b.dtype)
    c, alpha, beta = options.get("c"), options.pop("alpha", 1), options.pop("beta", 1)
    guarded = poisoned(tuple(expected.shape), dtype, layout=layout)
    run, contraction = launch(equation, a, b, threads, **options, out=guarded.tensor)
    tensors = options.get("operands", {})
    aux = tuple(None if each.kind == "index" else tensors[each.name][1] for each in contraction.aux)
    run(a, b, c, guarded.tensor, alpha, beta, aux)
    guarded.check_guards()
    assert_close(guarded.tensor, expected, bound)


@pytest.mark.parametrize("equation", EQUATIONS)
@pytest.mark.parametrize("dtype", KINDS)
def test_values(dtype: torch.dtype, equation: str) -> None:
    check(equation, *operands(equation, dtype))
    check(equation, *operands(equation, dtype, "strided"), layout="strided")


@pytest.mark.parametrize("extent", [1, 2, 7, 8, 9, 15, 16, 17, 65])
def test_runs_that_are_no_multiple_of_a_vector(extent: int) -> None:
    for equation in ("mk,kn->mn", "mk,kn->nm", "acm,mn->can"):
        check(equation, *operands(equation, torch.float32, m=extent, n=extent, k=extent))


@pytest.mark.parametrize("k", [1, 383, 385, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_sums_in_several_blocks(dtype: torch.dtype, k: int) -> None:
    check("mk,kn->nm", *operands("mk,kn->nm", dtype, k=k, n=1100))


@pytest.mark.parametrize("dtype", STORED)
def test_types_that_are_converted_in_panels(dtype: torch.dtype) -> None:
    out_dtype = torch.float32 if dtype.is_floating_point else torch.int32
    for equation in ("mk,kn->mn", "bmk,bkn->nbm"):
        check(equation, *operands(equation, dtype), out_dtype=out_dtype)
        if dtype is not torch.int8 and dtype is not torch.uint8:
            check(equation, *operands(equation, dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
@pytest.mark.parametrize("equation", ["mk,kn->mn", "mk,kn->nm", "bmk,bkn->mbn"])
def test_addend_alpha_and_beta(dtype: torch.dtype, equation: str) -> None:
    a, b = operands(equation, dtype)
    shape = tuple(EXTENTS[label] for label in equation.split("->")[1])
    c = random_operand(shape, dtype, 3)
    check(equation, a, b, c=c, alpha=0.5, beta=-2.0)
    check(equation, a, b, alpha=3.0)
    check(equation, a, b, c=torch.full(shape, torch.nan, dtype=dtype), beta=0)


@pytest.mark.parametrize("extent", [1, 7, 9, 37])
def test_addend_that_is_the_result(extent: int) -> None:
    """Lanes and rows that are computed twice are stored once."""
    a, b = operands("mk,kn->nm", torch.float32, m=extent, n=extent)
    c = random_operand((extent, extent), torch.float32, 3)
    expected, bound = expectation("mk,kn->nm", a, b, c=c, beta=0.5)
    run, _ = launch("mk,kn->nm", a, b, c=c, out=c)
    run(a, b, c, c, 1, 0.5)
    assert_close(c, expected, bound)


@pytest.mark.parametrize("conjugate", [(True, False), (False, True), (True, True)])
def test_conjugation(conjugate: tuple[bool, bool]) -> None:
    for k in (5, 500):
        a, b = operands("mk,kn->nm", torch.complex64, k=k)
        x, y = (each.conj() if flag else each for each, flag in zip((a, b), conjugate, strict=True))
        expected, bound = expectation("mk,kn->nm", x, y)
        run, _ = launch("mk,kn->nm", x, y)
        d = torch.full_like(expected, torch.nan, dtype=torch.complex64)
        run(a, b, None, d, 1, 1)
        assert_close(d, expected, bound)


def test_real_times_complex() -> None:
    a, b = operands("mk,kn->nm", torch.float32)[0], operands("mk,kn->nm", torch.complex64)[1]
    check("mk,kn->nm", a, b)
    check("kn,mk->mn", b, a)


@pytest.mark.parametrize("equation", ["mk,kn->mn", "bmk,bkn->nbm"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_functions(dtype: torch.dtype, equation: str) -> None:
    a, b = operands(equation, dtype, k=500)
    relu6, elu = torch.nn.functional.relu6, torch.nn.functional.elu
    check(equation, a, b, a_fn=elu, b_fn=relu6, epilogue=torch.relu)


def test_functions_with_operands_and_coordinates() -> None:
    a, b = operands("bmk,bkn->bmn", torch.float32)
    bias, scale = torch.randn(EXTENTS["b"], EXTENTS["n"]), torch.randn(EXTENTS["k"]).double()
    check(
        "bmk,bkn->bmn", a, b, a_fn=lambda x, scale: x * scale.float(),
        epilogue=lambda v, bias, m: torch.where(m > 5, torch.relu(v + bias), v),
        operands={"bias": ("bn", bias), "scale": ("k", scale)}, indices={"m": "m"},
    )  # fmt: skip


@pytest.mark.parametrize("algebra", ["max_plus", "min_plus", "max_times", "min_max", "max_min"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.int32])
def test_algebras(dtype: torch.dtype, algebra: str) -> None:
    """Exact, NaN and infinities among the values."""
    a, b = operands("mk,kn->nm", dtype, k=400)
    for special in (False, True):
        if special and dtype.is_floating_point:
            a[3, 5], b[7, 9], a[20, 7], b[300, 0] = torch.nan, torch.inf, -torch.inf, -torch.inf
        expected = weft.contract("mk,kn->nm", a, b, algebra=algebra, backend="reference")
        run, _ = launch("mk,kn->nm", a, b, algebra=algebra)
        d = torch.empty_like(expected)
        run(a, b, None, d, 1, 1)
        torch.testing.assert_close(d, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_same_bits_from_call_to_call(threads: int) -> None:
    a, b = operands("mk,kn->nm", torch.float32, m=300, n=300, k=300)
    run, _ = launch("mk,kn->nm", a, b, threads)
    first, second = (torch.empty(300, 300) for _ in range(2))
    run(a, b, None, first, 1, 1)
    run(a, b, None, second, 1, 1)
    assert torch.equal(first, second)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.int64])
def test_long_sums_are_cut_into_parts(dtype: torch.dtype) -> None:
    a, b = operands("mkl,kln->nm", dtype, m=3, n=2, k=4001, l=6)
    c = random_operand((2, 3), dtype, 3)
    contraction = launch("mkl,kln->nm", a, b, 3)[1]
    (schedule,) = family.schedules(contraction, Target("cpu", processors=3)).schedules
    assert "sums in 3 parts" in str(schedule)
    check("mkl,kln->nm", a, b, threads=3)
    check("mkl,kln->nm", a, b, threads=3, c=c, alpha=2, beta=-1)
    if dtype is torch.float32:
        options = {"a_fn": lambda x, l, s: x * s + l, "indices": {"l": "l", "m": "m"},
                   "epilogue": lambda x, m: x - m,
                   "operands": {"s": ("kl", torch.rand(4001, 6))}}  # fmt: skip
        check("mkl,kln->nm", a, b, threads=3, **options)


@pytest.mark.parametrize("algebra", ["max_plus", "log", "or_and"])
def test_long_reductions_are_cut_into_parts(algebra: str) -> None:
    a, b = operands("mk,kn->nm", torch.float64, m=3, n=2, k=9000)
    run, contraction = launch("mk,kn->nm", a, b, 2, algebra=algebra)
    assert "sums in 2 parts" in str(family.schedules(contraction, Target("cpu", processors=2)).schedules[0])
    d = torch.empty(2, 3, dtype=torch.float64)
    run(a, b, None, d, 1, 1)
    torch.testing.assert_close(d, weft.reference.contract("mk,kn->nm", a, b, algebra=algebra), rtol=1e-12, atol=0)


def test_plans_are_for_a_number_of_threads() -> None:
    """A call that was planned on one thread runs on two where it is made again on two."""
    a, b = operands("mk,kn->nm", torch.float32, m=300, n=300, k=300)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 1):
            torch.set_num_threads(threads)
            weft.contract("mk,kn->nm", a, b, algebra="max_plus")  # which torch has no product for on any processor
            assert weft.plan("mk,kn->nm", a, b, algebra="max_plus").schedule.threads == threads
    finally:
        torch.set_num_threads(before)


def test_several_callers_at_once() -> None:
    a, b = (torch.randint(-3, 4, (200, 200)).float() for _ in range(2))
    run, _ = launch("mk,kn->nm", a, b)
    expected, wrong = (a @ b).T, []

    def call() -> None:
        for _ in range(20):
            d = torch.full((200, 200), torch.nan)
            run(a, b, None, d, 1, 1)
            wrong.append(not torch.equal(d, expected))

    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(wrong) == 80
    assert not any(wrong)


@pytest.mark.slow
@pytest.mark.alone
def test_first_use_from_the_cache_is_quick() -> None:
    """Under half a second of one processor at full speed, numba's import among it, with kernels compiled before."""
    code = (
        "import time, torch, weft; a = torch.ones(8, 8); weft.contract('mk,kn->mn', a, a, backend='reference')\n"
        "start = time.process_time(); weft.contract('mk,kn->mn', a, a); print(time.process_time() - start)"
    )
    python(code)
    assert any(float(python(code)) < 0.5 * slowness() for _ in range(3))


def test_without_numba_torch_does_it() -> None:
    code = (
        "import sys, warnings; sys.modules['numba'] = None\n"
        "import torch, weft; a = torch.full((3, 3), -1.0); warnings.simplefilter('always')\n"
        "with warnings.catch_warnings(record=True) as said:\n"
        "    results = [weft.contract(e, a, a, epilogue=torch.relu).sum().item() for e in ('mk,kn->mn', 'mk,kn->nm')]\n"
        "print(results, [str(each.message) for each in said])"
    )
    assert python(code) == (
        "[27.0, 27.0] ['numba is not installed: contractions on the CPU run by torch\'s own operations, slower']"
    ).replace("['numba", '["numba').replace("slower']", 'slower"]').replace("\\'", "'")
    assert python(code, WEFT_NUMBA="0") == "[27.0, 27.0] []"
