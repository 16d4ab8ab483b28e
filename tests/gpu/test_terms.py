"""Products of terms in one kernel: the operands' terms, the verdict, what is planned, what is compiled, and values."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import weft
from gpu.warp_specialized_cases import H200
from weft.errors import UnsupportedError
from weft.gpu.common.direct import _Allocations
from weft.gpu.common.launch import collected
from weft.gpu.terms.launch import FIRST_COUNT, OperandTerms, TermsProduct, TermsVerdict, joined_shift, terms_params
from weft.library import scheme as library_scheme
from weft.library import split_family, sums
from weft.planner.schedule import Target
from weft.planner.split_schemes import BF16X6, FP16X3, SCALED, SplitScheme, U, prefers_float16, split_bytes
from weft.planner.target import target_of
from weft.spec import Layout

SCHEMES = pytest.mark.parametrize("scheme", [BF16X6, FP16X3], ids=lambda scheme: scheme.name)
INTERPRETER = Target("interpreter", 0, "Triton interpreter", 90, 2, 232448)


def matrices(m: int, n: int, k: int, *batch: int, turned: tuple[bool, bool] = (False, False)) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(k)
    pair = torch.randn(*batch, m, k, generator=draw), torch.randn(*batch, k, n, generator=draw)
    return tuple(x.mT.contiguous().mT if turn else x for x, turn in zip(pair, turned, strict=True))  # type: ignore[return-value]


class Packed:
    """Terms of two operands, made in the interpreter as launches on a GPU make them."""

    def __init__(self, a: Tensor, b: Tensor, *, looks: bool) -> None:
        given = (a, b.mT)
        of_a = OperandTerms(Layout.of(a), 0, FIRST_COUNT, INTERPRETER)
        sides = of_a, OperandTerms(Layout.of(b.mT), 1, FIRST_COUNT + of_a.rows, INTERPRETER)
        self.words = torch.full((FIRST_COUNT + sum(side.rows for side in sides),), -1, dtype=torch.int32)
        schemes = (FP16X3, BF16X6) if looks else (BF16X6,)
        for side in sides:
            side.prepare(schemes, Layout.of(self.words) if looks else None)
        verdict = TermsVerdict(Layout.of(self.words), a.shape[-1], INTERPRETER)
        verdict.clear(self.words)
        if looks:
            for side, x in zip(sides, given, strict=True):
                side.peak(x, self.words)
        self.terms: dict[str, list[list[Tensor]]] = {}
        rooms = [torch.full(side.room(3), 0x7FFF, dtype=torch.int16) for side in sides]  # NaN
        for scheme in schemes:
            words = self.words if looks else None
            made = []
            for side, x, room in zip(sides, given, rooms, strict=True):
                held = room[: scheme.terms].view(scheme.term)
                side.split(x, words, held, scheme)
                made.append([each.double() for each in side.views(held)])
            self.terms[scheme.name] = made
            if scheme is FP16X3:
                verdict(self.words)

    @property
    def serves(self) -> bool:
        return bool(self.words[0])

    @property
    def scale(self) -> float:
        return float(self.words[1:2].view(torch.float32))


@pytest.mark.parametrize("turned", [(False, False), (True, True)])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_terms_make_up_the_values(turned: tuple[bool, bool], batch: tuple[int, ...]) -> None:
    a, b = matrices(70, 37, 99, *batch, turned=turned)
    packed = Packed(a, b, looks=False)
    for x, terms in zip((a, b.mT), packed.terms["bf16x6"], strict=True):
        assert ((terms[0] - x.double()).abs() <= 2.0**-7 * x.double().abs()).all()  # the interpreter cuts digits off
        assert torch.equal(sum(terms[1:], terms[0]), x.double())  # of all 24 digits


def test_float16_terms_are_those_of_scaled_values() -> None:
    a, b = matrices(70, 37, 99)
    packed = Packed(a, b, looks=True)
    assert packed.serves
    scales = []
    for x, terms in zip((a, b.mT), packed.terms["fp16x3"], strict=True):
        top = float(x.abs().max())
        scale = 2.0 ** (SCALED - math.frexp(top)[1])
        assert 2**14 <= top * scale < 2**15
        off = (terms[0] + terms[1] * 2.0**-FP16X3.shift - x.double() * scale).abs()
        assert (off <= x.abs().double() * scale * 2.0**-23 + 2.0**-36).all()
        scales.append(scale)
    assert packed.scale == 1 / math.prod(scales)


@pytest.mark.parametrize(
    "change",
    [
        lambda a: a.mul_(torch.linspace(-40, 0, 9).exp2()[:, None]),
        lambda a: a[:, ::2].zero_(),
        lambda a: a[0].mul_(1e30),
        lambda a: a[0, :1].fill_(torch.nan),
        lambda a: a[0, :1].fill_(torch.inf),
        lambda a: a.zero_(),
    ],
    ids=["a row far below", "half of a row is zero", "too large", "NaN", "infinity", "zeros"],
)
def test_the_verdict_refuses_float16_terms_that_would_lose_too_much(change: Any) -> None:
    a, b = matrices(9, 70, 256)
    change(a)
    for x, y in ((a, b), (b.mT, a.mT)):
        packed = Packed(x, y, looks=True)
        assert not packed.serves
        for given, terms in zip((x, y.mT), packed.terms["bf16x6"], strict=True):  # which are made then
            there = given.isfinite()
            assert torch.equal(sum(terms[1:], terms[0])[there], given.double()[there])
    assert Packed(*matrices(9, 70, 256), looks=True).serves


def test_terms_of_bfloat16_are_left_out_where_float16_serves() -> None:
    packed = Packed(*matrices(9, 70, 256), looks=True)
    assert packed.terms["bf16x6"][0][2].isnan().all()


@SCHEMES
def test_a_scheme_names_each_product_once_and_first_terms_apart(scheme: SplitScheme) -> None:
    params = terms_params(scheme, 32)
    places = range(scheme.terms)
    made = {(i, j) for i in places for j in places if i + j < scheme.orders}
    assert {*params.small, (0, 0)} == made
    assert len(params.small) == len(made) - 1
    assert [sum(pair) for pair in params.small] == sorted((sum(pair) for pair in params.small), reverse=True)
    assert params.run * 32 == 512


@SCHEMES
@pytest.mark.parametrize("k", [64, 512, 1500])
def test_joined_sums_are_within_their_bound(scheme: SplitScheme, k: int) -> None:
    a, b = matrices(9, 11, k)
    packed = Packed(a, b, looks=scheme is FP16X3)
    x, y = packed.terms[scheme.name]
    params = terms_params(scheme, 64)
    small = torch.zeros(9, 11)
    for i, j in params.small:
        small += (x[i] @ y[j].mT).float()
    total = torch.zeros(9, 11)
    for start in range(0, k, 512):
        total += (x[0][:, start : start + 512] @ y[0][:, start : start + 512].mT).float()
    found = ((total + small * params.factor) * (packed.scale if params.scaled else 1.0)).double()
    exact, size = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    assert scheme.admitted(k, joined=True)
    assert ((found - exact).abs() <= scheme.loss(k, joined=True) * U * size).all()


def test_a_joined_scheme_loses_no_less() -> None:
    for scheme in (BF16X6, FP16X3):
        for k in (16, 100, 512, 8192, 10**6):
            assert scheme.loss(k, joined=True) >= scheme.loss(k)
    assert not BF16X6.admitted(16, joined=True)
    assert joined_shift(BF16X6) == 0
    assert joined_shift(FP16X3) == FP16X3.shift


def test_float16_is_looked_at_for_large_products_alone() -> None:
    assert prefers_float16(1, 8192, 8192, 8192)
    assert not prefers_float16(1, 1024, 1024, 1024)
    assert not prefers_float16(1, 8192, 8192, 32)


@cache
def planned(m: int, n: int, k: int, *batch: int, both: bool = True) -> TermsProduct:
    shapes = ((m, k), (k, n), (m, n))
    lie = [Layout.contiguous((*batch, rows, columns), torch.float32) for rows, columns in shapes]
    return TermsProduct(*lie, (FP16X3, BF16X6) if both else (BF16X6,), replace(H200, kind="cuda"))


@pytest.mark.parametrize(
    ("extents", "splits"),
    [((4096, 4096, 4096), 1), ((128, 128, 65536), 128), ((300, 200, 1500, 7), 3), ((96, 48, 100001), 98)],
)
def test_sums_are_shared_where_output_tiles_are_few(extents: tuple[int, ...], splits: int) -> None:
    assert [each.schedule.splits for each in planned(*extents)._by_scheme] == [splits] * 2


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("extents", [(130, 96, 100001), (1801, 1703, 1601), (1201, 1203, 1205, 3)])
def test_a_call_allocates_no_more_than_is_said(extents: tuple[int, ...], turned: bool) -> None:
    m, n, k, *batch = extents
    lie = [Layout.contiguous((*batch, *matrix), torch.float32) for matrix in ((m, k), (k, n), (m, n))]
    if turned:
        lie[:2] = [Layout.contiguous((*batch, *matrix), torch.float32).transposed for matrix in ((k, m), (n, k))]
    tensors = [torch.empty_strided(x.shape, x.strides, device="meta") for x in lie]
    with collected():
        product = TermsProduct(*lie, (FP16X3, BF16X6), H200)
        with _Allocations() as made:
            product(*tensors)
    taken = sum(each.numel() * each.element_size() for each in made.found)
    assert 0 < taken <= split_bytes(math.prod(batch), m, n, k)


def test_each_stage_has_tiles_of_all_terms() -> None:
    assert [(each.schedule.tile, each.schedule.stages) for each in planned(4096, 4096, 4096)._by_scheme] == [
        ((128, 128, 64), 3), ((128, 128, 32), 4),
    ]  # fmt: skip


@pytest.mark.parametrize(("extents", "count"), [((512, 512, 512), 10), ((1000, 777, 2050), 11)])
def test_a_call_is_launches_alone(extents: tuple[int, ...], count: int) -> None:
    m, n, k = extents
    a, b = matrices(m, n, k)
    with collected() as made:
        product = TermsProduct(*map(Layout.of, (a, b, torch.empty(m, n))), (FP16X3, BF16X6), H200)
        assert len(made) == count  # before the first call, which may be captured
        for _ in range(2):
            product(a, b, torch.empty(m, n), 0.5)
    assert len(made) == count  # of zeros, peaks, terms by both schemes, the verdict, both kernels; what adds partials


@pytest.mark.parametrize(
    ("shape", "strides", "aside"),
    [
        ((128, 256), (256, 1), False),
        ((128, 256), (1, 128), False),
        ((128, 254), (254, 1), True),
        ((3, 128, 256), (1, 768, 3), True),
        ((3, 128, 256), (256, 768, 1), False),
        ((3, 128, 256), (128 * 258, 258, 1), True),
    ],
)
def test_d_is_made_aside_where_tma_cannot_store_it(
    shape: tuple[int, ...], strides: tuple[int, ...], aside: bool
) -> None:
    *batch, m, n = shape
    a, b = (Layout.contiguous((*batch, *matrix), torch.float32) for matrix in ((m, 512), (512, n)))
    with collected():
        product = TermsProduct(a, b, Layout(shape, strides, torch.float32), (BF16X6,), H200)
    assert product._aside is aside


def test_short_sums_and_other_devices_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="short"):
        planned(256, 256, 16, both=False)
    square = Layout.contiguous((256, 256), torch.float32)
    with pytest.raises(UnsupportedError, match="capability"):
        TermsProduct(square, square, square, (BF16X6,), replace(H200, capability=100))


CASES = [
    ("mk,kn->mn", {"m": 512, "n": 512, "k": 512}),
    ("mk,kn->mn", {"m": 1801, "n": 1703, "k": 1601}),
    ("km,nk->nm", {"m": 1000, "n": 777, "k": 2050}),
    ("bmk,bkn->bmn", {"b": 5, "m": 520, "n": 390, "k": 700}),
    ("mk,kn->mn", {"m": 130, "n": 96, "k": 100001}),
    ("mk,kn->mn", {"m": 4096, "n": 4096, "k": 4096}),
]


@pytest.mark.gpu
@pytest.mark.parametrize(("equation", "extents"), CASES)
@pytest.mark.parametrize("spread", [False, True], ids=["near", "spread"])
def test_values_on_a_gpu(monkeypatch: pytest.MonkeyPatch, equation: str, extents: dict[str, int], spread: bool) -> None:
    monkeypatch.setattr(sums, "prefers_float16", lambda *dims: True)
    monkeypatch.setattr(library_scheme, "is_worth", lambda *dims: True)
    left, right = equation.split("->")[0].split(",")
    a, b = (torch.randn([extents[label] for label in term], device="cuda") for term in (left, right))
    if spread:
        a *= torch.empty_like(a).uniform_(-60, 0).exp2()
    described = weft.plan(equation, a, b, precision="ieee_bound").contraction
    (schedule, *_) = split_family.schedules(described, target_of("triton", a.device)).schedules
    plan = weft.plan(equation, a, b, precision="ieee_bound", schedule=schedule)
    exact = torch.einsum(equation, a.double(), b.double())
    size = torch.einsum(equation, a.double().abs(), b.double().abs())
    assert "terms in one kernel" in plan.explain()
    for _ in range(4):
        off = (plan(a, b).double() - exact).abs()
        assert (off <= extents["k"] * U * size).all()


@pytest.mark.gpu
@pytest.mark.parametrize("spread", [False, True], ids=["near", "spread"])
def test_a_graph_chooses_terms_anew_on_a_gpu(spread: bool) -> None:
    a, b = (torch.randn(512, 512, device="cuda") for _ in range(2))
    d = torch.empty(512, 512, device="cuda")
    product = TermsProduct(*map(Layout.of, (a, b, d)), (FP16X3, BF16X6), target_of("triton", a.device))
    product(a, b, d)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        product(a, b, d)
    for again in (spread, not spread):
        a.normal_()
        if again:
            a *= torch.empty_like(a).uniform_(-60, 0).exp2()
        graph.replay()
        x, y = a.double(), b.double()
        assert ((d - x @ y).abs() <= 512 * U * (x.abs() @ y.abs())).all()
