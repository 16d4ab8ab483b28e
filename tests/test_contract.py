"""The one list of cases through the public calls: every backend against the oracle, written over poison."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import weft
from support import Backend
from weft import reference
from weft.testing import assert_close, expectation, layout_strides, poisoned, random_operand
from weft_bench import cases


class TestResult:
    def test_is_new_and_contiguous(self, backend: Backend) -> None:
        a, b = random_operand((5, 7), torch.float16, 1, device=backend.device), torch.eye(7, 3, device=backend.device)
        d = weft.contract("mk,kn->nm", a, b.half(), backend=backend.name)
        assert d.shape == (3, 5)
        assert d.dtype == torch.float16
        assert d.is_contiguous()
        assert d.device == a.device
        assert torch.equal(d, a[:, :3].T)

    def test_repeats_bit_for_bit(self, backend: Backend) -> None:
        m, n = (5, 3) if backend.interpreted else (133, 117)  # the interpreter takes a while
        a, b = (random_operand(shape, torch.float32, 1, device=backend.device) for shape in ((m, 700), (700, n)))
        first, second = (weft.contract("mk,kn->mn", a, b, backend=backend.name) for _ in range(2))
        assert torch.equal(first, second)

    def test_result_type(self, backend: Backend) -> None:
        a = torch.ones(3, 3, device=backend.device)
        assert weft.contract("mk,kn->mn", a, a, out_dtype=torch.float64, backend=backend.name).dtype == torch.float64
        out = torch.empty(3, 3, dtype=torch.float16, device=backend.device)
        assert weft.contract("mk,kn->mn", a, a, out=out, backend=backend.name).dtype == torch.float16


class TestOut:
    """Every form of `out` that is allowed; the forbidden ones are in test_errors.py."""

    def test_part_of_a_larger_buffer(self, backend: Backend) -> None:
        buffer = torch.zeros(8, 8, device=backend.device)
        a = torch.ones(3, 2, device=backend.device)
        weft.contract("mk,nk->mn", a, a, out=buffer[2:5, 4:7], backend=backend.name)
        assert buffer.sum() == 18
        assert torch.equal(buffer[2:5, 4:7], torch.full((3, 3), 2.0, device=backend.device))

    def test_neighbour_of_an_input(self, backend: Backend) -> None:
        """A and D interleave in one buffer without sharing an element."""
        buffer = torch.ones(4, 6, device=backend.device)
        a, out = buffer[:, :3], buffer[:, 3:]
        weft.contract("mk,kn->mn", a, torch.eye(3, device=backend.device), out=out, alpha=5.0, backend=backend.name)
        assert torch.equal(a, torch.ones(4, 3, device=backend.device))
        assert torch.equal(out, torch.full((4, 3), 5.0, device=backend.device))

    @pytest.mark.parametrize("layout", ["contiguous", "permuted", "padded"])
    def test_c_itself(self, layout: str, backend: Backend) -> None:
        a = random_operand((5, 6), torch.float32, 1, integers=True, device=backend.device)
        c = random_operand((5, 5), torch.float32, 2, integers=True, layout=layout, device=backend.device)
        expected = 2 * (a @ a.T) + 3 * c
        assert weft.contract("mk,nk->mn", a, a, c=c, alpha=2, beta=3, out=c, backend=backend.name) is c
        assert torch.equal(c, expected)


class TestC:
    def test_other_type_than_the_result(self, backend: Backend) -> None:
        """C may be of any type that fits the accumulator."""
        a = torch.ones(3, 2, device=backend.device)
        c = torch.full((3, 3), 0.5, dtype=torch.float16, device=backend.device)
        assert torch.equal(
            weft.contract("mk,nk->mn", a, a, c=c, backend=backend.name), torch.full((3, 3), 2.5, device=backend.device)
        )

    def test_stride_zero(self, backend: Backend) -> None:
        a = torch.ones(3, 2, device=backend.device)
        row = torch.arange(3.0, device=backend.device)
        d = weft.contract("mk,nk->mn", a, a, c=row.expand(3, 3), backend=backend.name)
        assert torch.equal(d, 2 + row.expand(3, 3))


class TestPlan:
    def test_runs_on_new_tensors(self, backend: Backend) -> None:
        shapes = ((6, 9), (9, 5))
        a, b = (random_operand(shape, torch.float32, at, device=backend.device) for at, shape in enumerate(shapes))
        p = weft.plan("mk,kn->mn", a, b, backend=backend.name)
        assert p.shape == (6, 5)
        assert p.dtype == torch.float32
        for seed in (10, 20):
            x = random_operand(shapes[0], torch.float32, seed, device=backend.device)
            y = random_operand(shapes[1], torch.float32, seed + 1, device=backend.device)
            assert_close(p(x, y), *expectation("mk,kn->mn", x, y))

    def test_scalars_and_c_belong_to_the_call(self, backend: Backend) -> None:
        a = random_operand((4, 4), torch.float64, 1, integers=True, device=backend.device)
        c = random_operand((4, 4), torch.float64, 2, integers=True, device=backend.device)
        p = weft.plan("mk,kn->mn", a, a, backend=backend.name)
        assert torch.equal(p(a, a), a @ a)
        assert torch.equal(p(a, a, c=c, alpha=0.5, beta=2.0), 0.5 * (a @ a) + 2 * c)
        assert torch.equal(p(a, a, alpha=-1), -(a @ a))
        out = torch.full((4, 4), torch.nan, dtype=torch.float64, device=backend.device)
        assert p(a, a, c=c, out=out) is out
        assert torch.equal(out, a @ a + c)
        assert torch.equal(p(a, a, c=c.T, beta=1), a @ a + c.T)
        assert torch.equal(p(a, a), a @ a)

    def test_result_in_another_layout(self, backend: Backend) -> None:
        a = random_operand((4, 4), torch.float32, 1, integers=True, device=backend.device)
        p = weft.plan("mk,kn->mn", a, a, backend=backend.name)
        for layout in ("permuted", "padded", "strided", "offset"):
            guarded = poisoned((4, 4), torch.float32, layout=layout, device=backend.device)
            p(a, a, out=guarded.tensor)
            guarded.check_guards()
            assert torch.equal(guarded.tensor, a @ a)

    def test_explains_itself(self, backend: Backend) -> None:
        a = torch.ones(16, 24, dtype=torch.float16, device=backend.device)
        p = weft.plan("mk,nk->mn", a, a, backend=backend.name)
        text = p.explain()
        for word in ("m", "n", "k", "16", "24", str(p.schedule)):
            assert word in text
        assert p.workspace_bytes >= 0
        assert "mk,nk->mn" in repr(p)


class TestEinsum:
    @pytest.mark.parametrize(
        ("equation", "shapes"),
        [
            ("ij->ji", [(3, 4)]),
            ("ii->i", [(4, 4)]),
            ("ii", [(4, 4)]),
            ("ij->", [(3, 4)]),
            ("ij->i", [(3, 4)]),
            ("...i->...", [(2, 3, 4)]),
            ("->", [()]),
            ("ij,jk", [(3, 4), (4, 5)]),
            ("ab,bc,cd->ad", [(3, 4), (4, 5), (5, 2)]),
            ("ab,bc,cd->da", [(3, 4), (4, 5), (5, 2)]),
            ("a,b,c->cab", [(3,), (4,), (2,)]),
            ("ab,ac,ad->bcd", [(3, 4), (3, 5), (3, 2)]),
            ("ij,kl,mn->", [(2, 3), (3, 2), (2, 2)]),
            ("ab,bb,bc,cd,de->ae", [(2, 3), (3, 3), (3, 4), (4, 2), (2, 5)]),
            ("...ab,...bc,...cd->...ad", [(2, 3, 4), (2, 4, 5), (5, 2)]),
        ],
    )
    def test_agrees_with_numpy(self, equation: str, shapes: list[tuple[int, ...]], backend: Backend) -> None:
        tensors = [
            random_operand(shape, torch.float64, at, integers=True, device=backend.device)
            for at, shape in enumerate(shapes)
        ]
        result = weft.einsum(equation, *tensors, backend=backend.name)
        expected = np.einsum(equation, *(x.cpu().numpy() for x in tensors))
        np.testing.assert_array_equal(result.cpu().numpy(), expected)
        storages = [x.untyped_storage().data_ptr() for x in tensors]
        assert result.untyped_storage().data_ptr() not in storages, "a view"
        assert result.is_contiguous()

    def test_interleaved(self, backend: Backend) -> None:
        a, b = (random_operand((3, 3), torch.float64, at, integers=True, device=backend.device) for at in (1, 2))
        assert torch.equal(weft.einsum(a, ("x", 1), b, (1, "y"), ("y", "x"), backend=backend.name), (a @ b).T)
        assert torch.equal(weft.einsum(a, (2, 0), b, (0, 1), backend=backend.name), (b.T @ a.T))
        assert torch.equal(weft.einsum(a, [..., 0], b, [0, 1], [..., 1], backend=backend.name), a @ b)

    def test_out_and_epilogue(self, backend: Backend) -> None:
        a = random_operand((3, 3), torch.float32, 1, integers=True, device=backend.device)
        guarded = poisoned((3, 3), torch.float64, layout="permuted", device=backend.device)
        result = weft.einsum("ab,bc,cd->ad", a, a, a, out=guarded.tensor, epilogue=torch.relu, backend=backend.name)
        assert result is guarded.tensor
        guarded.check_guards()
        assert torch.equal(result, torch.relu(a @ a @ a).double())

    def test_one_operand_is_copied_exactly(self, backend: Backend) -> None:
        """Values that arithmetic could change: infinities, subnormals, the largest."""
        info = torch.finfo(torch.float32)
        values = torch.tensor([torch.inf, -torch.inf, info.max, info.tiny / 4, -0.5, 3.0], device=backend.device)
        result = weft.einsum("ab->ba", values.reshape(2, 3), backend=backend.name)
        assert torch.equal(result, values.reshape(2, 3).T)


class TestArrays:
    """NumPy arrays go in without copies and come back as NumPy."""

    def test_views_and_read_only_ones(self) -> None:
        a = np.arange(24.0).reshape(4, 6)[::2, ::3]
        b = np.broadcast_to(np.array([1.0, 2.0]), (2, 2))
        assert not b.flags.writeable
        np.testing.assert_array_equal(weft.contract("mk,kn->mn", a, b), a @ b)

    def test_out_c_plan_and_einsum(self) -> None:
        a, c, out = np.eye(3), np.ones((3, 3)), np.full((3, 3), np.nan)
        assert weft.contract("mk,kn->mn", a, a, c=c, out=out) is out
        np.testing.assert_array_equal(out, np.eye(3) + 1)
        p = weft.plan("mk,kn->mn", a, a)
        assert isinstance(p(a, a), np.ndarray)
        assert p(a, a, out=out) is out
        np.testing.assert_array_equal(out, a)
        np.testing.assert_array_equal(weft.einsum("ij,jk,kl", a, c, a), c)

    def test_complex_and_half(self) -> None:
        z = np.array([[1 + 2j, 3], [0, 1j]])
        np.testing.assert_array_equal(weft.contract("mk,kn->mn", z, z.conj()), z @ z.conj())
        h = np.array([[1.5, 2], [3, 4]], dtype=np.float16)
        d = weft.contract("mk,kn->mn", h, h)
        assert d.dtype == np.float16
        np.testing.assert_array_equal(d, h @ h)


class TestViews:
    """Conjugate and negative views are what they say: pytorch#177474, #188023 ignore the bits that say so."""

    def test_conjugates(self) -> None:
        a, b = (random_operand((4, 4), torch.complex128, at, integers=True) for at in (1, 2))
        for x, y in ((a.conj(), b), (a, b.conj()), (a.conj(), b.conj()), (a.mH, b)):
            assert torch.equal(weft.contract("mk,kn->mn", x, y), x.resolve_conj() @ y.resolve_conj())

    def test_conjugate_c(self) -> None:
        a, c = (random_operand((4, 4), torch.complex128, at, integers=True) for at in (1, 2))
        d = weft.contract("mk,kn->mn", a, a, c=c.conj(), beta=2.0)
        assert torch.equal(d, a @ a + 2 * c.conj().resolve_conj())

    def test_functions_see_conjugated_values(self) -> None:
        a = random_operand((3, 3), torch.complex128, 1, integers=True)
        d = weft.contract("mk,kn->mn", a.conj(), torch.eye(3, dtype=torch.complex128), a_fn=lambda x: x * 1j)
        assert torch.equal(d, a.conj().resolve_conj() * 1j)

    def test_negatives(self, backend: Backend) -> None:
        z = random_operand((4, 4), torch.complex64, 1, integers=True, device=backend.device)
        x = z.conj().imag
        assert x.is_neg()
        eye = torch.eye(4, device=backend.device)
        assert torch.equal(weft.contract("mk,kn->mn", x, eye, backend=backend.name), -z.imag)
        assert torch.equal(weft.contract("mk,kn->mn", eye, eye, c=x, backend=backend.name), eye - z.imag)
        assert torch.equal(weft.einsum("mk->km", x, backend=backend.name), -z.imag.T)


def test_layout_strides_are_what_they_claim() -> None:
    assert layout_strides((2, 3), "padded") == ((6, 1), 0)
    assert layout_strides((2, 3), "offset") == ((3, 1), 1)
    assert layout_strides((1, 3), "expanded") == ((1, 0), 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8, torch.bool, torch.complex64], ids=str)
def test_one_operand_that_is_only_rearranged_arrives_bit_for_bit(dtype: torch.dtype, backend: Backend) -> None:
    """Signed zeros and small integers too: nothing is summed, so nothing is multiplied by one."""
    x = torch.tensor([[-0.0, 1.0, 0.0], [2.0, -3.0, 1.0]], device=backend.device).to(dtype)
    moved = weft.einsum("ab->ba", x, backend=backend.name)
    assert moved.dtype == dtype
    assert torch.equal(moved, x.T)
    if dtype is torch.float32:
        assert torch.equal(torch.signbit(moved), torch.signbit(x.T))


@pytest.mark.parametrize("precision", ["tf32", "tf32x3"])
@pytest.mark.parametrize(("stored", "total"), [(torch.float32, torch.float64), (torch.complex64, torch.complex128)])
def test_sums_in_double_precision_are_of_ieee_products(
    backend: Backend, precision: str, stored: torch.dtype, total: torch.dtype
) -> None:
    a, b = (random_operand(shape, stored, seed, device=backend.device) for seed, shape in enumerate(((4, 20), (20, 3))))
    d = weft.contract("mk,kn->mn", a, b, precision=precision, accumulate=total, out_dtype=total, backend=backend.name)
    assert torch.allclose(d, a.to(total) @ b.to(total), rtol=1e-12)


@pytest.mark.parametrize(("stored", "product"), [(torch.float32, torch.complex64), (torch.float64, torch.complex128)])
def test_real_operands_may_have_complex_products(backend: Backend, stored: torch.dtype, product: torch.dtype) -> None:
    a, b = (random_operand(shape, stored, seed, device=backend.device) for seed, shape in enumerate(((4, 20), (20, 3))))
    d = weft.contract("mk,kn->mn", a, b, precision=product, out_dtype=product, backend=backend.name)
    assert torch.allclose(d, (a.double() @ b.double()).to(product), atol=1e-4)
    real = weft.contract("mk,kn->mn", a, b, precision=product, epilogue=lambda v: v.real, backend=backend.name)
    assert torch.equal(real, d.real)


def test_lone_modes_and_batches_are_cut_together() -> None:
    """Blocks of many matrices reach less far along a mode that is summed where they are packed."""
    a, b = torch.ones(31, 512, 1024, dtype=torch.int8), torch.ones(512, 31, dtype=torch.int8)
    d, positive = weft.contract(
        "abc,ba->b", a, b, a_fn=torch.relu, epilogue=lambda v: (v, v > 0), out_dtype=torch.int32, backend="cpu"
    )
    assert bool((d == 31 * 1024).all())
    assert bool(positive.all())


def test_einsum_of_several_operands_that_need_out_dtype_says_why() -> None:
    byte = torch.ones(2, 2, dtype=torch.int8)
    with pytest.raises(weft.DTypeError, match="intermediate results do not fit their type"):
        weft.einsum("ij,jk,kl->il", byte, byte, byte, out_dtype=torch.int32)


def test_limits_below_zero_are_refused() -> None:
    with pytest.raises(weft.UnsupportedError, match="0 or more, not -1"):
        weft.contract("ij,jk->ik", torch.ones(2, 2), torch.ones(2, 2), workspace_limit=-1)


@pytest.mark.parametrize("precision", ["tf32", "tf32x3"])
def test_products_of_vectors_in_a_batch_are_not_shortened(backend: Backend, precision: str) -> None:
    a, b = (
        random_operand(shape, torch.float32, seed, device=backend.device)
        for seed, shape in enumerate(((9, 7), (7, 9, 3)))
    )
    d = weft.contract("ab,bac->bc", a, b, precision=precision, backend=backend.name)
    assert torch.allclose(d, torch.einsum("ab,bac->bc", a, b), atol=1e-5)


def test_einsum_takes_a_place_for_each_result() -> None:
    a, b, places = torch.rand(4, 5), torch.rand(5, 6), (torch.empty(4, 6), torch.empty(4, 6))
    found = weft.einsum("ik,kj->ij", a, b, epilogue=lambda v: (v, v * 2), out=places)
    assert found is places
    torch.testing.assert_close(places[0], a @ b)
    torch.testing.assert_close(places[1], 2 * (a @ b))
    with pytest.raises(weft.ShapeError, match="out overlaps operand 0 in memory"):
        weft.einsum("ik,kj->ij", a[:, :5], b[:, :5], epilogue=lambda v: (v, v * 2), out=(places[0][:, :5], a))


def test_reference_is_the_oracle() -> None:
    for case in cases.general():
        if case.layouts[3] == "contiguous":
            given = cases.operands(case)
            options = case.options()
            d = weft.contract(case.equation, given.a, given.b, c=given.c, backend="reference", **options)
            expected = reference.contract(case.equation, given.a, given.b, c=given.c, **options)
            assert torch.equal(d, expected), case.name


def test_auto_is_cpu_here() -> None:
    a = torch.ones(2, 2)
    assert weft.plan("mk,kn->mn", a, a).schedule == weft.plan("mk,kn->mn", a, a, backend="cpu").schedule


def test_an_operand_is_copied_whole_only_where_the_plan_says_so(backend: Backend) -> None:
    """Planned, not run. On a GPU a copy may be the fastest way; no call needs one."""
    a = torch.empty(512, 130, 256, device=backend.device)
    b = torch.empty(256, 512, 130, device=backend.device)
    p = weft.plan("abc,cad->bd", a, b, backend=backend.name)
    copied = "ttgt" in str(p.schedule)
    assert (p.workspace_bytes >= a.nbytes) if copied else (0 <= p.workspace_bytes < a.nbytes / 4)
    assert not copied or backend.device != "cpu"
    lean = weft.plan("abc,cad->bd", a, b, backend=backend.name, workspace_limit=a.nbytes // 4)
    assert "ttgt" not in str(lean.schedule)
    assert 0 <= lean.workspace_bytes < a.nbytes / 4


def test_workspace_limit_is_kept_or_refused(backend: Backend) -> None:
    a = torch.ones(40, 50, 60, device=backend.device)
    b = torch.ones(60, 40, 30, device=backend.device)
    needed = weft.plan("abc,cad->bd", a, b, backend=backend.name).workspace_bytes
    try:
        least = weft.plan("abc,cad->bd", a, b, backend=backend.name, workspace_limit=0).workspace_bytes
    except weft.WorkspaceError as error:
        least = int(str(error).split(" takes ")[1].split()[0])  # the least that a plan needs is named
    assert 0 <= least <= needed
    assert weft.plan("abc,cad->bd", a, b, backend=backend.name, workspace_limit=least).workspace_bytes <= least
    assert weft.plan("abc,cad->bd", a, b, backend=backend.name, workspace_limit=needed).workspace_bytes <= needed
