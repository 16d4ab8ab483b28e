"""The tools that hold everything else: bounds, poison that shows, and the oracle against NumPy and plain loops."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from weft import reference
from weft.errors import ShapeError
from weft.oracle import sums
from weft.oracle.reference import wide
from weft.testing import (
    LAYOUTS,
    assert_close,
    expectation,
    l2_norm,
    layout_strides,
    max_error_over_bound,
    max_norm,
    poisoned,
    random_operand,
    tolerance,
)
from weft_bench import cases
from weft_bench.cases import Case

WRITABLE = [layout for layout in LAYOUTS if layout not in ("expanded", "overlapping")]


class TestBound:
    @pytest.mark.parametrize("case", cases.general(), ids=str)
    def test_is_finite_and_not_negative(self, case: Case) -> None:
        given = cases.operands(case)
        reference, bound = expectation(case.equation, given.a, given.b, c=given.c, **case.options())
        assert tuple(reference.shape) == tuple(bound.shape) == case.d_shape
        assert bound.dtype == torch.float64
        assert (bound >= 0).all()
        assert bound.isfinite().all()

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64])
    @pytest.mark.parametrize("k", [1, 16, 1000])
    def test_holds_for_eager_torch(self, dtype: torch.dtype, k: int) -> None:
        """A plain product in the same type keeps it; one that is off by a hundredth of its largest breaks it."""
        a, b = random_operand((9, k), dtype, 1), random_operand((k, 7), dtype, 2)
        result = a @ b
        reference, bound = expectation("mk,kn->mn", a, b)
        assert_close(result, reference, bound)
        assert 0 < max_error_over_bound(result, reference, bound) <= 1 or k == 1
        result[3, 4] += 0.05 * result.abs().max()
        with pytest.raises(AssertionError, match=r"1 of 63 elements are off; the worst at \(3, 4\)"):
            assert_close(result, reference, bound)

    def test_grows_with_k_and_with_the_operands(self) -> None:
        bounds = [tolerance("k,k->", torch.ones(k), torch.ones(k)).item() / k for k in (10, 100, 1000)]
        assert bounds == sorted(bounds)
        assert bounds[2] > 50 * bounds[0]
        small, large = (tolerance("k,k->", torch.full((9,), size), torch.ones(9)).item() for size in (1.0, 1000.0))
        assert large == pytest.approx(1000 * small, rel=1e-3)

    def test_is_not_blind(self) -> None:
        """One product of 64 lost, or a half-precision accumulator, is far outside."""
        a, b = random_operand((16, 64), torch.float32, 1), random_operand((64, 16), torch.float32, 2)
        reference, bound = expectation("mk,kn->mn", a, b)
        with pytest.raises(AssertionError):
            assert_close(a[:, 1:] @ b[1:], reference, bound)
        with pytest.raises(AssertionError):
            assert_close((a.half().float() @ b.half().float()), reference, bound)

    def test_tf32(self) -> None:
        """Factors cut to 10 explicit bits keep the bound of tf32 and break those of ieee and tf32x3."""
        a, b = random_operand((16, 64), torch.float32, 1), random_operand((64, 16), torch.float32, 2)
        cut = [(x.view(torch.int32) & ~0x1FFF).view(torch.float32) for x in (a, b)]
        result = (cut[0].double() @ cut[1].double()).float()
        assert_close(result, *expectation("mk,kn->mn", a, b, precision="tf32"))
        for precision in ("ieee", "tf32x3"):
            with pytest.raises(AssertionError):
                assert_close(result, *expectation("mk,kn->mn", a, b, precision=precision))

    def test_follows_the_epilogue(self) -> None:
        """A flat epilogue shrinks the bound, a steep one stretches it."""
        a, b = torch.full((1, 100), 0.3), torch.full((100, 1), 0.3)
        plain, flat, steep = (
            tolerance("mk,kn->mn", a, b, epilogue=f).item() for f in (None, torch.sigmoid, lambda x: 1000 * x)
        )
        assert flat < plain / 10
        assert steep > 500 * plain

    def test_steps_may_fall_either_way(self) -> None:
        """Where the value lies on a step, within its rounding, both sides are right."""
        a, b = torch.full((1, 10), 0.1), torch.ones(10, 1)
        reference, bound = expectation("mk,kn->mn", a, b, epilogue=torch.floor)
        for value in (0.0, 1.0):
            assert_close(torch.tensor([[value]]), reference, bound)
        with pytest.raises(AssertionError):
            assert_close(torch.tensor([[2.5]]), reference, bound)

    def test_integers_are_exact(self) -> None:
        a = random_operand((4, 4), torch.int32, 1)
        reference, bound = expectation("mk,kn->mn", a, a)
        assert (bound == 0).all()
        with pytest.raises(AssertionError, match="inf"):
            assert_close(reference.int() + 1, reference, bound)

    def test_overflow_of_the_result_type(self) -> None:
        a = torch.full((1, 1), 300.0)
        reference, bound = expectation("mk,kn->mn", a, a, out_dtype=torch.float16)
        assert_close((a @ a).half(), reference, bound)
        with pytest.raises(AssertionError):
            assert_close(-(a @ a).half(), reference, bound)

    def test_special_values(self) -> None:
        reference = torch.tensor([math.nan, math.inf, 1.0])
        bound = torch.full((3,), 1e-3)
        assert_close(reference.clone(), reference, bound)
        for at, value in ((0, 0.0), (1, -math.inf), (1, 3.0), (2, math.nan), (2, math.inf)):
            wrong = reference.clone()
            wrong[at] = value
            with pytest.raises(AssertionError, match=rf"the worst at \({at},\)"):
                assert_close(wrong, reference, bound)

    def test_refuses_to_compare_with_nothing(self) -> None:
        x = torch.ones(3)
        with pytest.raises(ValueError, match="infinite"):
            assert_close(x, x, torch.full((3,), math.inf))


class TestMemory:
    @pytest.mark.parametrize("layout", WRITABLE)
    @pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.complex64, torch.int8, torch.int32])
    def test_guards_notice_one_byte(self, layout: str, dtype: torch.dtype) -> None:
        guarded = poisoned((3, 4), dtype, layout=layout)
        guarded.tensor.fill_(1)
        guarded.check_guards()
        offset = guarded.tensor.storage_offset() * dtype.itemsize
        for at in (0, offset - 1, len(guarded.memory) - 1):
            guarded.memory[at] += 1
            with pytest.raises(AssertionError, match=f"1 bytes outside the tensor were written, .* byte {at}$"):
                guarded.check_guards()
            guarded.memory[at] -= 1

    def test_starts_poisoned(self) -> None:
        assert poisoned((3,), torch.bfloat16).tensor.isnan().all()
        assert poisoned((3,), torch.complex64).tensor.isnan().all()
        assert poisoned((3,), torch.int16).tensor.tolist() == [0x5A5A] * 3

    @pytest.mark.parametrize("layout", LAYOUTS)
    @pytest.mark.parametrize("shape", [(), (1,), (0, 3), (3, 0), (4, 1, 5), (2, 3, 4)])
    def test_operands_lie_as_asked(self, layout: str, shape: tuple[int, ...]) -> None:
        x, y = (random_operand(shape, torch.float32, 7, layout=layout) for _ in range(2))
        assert x.shape == shape
        assert x.stride() == layout_strides(shape, layout)[0]
        assert torch.equal(x, y)
        assert x.isfinite().all()
        assert (x.data_ptr() % 16 == 4) == (layout == "offset") or not x.numel()

    def test_operands_lie_in_poison(self) -> None:
        x = random_operand((3, 4), torch.float32, 1, layout="padded")
        around = x.as_strided((x.storage_offset() + 30,), (1,), 0)
        assert around.isnan().sum() == len(around) - 12
        repeated = random_operand((3, 4), torch.float32, 1, layout="expanded")
        assert torch.equal(repeated[0], repeated[2])
        overlapping = random_operand((3, 4), torch.float32, 1, layout="overlapping")
        assert overlapping[0, 1] == overlapping[1, 0]

    def test_small_integers(self) -> None:
        for dtype in (torch.float16, torch.int8, torch.uint8, torch.complex128):
            x = torch.view_as_real(random_operand((99,), dtype, 1, integers=True)) if dtype.is_complex else None
            x = random_operand((99,), dtype, 1, integers=True) if x is None else x
            assert set(x.flatten().tolist()) <= set(range(-3, 4))
            assert len(set(x.flatten().tolist())) >= 4

    def test_unknown_layout(self) -> None:
        with pytest.raises(ValueError, match="'diagonal' is none of contiguous, permuted"):
            layout_strides((2,), "diagonal")


def test_norms() -> None:
    x, y = torch.tensor([1.0, 2.0, 2.0]), torch.tensor([1.0, 5.0, -2.0])
    assert max_norm(x, y) == 4
    assert l2_norm(x, y) == 5
    assert max_norm(torch.empty(0), torch.empty(0)) == 0
    assert l2_norm(torch.tensor([3 + 4j]), torch.tensor([0j])) == 5


LINEAR = [
    case
    for case in (cases.scaled(case, 1 << 14) for case in cases.every())
    if not (case.a_fn or case.b_fn or case.c_fn or case.epilogue or case.add or isinstance(case.precision, torch.dtype))
]


def plain(x: torch.Tensor) -> np.ndarray:
    return wide(x).resolve_conj().numpy()


def by_loops(case: Case, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The definition, one product after another."""
    notation, extents = case.notation, case.extents
    d = np.zeros(case.d_shape, dtype=np.result_type(a, b))
    for index in itertools.product(*map(range, extents.values())):
        at = dict(zip(extents, index, strict=True))
        where = [
            tuple(0 if extent == 1 else at[label] for label, extent in zip(term, x.shape, strict=True))
            for term, x in ((notation.inputs[0], a), (notation.inputs[1], b), (notation.output, d))
        ]
        d[where[2]] += a[where[0]] * b[where[1]]
    return d


# numpy.einsum knows 52 labels; the loops below cover what has more.
@pytest.mark.parametrize("case", [case for case in LINEAR if len(case.extents) <= 52], ids=str)
def test_agrees_with_numpy(case: Case) -> None:
    given = cases.operands(case)
    labels = {label: at for at, label in enumerate(case.extents)}
    terms = [[labels[label] for label in term] for term in (*case.notation.inputs, case.notation.output)]
    expected = np.einsum(plain(given.a), terms[0], plain(given.b), terms[1], terms[2])
    result = reference.contract(case.equation, given.a, given.b)
    assert result.dtype == torch.from_numpy(np.asarray(expected)).dtype
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("case", [case for case in LINEAR if case.work <= 4096], ids=str)
def test_agrees_with_loops(case: Case) -> None:
    given = cases.operands(case, integers=True)
    result = reference.contract(case.equation, given.a, given.b)
    np.testing.assert_array_equal(result.numpy(), by_loops(case, plain(given.a), plain(given.b)))


@pytest.mark.one_of(5)
@pytest.mark.parametrize(
    ("products", "elements", "matrices"),
    [(1, 1 << 28, 1 << 28), (16, 0, 0), (1, 64, 3)],
    ids=["matmul", "halves", "both"],
)
@pytest.mark.parametrize("case", LINEAR, ids=str)
def test_its_ways_agree(
    case: Case, products: int, elements: int, matrices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broadcasting, matrix products and halving give the same sums, exactly where the values are small integers."""
    small = cases.scaled(case, 256)
    given = cases.operands(small, integers=True)
    expected = reference.contract(small.equation, given.a, given.b)
    monkeypatch.setattr(sums, "_PRODUCTS", products)
    monkeypatch.setattr(sums, "_ELEMENTS", elements)
    monkeypatch.setattr(sums, "_MATRICES", matrices)
    assert torch.equal(reference.contract(small.equation, given.a, given.b), expected)


def test_functions_scalars_and_c() -> None:
    a, b, c = (torch.randn(5, 5, generator=torch.Generator().manual_seed(at)) for at in range(3))
    functions = {"a_fn": torch.exp, "b_fn": torch.sin, "c_fn": torch.abs, "epilogue": torch.tanh}
    result = reference.contract("mk,kn->mn", a, b, c=c, alpha=0.5, beta=-2.0, **functions)
    x, y, z = (t.double().numpy() for t in (a, b, c))
    np.testing.assert_allclose(result.numpy(), np.tanh(0.5 * np.exp(x) @ np.sin(y) - 2 * np.abs(z)), rtol=1e-13)


def test_c_is_not_read_without_beta() -> None:
    c = torch.full((2, 2), math.nan)
    assert torch.equal(reference.contract("mk,kn->mn", torch.eye(2), torch.eye(2), c=c, beta=0), torch.eye(2).double())


def test_precision_rounds_values() -> None:
    third = torch.tensor([1 / 3])
    result = reference.contract("k,k->", third, torch.ones(1), precision=torch.float16)
    assert result.item() == third.half().item()


def test_integer_sums_wrap() -> None:
    """Two factors of 2^16 make 2^32: 0 in int32, and 2^32 in int64."""
    x = torch.tensor([1 << 16, 1], dtype=torch.int32)
    assert reference.contract("k,k->", x, x).item() == 1
    assert reference.contract("k,k->", x, x, accumulate=torch.int64).item() == (1 << 32) + 1
    assert reference.contract("k,k->", x.long(), x.long()).item() == (1 << 32) + 1


def test_rounds_once_to_the_asked_type() -> None:
    x = torch.tensor([1.0, 2.0**-11, 2.0**-11])
    assert reference.contract("k,k->", x, torch.ones(3), out_dtype=torch.float16).item() == 1 + 2.0**-10


def test_out_may_be_c() -> None:
    c = torch.ones(2, 2)
    result = reference.contract("mk,kn->mn", torch.eye(2), torch.eye(2), c=c, out=c)
    assert result is c
    assert torch.equal(c, torch.ones(2, 2) + torch.eye(2))


def test_clashing_extents_are_named() -> None:
    with pytest.raises(ShapeError, match=r"'k' has extents 3 and 4"):
        reference.contract("mk,kn->mn", torch.ones(2, 3), torch.ones(4, 2))
    with pytest.raises(ShapeError, match=r"'k' stands twice in 'kk': 1 and 3"):
        reference.contract("kk,kn->n", torch.ones(1, 3), torch.ones(3, 2))
