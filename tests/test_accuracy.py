"""Error bounds that correct results keep, and `validate=True`: silent on right results, loud on wrong ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import weft
from weft import functions
from weft.oracle import validate as validation
from weft.plans.contraction import Plan
from weft.testing import assert_close, random_operand
from weft_bench import cases
from weft_bench.cases import Case

SMALL = [case for case in cases.general() if case.work <= 1 << 14]
RUNNING = ("cpu", "reference")


def spoil(monkeypatch: pytest.MonkeyPatch, change: Callable[[torch.Tensor], None], at: int = 0) -> None:
    """Have every run change its result before it is looked at."""
    run = Plan.run

    def wrong(self: Plan, *arguments: Any) -> Any:
        result = run(self, *arguments)
        change(result[at] if isinstance(result, tuple) else result)
        return result

    monkeypatch.setattr(Plan, "run", wrong)


class TestBound:
    def test_has_the_shape_of_d_and_covers_an_eager_product(self) -> None:
        a, b = random_operand((5, 300), torch.float32, 1), random_operand((300, 7), torch.float32, 2)
        bound = weft.error_bound("mk,kn->nm", a, b)
        assert (bound.shape, bound.dtype) == ((7, 5), torch.float64)
        assert_close((a @ b).T, (a.double() @ b.double()).T, bound)

    def test_is_the_stated_formula(self) -> None:
        a, b = random_operand((3, 100), torch.float32, 1), random_operand((100, 4), torch.float32, 2)
        eps, double = torch.finfo(torch.float32).eps, torch.finfo(torch.float64).eps
        size = a.double().abs() @ b.double().abs()
        tiny = torch.finfo(torch.float32).smallest_normal * eps
        of_sum = 102 * (eps + double) * size + 100 * tiny + 3 * eps * size
        value = a.double() @ b.double()
        expected = of_sum + eps / 2 * (value.abs() + of_sum) + tiny
        torch.testing.assert_close(weft.error_bound("mk,kn->mn", a, b), expected, rtol=1e-9, atol=0.0)

    def test_is_at_least_gamma(self) -> None:
        """n eps >= gamma_n = n u / (1 - n u) while n u <= 1/2, for every accumulator."""
        for k in (1, 100, 4096):
            for total in (torch.float32, torch.float64):
                a = torch.ones(k, dtype=torch.float32)
                u = torch.finfo(total).eps / 2
                gamma = k * u / (1 - k * u)
                assert float(weft.error_bound("k,k->", a, a, accumulate=total, out_dtype=torch.float64)) >= gamma * k

    def test_precisions_are_ordered(self) -> None:
        a, b = random_operand((6, 64), torch.float32, 1), random_operand((64, 6), torch.float32, 2)
        bounds = [weft.error_bound("mk,kn->mn", a, b, precision=p).mean() for p in ("ieee", "tf32x3", "tf32")]
        assert bounds == sorted(bounds)
        assert bounds[2] > 50 * bounds[0]

    def test_functions_take_operands_and_coordinates(self) -> None:
        a, b, bias = torch.randn(5, 30), torch.randn(6, 30), torch.randn(6) * 100
        options: dict[str, Any] = {"operands": {"bias": ("n", bias)}, "indices": {"i": "m"}}

        def finish(s, bias, i):
            return torch.where(i > 1, s + bias, 0.0)

        bound = weft.error_bound("mk,nk->mn", a, b, epilogue=finish, **options)
        assert (bound[:2] < 1e-40).all()  # a constant loses nothing
        exact = torch.where(torch.arange(5)[:, None] > 1, a.double() @ b.double().T + bias.double(), 0.0)
        assert_close(torch.where(torch.arange(5)[:, None] > 1, a @ b.T + bias, 0.0), exact, bound)

    def test_several_results_have_several_bounds(self) -> None:
        a = torch.randn(4, 9)
        bounds = weft.error_bound("mk,nk->mn", a, a, epilogue=lambda s: (s, s * 100, s > 0))
        assert [bound.shape for bound in bounds] == [(4, 4)] * 3
        assert (bounds[1] > 50 * bounds[0]).all()
        assert ((bounds[2] == 0) | (bounds[2] == 1)).all()

    @pytest.mark.parametrize("algebra", ["max_plus", "min_plus", "max_times", "min_max", "or_and", "log"])
    @pytest.mark.parametrize("function", [None, torch.tanh], ids=["plain", "tanh"])
    def test_algebras(self, algebra: str, function: Any) -> None:
        """float32 results, computed pair by pair, keep the bound; in bfloat16 they break it where they round."""
        a, b = random_operand((6, 50), torch.float32, 1), random_operand((50, 5), torch.float32, 2)
        if algebra != "or_and":
            a[0, :7] = -math.inf
        found = weft.algebra.NAMED[algebra]
        x, y = (function(t) if function else t for t in (a, b))

        def by_pairs(dtype: torch.dtype) -> torch.Tensor:
            pairs = found.combine(x.to(dtype)[:, :, None], y.to(dtype)[None]).to(dtype)
            total = pairs[:, 0]
            for k in range(1, 50):
                total = torch.as_tensor(found.reduce(total, pairs[:, k])).to(dtype)
            return total

        options = {"algebra": algebra, "a_fn": function, "b_fn": function}
        exact = weft.contract("mk,kn->mn", a.double(), b.double(), backend="reference", **options)
        bound = weft.error_bound("mk,kn->mn", a, b, **options)
        assert bound.isfinite().all()
        assert_close(by_pairs(torch.float32), exact, bound)
        if algebra not in ("or_and", "log"):
            with pytest.raises(AssertionError):
                assert_close(by_pairs(torch.bfloat16), exact, bound)

    def test_takes_arrays_and_says_what_it_was_given(self) -> None:
        a = torch.rand(3, 4)
        assert torch.equal(weft.error_bound("mk,nk->mn", a.numpy(), a.numpy()), weft.error_bound("mk,nk->mn", a, a))
        with pytest.raises(weft.ShapeError, match=r"error_bound\('mk,kn->mn'; a: 3x4 float32"):
            weft.error_bound("mk,kn->mn", a, a)

    def test_an_algebra_without_a_known_bound(self) -> None:
        own = weft.Algebra(torch.sub, torch.maximum, "lowest", name="difference")
        with pytest.raises(weft.UnsupportedError, match="no error bound is known for the algebra difference"):
            weft.error_bound("k,k->", torch.ones(3), torch.ones(3), algebra=own)
        whole = torch.ones(3, dtype=torch.int32)
        assert weft.error_bound("k,k->", whole, whole, algebra=own) == 0


class TestValidate:
    @pytest.mark.one_of(3)
    @pytest.mark.parametrize("backend", RUNNING)
    @pytest.mark.parametrize("case", SMALL, ids=str)
    def test_right_results_pass(self, case: Case, backend: str) -> None:
        given = cases.operands(case)
        options = {**case.options(), "backend": backend, "c": given.c}
        try:
            plain = weft.contract(case.equation, given.a, given.b, **options)
        except weft.UnsupportedError:
            pytest.skip(f"{backend} does not do it")
        checked = weft.contract(case.equation, given.a, given.b, **options, validate=True)
        assert torch.equal(plain, checked) or bool(plain.isnan().any())

    @pytest.mark.parametrize(
        "change",
        [
            lambda d: d[3, -1].add_(0.01),
            lambda d: d[3, -1].fill_(math.nan),
            lambda d: d[3, -1].fill_(math.inf),
            lambda d: d[3, -1].copy_(d[0, 0]),
        ],
        ids=["off", "nan", "inf", "misplaced"],
    )
    def test_names_the_element(self, monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
        a, b = random_operand((6, 64), torch.float32, 1), random_operand((5, 64), torch.float32, 2)
        spoil(monkeypatch, change)
        with pytest.raises(
            weft.AccuracyError, match=r"D\[m=3, n=4\] is .*, expected .* within .*: 1 of 30 sampled"
        ) as e:
            weft.contract("mk,nk->mn", a, b, validate=True)
        assert "6x64 float32" in str(e.value)

    def test_corners_of_a_large_result_are_always_looked_at(self, monkeypatch: pytest.MonkeyPatch) -> None:
        a, b = random_operand((500, 8), torch.float32, 1), random_operand((400, 8), torch.float32, 2)
        for corner in ((0, 0), (0, -1), (-1, 0), (-1, -1)):
            with monkeypatch.context() as patched:
                spoil(patched, lambda d, at=corner: d[at].add_(1))
                with pytest.raises(weft.AccuracyError):
                    weft.contract("mk,nk->mn", a, b, validate=True)

    def test_notices_a_lost_slice_of_a_long_sum(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A split sum without one of its parts, with gathers of a few elements at a time."""
        monkeypatch.setattr(validation, "GATHERED", 4096)
        a, b = random_operand((20, 2000), torch.float32, 1), random_operand((30, 2000), torch.float32, 2)
        assert weft.contract("mk,nk->mn", a, b, validate=True).shape == (20, 30)
        spoil(monkeypatch, lambda d: d.copy_(a[:, :1900] @ b[:, :1900].T))
        with pytest.raises(weft.AccuracyError, match="sampled elements are off"):
            weft.contract("mk,nk->mn", a, b, validate=True)

    def test_an_accumulator_that_is_too_short(self, monkeypatch: pytest.MonkeyPatch) -> None:
        a = random_operand((16, 512), torch.float16, 1)
        spoil(monkeypatch, lambda d: d.copy_(torch.stack([(a * row).cumsum(1)[:, -1] for row in a])))
        with pytest.raises(weft.AccuracyError):
            weft.contract("mk,nk->mn", a, a, out_dtype=torch.float32, validate=True)

    def test_whole_numbers_are_exact_and_wrap(self, monkeypatch: pytest.MonkeyPatch) -> None:
        a = torch.full((4, 64), 2**30 + 1, dtype=torch.int32)
        result = weft.contract("mk,nk->mn", a, a, validate=True)
        assert int(result[0, 0]) == 64 * ((2**30 + 1) ** 2) % 2**32
        spoil(monkeypatch, lambda d: d[2, 2].add_(1))
        with pytest.raises(weft.AccuracyError, match="within 0: 1 of 16"):
            weft.contract("mk,nk->mn", a, a, validate=True)

    def test_c_in_place(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """C is looked at before it is overwritten."""
        a, d = torch.randn(6, 9), torch.randn(6, 6)
        before = d.clone()
        weft.contract("mk,nk->mn", a, a, c=d, beta=0.5, out=d, validate=True)
        torch.testing.assert_close(d, a @ a.T + 0.5 * before)
        spoil(monkeypatch, lambda out: out.sub_(0.5 * before))
        with pytest.raises(weft.AccuracyError):
            weft.contract("mk,nk->mn", a, a, c=d, beta=0.5, out=d, validate=True)

    def test_operands_coordinates_and_every_result(self, monkeypatch: pytest.MonkeyPatch) -> None:
        a, b, scale, bias = torch.randn(3, 6, 9), torch.randn(3, 9, 7), torch.randn(6, 9), torch.randn(7)

        def weigh(x, scale, k):
            return torch.where(k < 8, x * scale, 0.0)

        def finish(s, bias, i, z):
            return s + bias, torch.where(i > z, s, -s)

        options: dict[str, Any] = {
            "a_fn": weigh, "epilogue": finish, "backend": "reference",
            "operands": {"scale": ("mk", scale), "bias": ("n", bias)}, "indices": {"k": "k", "i": "m", "z": "z"},
        }  # fmt: skip
        first, second = weft.contract("zmk,zkn->nzm", a, b, **options, validate=True)
        assert first.shape == second.shape == (7, 3, 6)
        spoil(monkeypatch, lambda d: d[6, 2, 5].neg_(), at=1)
        with pytest.raises(weft.AccuracyError, match=r"result 1, D\[n=6, z=2, m=5\]"):
            weft.contract("zmk,zkn->nzm", a, b, **options, validate=True)

    @pytest.mark.parametrize("algebra", ["max_plus", "min_max", "log", "or_and"])
    def test_algebras(self, monkeypatch: pytest.MonkeyPatch, algebra: str) -> None:
        a, b = torch.rand(6, 40) + 1, torch.rand(40, 8) + 1
        weft.contract("mk,kn->mn", a, b, algebra=algebra, backend="reference", validate=True)
        spoil(monkeypatch, lambda d: d[5, 7].mul_(1.01))
        with pytest.raises(weft.AccuracyError):
            weft.contract("mk,kn->mn", a, b, algebra=algebra, backend="reference", validate=True)

    def test_what_has_no_bound_is_refused_before_it_runs(self) -> None:
        own = weft.Algebra(torch.sub, torch.maximum, "lowest", name="difference")
        out = torch.full((), 7.0)
        with pytest.raises(weft.UnsupportedError, match="no error bound is known"):
            weft.contract(
                "k,k->", torch.ones(3), torch.ones(3), algebra=own, out=out, backend="reference", validate=True
            )
        assert out == 7

    def test_plans_validate_call_by_call(self, monkeypatch: pytest.MonkeyPatch) -> None:
        a, b = torch.randn(4, 5), torch.randn(5, 6)
        plan = weft.plan("mk,kn->mn", a, b, epilogue=functions.relu)
        assert torch.equal(plan(a, b), plan(a, b, validate=True))
        with pytest.raises(weft.ShapeError):
            plan(b, a, validate=True)
        spoil(monkeypatch, lambda d: d.add_(1))
        plan(a, b)
        with pytest.raises(weft.AccuracyError):
            plan(a, b, validate=True)

    @pytest.mark.parametrize(
        ("equation", "shapes"),
        [("ii,ij->j", ((4, 4), (4, 3))), ("i,j->", ((5,), (6,))), ("ik,jk->ij", ((1, 3), (5, 3))),
         ("ijk,k->", ((2, 3, 4), (4,))), ("ik,kj->ij", ((3, 0), (0, 4))), ("ik,kj->ij", ((0, 3), (3, 4)))],
    )  # fmt: skip
    def test_odd_shapes(self, equation: str, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
        a, b = (torch.randn(shape) for shape in shapes)
        assert torch.equal(weft.contract(equation, a, b, validate=True), weft.contract(equation, a, b))

    def test_complex_views(self) -> None:
        a, b = (random_operand(shape, torch.complex64, 1) for shape in ((5, 8), (8, 4)))
        weft.contract("mk,kn->mn", a.conj(), b, alpha=1j, validate=True)
        weft.contract("mk,kn->mn", a, b.real.contiguous(), validate=True)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.int32], ids=str)
def test_on_the_gpu(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    a, b = (random_operand(shape, dtype, 1, device="cuda") for shape in ((300, 512), (256, 512)))
    weft.contract("mk,nk->mn", a, b, validate=True)
    spoil(monkeypatch, lambda d: d[299, 255].add_(16))
    with pytest.raises(weft.AccuracyError, match="m=299, n=255"):
        weft.contract("mk,nk->mn", a, b, validate=True)


class TestWhatTheOracleCannotKnow:
    """Right results that `validate` must leave alone."""

    def test_c_broadcasts_below_what_its_function_takes(self) -> None:
        a, b, c = torch.ones(2, 3), torch.ones(3, 4), torch.ones(1, 1)
        bound = weft.error_bound(
            "mk,kn->mn", a, b, c=c, c_fn=lambda v, x: v + x, operands={"x": ("n", torch.arange(4.0))}
        )
        assert bound.shape == (2, 4)
        assert weft.error_bound("mk,kn->mn", a, b, c=c, c_fn=lambda v, i: v + i, indices={"i": "m"}).shape == (2, 4)

    @pytest.mark.parametrize("backend", RUNNING)
    def test_functions_of_c_see_the_type_of_the_sums(self, backend: str) -> None:
        a, b, c = torch.ones(2, 3), torch.ones(3, 2), torch.ones(2, 2, dtype=torch.int8)
        found = weft.contract(
            "mk,kn->mn", a, b, c=c, c_fn=lambda v: (v * 0.5).to(v.dtype), backend=backend, validate=True
        )
        assert torch.equal(found, torch.full((2, 2), 3.5))

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
    def test_tails_that_float64_loses(self, dtype: torch.dtype) -> None:
        """As 1 + erf(x) GELU is 0 below -8.3, even in float64. Its tail is near exp(-x^2 / 2) / sqrt(2 pi)."""
        x, one = torch.tensor([[-4.5, -9.0, 30.0]], dtype=dtype), torch.ones(1, 1, dtype=dtype)
        for gelu in (torch.nn.functional.gelu, functions.gelu()):
            value, bound = weft.testing.expectation("mk,kn->mn", one, x, epilogue=gelu)
            tail = -(x.double()[:, :2].square() / -2).exp() / math.sqrt(2 * math.pi)
            assert torch.allclose(value[:, :2], tail, rtol=0.05, atol=0.0)
            assert value[0, 2] == 30
            assert_close(gelu(x), value, bound)
            assert float(bound.max()) < 1

    @pytest.mark.parametrize("backend", RUNNING)
    def test_infinities_of_complex_products(self, backend: str) -> None:
        infinite, one = torch.full((1, 1), complex(math.inf, 1)), torch.full((1, 1), 1 + 1j)
        weft.contract("mk,kn->mn", infinite, one, backend=backend, validate=True)
        weft.contract("mk,kn->mn", infinite, torch.ones(1, 1), backend=backend, validate=True)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
    def test_sums_beyond_the_accumulators_range(self, dtype: torch.dtype) -> None:
        """The oracle's lie within its own range, and an epilogue may bring them back into D's."""
        large, two = torch.full((1, 1), 3e38, dtype=dtype), torch.full((1, 1), 2, dtype=dtype)
        weft.contract("mk,kn->mn", large, two, validate=True)
        weft.contract("mk,kn->mn", large, two, epilogue=lambda v: v * 1e-30, validate=True)

    def test_an_infinite_result_of_finite_sums_is_still_wrong(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for dtype in (torch.float32, torch.complex64):
            with monkeypatch.context() as patch:
                spoil(patch, lambda result: result.fill_(math.inf))
                with pytest.raises(weft.AccuracyError):
                    weft.contract(
                        "mk,kn->mn", torch.ones(2, 3, dtype=dtype), torch.ones(3, 2, dtype=dtype), validate=True
                    )


def test_condition_numbers_of_what_cancels_are_told(caplog: pytest.LogCaptureFixture) -> None:
    """A row of 1e4, -1e4 and 1, times ones: kappa_dot is 20001; adding -0.5 of C to 1 makes kappa_add 3."""
    a, b = torch.tensor([[1e4, -1e4, 1.0], [1.0, 1.0, 1.0]]), torch.ones(3, 2)
    c = torch.tensor([[-0.5, 1.0], [1.0, 1.0]])
    with caplog.at_level("INFO", logger="weft"):
        weft.contract("mk,kn->mn", a, b, validate=True)
        weft.contract("mk,kn->mn", a, b, c=c, validate=True)
        weft.contract("mk,kn->mn", a, b, a_fn=torch.relu, validate=True)
        weft.contract("mk,kn->mn", torch.zeros(2, 3), b, validate=True)
    said = [record.getMessage() for record in caplog.records if record.getMessage().startswith("validated")]
    assert said == [
        "validated; kappa_dot is at most 2e+04",
        "validated; kappa_dot is at most 2e+04; kappa_add is at most 3",
        "validated: exact sums, or functions within",
        "validated; kappa_dot is at most 1",
    ]


def test_a_number_that_is_overwritten_is_checked_as_it_was() -> None:
    a = torch.arange(5.0)
    c = torch.tensor(3.0)
    assert weft.contract("k,k->", a, a, c=c, out=c, validate=True) is c
    assert float(c) == 33
