"""Flops and compulsory bytes of contractions and permutations, and the floors they give."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import weft
from weft.fn import trace
from weft.machine.ceilings import Ceilings, from_datasheet
from weft.machine.counts import Work, contraction_work, permutation_work
from weft.machine.roofline import contraction_floor, work_floor
from weft.spec import Contraction, Layout, canonical
from weft.spec.contraction import class_modes, mode_extents, output_shape
from weft.spec.dtypes import resolve
from weft.spec.notation import expand, parse
from weft_bench import cases
from weft_bench.cases.suite import tccg


def describe(
    equation: str,
    a: Layout | tuple[int, ...],
    b: Layout | tuple[int, ...],
    *,
    c: Layout | None = None,
    dtype: torch.dtype = torch.float32,
    out_dtype: torch.dtype | None = None,
    **options: object,
) -> Contraction:
    """A contraction of contiguous tensors of the given shapes, or of the given layouts."""
    a = a if isinstance(a, Layout) else Layout.contiguous(a, dtype)
    b = b if isinstance(b, Layout) else Layout.contiguous(b, dtype)
    notation = expand(parse(equation), (len(a.shape), len(b.shape)))
    extents = mode_extents(notation, (a.shape, b.shape))
    d = Layout.contiguous(output_shape(notation, extents), out_dtype or dtype)
    modes = class_modes(notation, a, b, c, d, extents)
    return Contraction(modes, a, b, c, d, resolve(a.dtype, b.dtype), **options)


def test_a_matrix_product_by_hand() -> None:
    work = contraction_work(describe("mk,kn->mn", (3, 5), (5, 7)))
    assert work == Work(flops=2 * 3 * 5 * 7, function_flops=0, read_a=4 * 15, read_b=4 * 35, read_c=0, write_d=4 * 21)
    assert work.reads == 200
    assert work.traffic == 284
    assert work.intensity == 210 / 284


def test_storage_types_count_by_their_size() -> None:
    work = contraction_work(describe("mk,kn->mn", (3, 5), (5, 7), dtype=torch.float16, out_dtype=torch.float32))
    assert (work.read_a, work.read_b, work.write_d) == (2 * 15, 2 * 35, 4 * 21)


@pytest.mark.parametrize(
    ("equation", "a", "b", "flops"),
    [
        ("bmk,bkn->bmn", (2, 3, 5), (2, 5, 7), 2 * 2 * 3 * 5 * 7),
        ("m,n->mn", (3,), (7,), 2 * 3 * 7),
        ("k,k->", (5,), (5,), 2 * 5),
        ("abk,kcd->dbca", (2, 3, 5), (5, 7, 4), 2 * 2 * 3 * 5 * 7 * 4),
        ("mkr,kn->mn", (3, 5, 4), (5, 7), 3 * 5 * 4 + 2 * 3 * 5 * 7),  # r is summed in A first
        ("mk,knr->mn", (3, 5), (5, 7, 4), 5 * 7 * 4 + 2 * 3 * 5 * 7),
        ("mr,ns->mn", (3, 4), (7, 2), 12 + 14 + 2 * 21),
    ],
)
def test_flops_of_every_class_of_mode(equation: str, a: tuple, b: tuple, flops: int) -> None:
    assert contraction_work(describe(equation, a, b)).flops == flops


@pytest.mark.parametrize(
    ("dtypes", "flops"),
    [
        ((torch.complex64, torch.complex64), 8),
        ((torch.complex64, torch.float32), 4),
        ((torch.float64, torch.complex128), 4),
        ((torch.float64, torch.float64), 2),
    ],
)
def test_a_complex_multiply_add_is_four_real_ones(dtypes: tuple, flops: int) -> None:
    a, b = (Layout.contiguous(shape, dtype) for shape, dtype in zip(((3, 5), (5, 7)), dtypes, strict=True))
    assert contraction_work(describe("mk,kn->mn", a, b, dtype=torch.complex128)).flops == flops * 3 * 5 * 7


def test_c_is_read_only_where_beta_is_not_zero() -> None:
    c = Layout.contiguous((3, 7), torch.float32)
    contraction = describe("mk,kn->mn", (3, 5), (5, 7), c=c)
    assert contraction_work(contraction).read_c == 4 * 21
    assert contraction_work(contraction, beta=0.0).read_c == 0
    assert contraction_work(contraction, beta=2.0) == contraction_work(contraction)
    row = Layout((1, 7), (7, 1), torch.float32)
    assert contraction_work(describe("mk,kn->mn", (3, 5), (5, 7), c=row)).read_c == 4 * 7


def test_elements_that_repeat_are_read_once() -> None:
    expanded = Layout((3, 5), (0, 1), torch.float32)
    assert contraction_work(describe("mk,kn->mn", expanded, (5, 7))).read_a == 4 * 5
    windows = Layout((8, 3), (1, 1), torch.float32)
    assert contraction_work(describe("mk,kn->mn", windows, (3, 7))).read_a == 4 * 10
    diagonal = contraction_work(describe("kk,kn->n", (5, 5), (5, 7)))
    assert (diagonal.read_a, diagonal.flops) == (4 * 5, 2 * 5 * 7)
    broadcast = contraction_work(describe("mk,kn->mn", (3, 5), (1, 7)))
    assert (broadcast.read_b, broadcast.flops) == (4 * 7, 15 + 2 * 21)


@pytest.mark.parametrize(
    ("a", "b", "work"),
    [
        ((0, 5), (5, 7), Work(0, 0, 0, 0, 0, 0)),  # no output: nothing is needed
        ((3, 5), (5, 0), Work(0, 0, 0, 0, 0, 0)),
        ((3, 0), (0, 7), Work(0, 0, 0, 0, 0, 4 * 21)),  # an empty sum is written, nothing is read
    ],
)
def test_extents_of_zero(a: tuple, b: tuple, work: Work) -> None:
    assert contraction_work(describe("mk,kn->mn", a, b)) == work


def test_an_empty_sum_in_one_operand_needs_neither() -> None:
    assert contraction_work(describe("mr,mn->mn", (3, 0), (3, 7))) == Work(0, 0, 0, 0, 0, 4 * 21)


def test_functions_count_once_for_each_element() -> None:
    relu, affine = (trace(cases.FUNCTIONS[name], [torch.float32]) for name in ("relu", "affine"))
    assert (relu.flops, affine.flops) == (1, 2)
    contraction = describe("mk,kn->mn", (3, 5), (5, 7), c=Layout((3, 7), (0, 1), torch.float32))
    plain = contraction_work(contraction)
    fused = contraction_work(replace(contraction, a_fn=relu, b_fn=affine, c_fn=affine, epilogue=affine))
    assert fused.function_flops == 1 * 15 + 2 * 35 + 2 * 7 + 2 * 21
    assert replace(fused, function_flops=0) == plain


def test_a_function_that_makes_reals_saves_half_the_products() -> None:
    modulus = trace(lambda z: z.abs(), [torch.complex64])
    contraction = describe("mk,kn->mn", (3, 5), (5, 7), dtype=torch.complex64)
    assert contraction_work(replace(contraction, a_fn=modulus)).flops == 4 * 3 * 5 * 7


@pytest.mark.parametrize("case", tccg(), ids=str)
def test_tccg_counts_are_those_of_its_m_n_k(case: cases.Case) -> None:
    contraction = describe(case.equation, *case.shapes, dtype=torch.float16, out_dtype=torch.float32)
    m, n, k = contraction.m, contraction.n, contraction.k
    work = contraction_work(contraction)
    assert work.flops == 2 * m * n * k
    assert work.traffic == 2 * (m * k + n * k) + 4 * m * n
    assert contraction_work(canonical(contraction)) == work


@pytest.mark.parametrize("equation", ["bmk,bkn->bmn", "kk,kn->n", "mkr,kn->mn", "abk,kcd->dbca", "m,n->mn"])
def test_the_canonical_form_asks_for_the_same(equation: str) -> None:
    rng = np.random.default_rng(0)
    extents = {label: int(rng.integers(1, 6)) for label in "abcdkmnr"}
    a, b = (tuple(extents[label] for label in term) for term in equation.split("->")[0].split(","))
    contraction = describe(equation, a, b)
    assert contraction_work(canonical(contraction)) == contraction_work(contraction)


def test_permutations() -> None:
    x = Layout.contiguous((3, 5, 7), torch.float16)
    d = Layout.contiguous((7, 3, 5), torch.float32)
    assert permutation_work(x, d) == Work(0, 0, 2 * 105, 0, 0, 4 * 105)
    tanh = trace(torch.tanh, [torch.float16])
    assert permutation_work(x, d, tanh).function_flops == tanh.flops * 105
    expanded = Layout((1000, 7), (0, 1), torch.float32)
    assert permutation_work(expanded, Layout.contiguous((7, 1000), torch.float32), tanh) == Work(
        0, 7 * tanh.flops, 28, 0, 0, 28_000
    )
    assert (
        permutation_work(Layout.contiguous((0, 7), torch.float32), Layout.contiguous((7, 0), torch.float32)).traffic
        == 0
    )


ROOF = replace(
    from_datasheet("NVIDIA H200"),
    read=4.3e12,
    write=4.3e12,
    copy=4.3e12,
    matrix={"float16": 700e12, "tf32": 300e12},
    launch_eager=5e-6,
    launch_graph=1e-6,
)


@pytest.mark.parametrize(
    ("number", "single", "half", "binds"),
    # Microseconds by the paper's extents, 700 TFLOP/s and 4.3 TB/s: fp16 -> fp32 and fp16 -> fp16.
    [
        (1, 16.3, 15.2, "memory"),
        (4, 20.8, 16.7, "memory"),
        (12, 385.9, 385.9, "compute"),
        (20, 398.0, 398.0, "compute"),
        (31, 35.3, 17.7, "memory"),
        (48, 35.3, 17.7, "memory"),
    ],
)
def test_floors_of_tccg_without_launch(number: int, single: float, half: float, binds: str) -> None:
    case = tccg()[number - 1]
    for out_dtype, expected in ((torch.float32, single), (torch.float16, half)):
        contraction = describe(case.equation, *case.shapes, dtype=torch.float16, out_dtype=out_dtype)
        floor = contraction_floor(contraction, ROOF, in_graph=True)
        assert round(1e6 * max(floor.compute, floor.memory), 1) == expected
        assert floor.binds == binds


def test_the_launch_that_counts_is_the_one_that_is_made() -> None:
    contraction = describe("mk,kn->mn", (3, 5), (5, 7), dtype=torch.float16)
    assert contraction_floor(contraction, ROOF).launch == 5e-6
    assert contraction_floor(contraction, ROOF, in_graph=True).launch == 1e-6
    no_graphs: Ceilings = replace(ROOF, launch_graph=None)
    assert contraction_floor(contraction, no_graphs, in_graph=True).launch == 5e-6
    assert contraction_floor(contraction, ROOF).binds == "launch"


def test_the_rate_is_that_of_the_arithmetic() -> None:
    large = describe("mk,kn->mn", (4096, 4096), (4096, 4096))
    shortened = replace(large, arithmetic=resolve(torch.float32, torch.float32, "tf32"))
    thrice = replace(large, arithmetic=resolve(torch.float32, torch.float32, "tf32x3"))
    assert contraction_floor(shortened, ROOF).compute == pytest.approx(2 * 4096**3 / 300e12)
    assert contraction_floor(thrice, ROOF).compute == pytest.approx(2 * 4096**3 / 100e12)
    unknown = contraction_floor(large, ROOF)  # no rate for fp32 in this roof
    assert (unknown.compute, unknown.binds, unknown.ridge) == (0.0, "memory", math.inf)


def test_a_permutation_is_bound_by_memory() -> None:
    x = Layout.contiguous((1 << 14, 1 << 14), torch.float32)
    floor = work_floor(permutation_work(x, x), ROOF)
    assert floor.memory == pytest.approx(2 * 4 * 2**28 / 4.3e12)
    assert floor.binds == "memory"


def test_operands_and_further_results_are_traffic() -> None:
    """Operands once, whatever they are broadcast along; coordinates cost nothing; each result is written."""
    plan = weft.plan(
        "mk,kn->mn", torch.ones(3, 5), torch.ones(5, 7), a_fn=lambda x, scale: x * scale,
        epilogue=lambda x, bias, i: (x + bias, x > i),
        operands={"scale": ("k", torch.ones(5).half()), "bias": ("n", torch.ones(7).double())}, indices={"i": "m"},
        backend="reference",
    )  # fmt: skip
    work = contraction_work(plan.contraction)
    assert (work.read_aux, work.write_aux) == (2 * 5 + 8 * 7, 21)
    assert work.reads == 4 * (15 + 35) + 66
    assert work.traffic == work.reads + 4 * 21 + 21


def test_other_algebras_count_each_pair() -> None:
    a, b = torch.ones(3, 5, 2), torch.ones(5, 7)
    assert contraction_work(
        weft.plan("mkl,kn->mn", a, b, algebra="max_plus", backend="reference").contraction
    ).flops == (2 * 3 * 5 * 2 * 7)
