"""Groups of contractions of different extents, against torch one by one."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

import weft
from support import Backend
from weft.testing import random_operand

EQUATIONS = ("mk,kn->mn", "km,nk->nm", "bmk,bkn->mbn", "aibj,jcib->ca", "mk,k->m", "m,n->nm", "iik,kj->ij", "ab,ab->")


def group(
    equation: str, count: int, most: int, device: str = "cpu", dtype: torch.dtype = torch.float64, seed: int = 0
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Pairs of whole numbers whose extents are drawn, some of them 0 and 1."""
    rng = np.random.default_rng(seed)
    terms = equation.partition("->")[0].split(",")
    found = []
    for at in range(count):
        extents = {label: int(rng.integers(0 if at % 7 == 3 else 1, most + 1)) for label in "".join(terms)}
        shapes = [[extents[label] for label in term] for term in terms]
        found.append(tuple(
            random_operand(tuple(shape), dtype, seed + 2 * at + i, integers=True, device=device)
            for i, shape in enumerate(shapes)
        ))  # fmt: skip
    return found


def wanted(equation: str, pairs: list[tuple[Any, Any]]) -> list[torch.Tensor]:
    return [torch.einsum(equation, a, b) for a, b in pairs]


@pytest.mark.parametrize("equation", EQUATIONS)
def test_every_pair_on_the_cpu(equation: str) -> None:
    pairs = group(equation, 40, 6 if equation.index("-") > 7 else 20)
    for found, right in zip(weft.grouped(equation, pairs), wanted(equation, pairs), strict=True):
        assert torch.equal(found, right)


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128])
@pytest.mark.parametrize("equation", ["mk,kn->mn", "km,nk->nm", "mk,nk->mn", "km,kn->nm"])
def test_large_products_on_the_cpu(equation: str, dtype: torch.dtype, one_thread: None) -> None:
    """Each is a contraction of its own; pairs with nothing to sum are among them."""
    sizes = ((150, 90, 130), (3, 0, 4), (160, 170, 1), (64, 99, 300))
    extents = [dict(zip("mkn", each, strict=True)) for each in sizes]
    terms = equation.partition("->")[0].split(",")
    pairs = [
        tuple(
            random_operand(tuple(each[label] for label in term), dtype, at, integers=True)
            for at, term in enumerate(terms)
        )
        for each in extents
    ]
    plan = weft.plan_grouped(equation, pairs)
    assert "pairs contracted one by one" in plan.explain()
    right = wanted(equation, pairs)
    doubled = plan([(2 * a, b) for a, b in pairs])
    assert all(torch.equal(found, 2 * expected) for found, expected in zip(doubled, right, strict=True))
    for results in (plan(pairs), weft.grouped(equation, pairs)):
        assert all(map(torch.equal, results, right))
    out = [torch.full_like(each, float("nan")) for each in right]
    weft.grouped(equation, pairs, out=out)
    assert all(map(torch.equal, out, right))
    added = weft.grouped(equation, pairs, out=out, accumulate_into=True)
    assert all(torch.equal(found, 2 * expected) for found, expected in zip(added, right, strict=True))
    negative = weft.grouped(equation, pairs, epilogue=torch.neg)
    assert all(torch.equal(found, -expected) for found, expected in zip(negative, right, strict=True))


@pytest.mark.parametrize("equation", EQUATIONS[:5])
def test_every_pair_in_triton(equation: str, triton_backend: Backend) -> None:
    pairs = group(equation, 5, 4 if equation.index("-") > 7 else 19, triton_backend.device)
    results = weft.grouped(equation, pairs, backend="triton")
    for found, right in zip(results, wanted(equation, pairs), strict=True):
        assert torch.equal(found, right)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex128])
def test_rounding_stays_within_its_bound(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    shapes = [((m, k), (k, n)) for m, k, n in ((3, 700, 130), (200, 5, 8), (97, 33, 129), (1, 1, 1), (6, 300, 7))]
    pairs = [tuple(torch.randn(shape, dtype=dtype, generator=generator) for shape in pair) for pair in shapes]
    for found, (a, b) in zip(weft.grouped("mk,kn->mn", pairs), pairs, strict=True):
        assert found.dtype is dtype
        exact = a.to(torch.complex128) @ b.to(torch.complex128)
        bound = 4 * a.shape[1] * torch.finfo(dtype).eps * (a.abs().double() @ b.abs().double())
        assert ((found - exact).abs() <= bound).all()


def test_functions_and_types() -> None:
    pairs = group("mk,kn->mn", 20, 12)
    results = weft.grouped("mk,kn->mn", pairs, a_fn=torch.relu, b_fn=lambda x: x + 1, epilogue=lambda x: x * 0.5 + 1)
    for found, (a, b) in zip(results, pairs, strict=True):
        torch.testing.assert_close(found, torch.relu(a) @ (b + 1) * 0.5 + 1)
    for dtype in (torch.float16, torch.int32):  # one by one
        pairs = group("mk,kn->mn", 3, 5, dtype=dtype)
        for found, (a, b) in zip(weft.grouped("mk,kn->mn", pairs, backend="reference"), pairs, strict=True):
            assert torch.equal(found.double(), a.double() @ b.double())


def test_functions_in_triton(triton_backend: Backend) -> None:
    pairs = group("mk,kn->mn", 4, 17, triton_backend.device, torch.float32)
    results = weft.grouped("mk,kn->mn", pairs, b_fn=lambda x: x + 1, epilogue=torch.relu, backend="triton")
    for found, (a, b) in zip(results, pairs, strict=True):
        assert torch.equal(found, torch.relu(a @ (b + 1)))


TRITON_TYPES = (
    (torch.complex64,) * 2, (torch.complex128,) * 2, (torch.complex64, torch.float32),
    (torch.float64, torch.complex128),
    *((dtype,) * 2 for dtype in (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)),
    (torch.float8_e5m2, torch.float8_e4m3fn),
)  # fmt: skip


@pytest.mark.parametrize("types", TRITON_TYPES, ids=lambda types: "-".join(str(each)[6:] for each in types))
def test_types_in_triton(types: tuple[torch.dtype, torch.dtype], triton_backend: Backend) -> None:
    """Whole numbers, exactly; sums of int8 past its range, and conjugate views."""
    generator, shapes = torch.Generator().manual_seed(9), (((5, 20), (20, 3)), ((17, 2), (2, 18)), ((1, 0), (0, 2)))
    pairs: list[Any] = [
        tuple(_whole(one, dtype, generator).to(triton_backend.device) for one, dtype in zip(two, types, strict=True))
        for two in shapes
    ]
    if types[0].is_complex:
        pairs = [(a.conj(), b) for a, b in pairs]
    small = types[0].itemsize == 1
    result = {torch.int8: torch.int32, torch.uint8: torch.int32}.get(types[0], torch.float32 if small else None)
    for found, (a, b) in zip(weft.grouped("mk,kn->mn", pairs, backend="triton", out_dtype=result), pairs, strict=True):
        kind = torch.complex128 if any(dtype.is_complex for dtype in types) else torch.float64
        assert torch.equal(found.cpu().to(kind), a.cpu().to(kind) @ b.cpu().to(kind))


def _whole(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Small whole numbers, as far as the type holds them."""
    low, high = (0 if dtype is torch.uint8 else -9), (100 if dtype is torch.int8 else 10)
    re, im = (torch.randint(low, high, shape, generator=generator).double() for _ in range(2))
    return torch.complex(re, im).to(dtype) if dtype.is_complex else re.to(dtype)


def test_complex_functions_in_triton(triton_backend: Backend) -> None:
    pairs = group("mk,kn->mn", 4, 9, triton_backend.device, torch.complex64)
    for functions in (
        {"a_fn": lambda z: z * 1j, "epilogue": torch.conj},
        {"a_fn": torch.abs, "b_fn": lambda z: z.real},
        {"epilogue": lambda z: z * z.conj()},
    ):
        ends = [functions.get(name, lambda z: z) for name in ("a_fn", "b_fn", "epilogue")]
        results = weft.grouped("mk,kn->mn", pairs, backend="triton", **functions)
        for found, (a, b) in zip(results, pairs, strict=True):
            left, right = (fn(x).to(torch.complex64) for fn, x in zip(ends, (a, b), strict=False))
            torch.testing.assert_close(found, ends[2](left @ right).to(torch.complex64))
    mixed = weft.grouped("mk,kn->mn", pairs, backend="triton", epilogue=lambda z: z.abs(), out_dtype=torch.complex64)
    torch.testing.assert_close(mixed[0], (pairs[0][0] @ pairs[0][1]).abs().to(torch.complex64))
    places = [torch.ones_like(a @ b) for a, b in pairs]
    weft.grouped("mk,kn->mn", pairs, backend="triton", out=places, accumulate_into=True)
    torch.testing.assert_close(places, [a @ b + 1 for a, b in pairs])


def test_integer_functions_in_triton(triton_backend: Backend) -> None:
    pairs = group("mk,kn->mn", 3, 9, triton_backend.device, torch.int32)
    functions = {"b_fn": lambda x: x + 1, "epilogue": lambda x: x.clamp_min(0)}
    results = weft.grouped("mk,kn->mn", pairs, backend="triton", **functions)
    for found, (a, b) in zip(results, pairs, strict=True):
        assert torch.equal(found.cpu(), (a.cpu() @ (b.cpu() + 1)).clamp_min(0))


@pytest.mark.parametrize("name", ["cpu", "triton"])
def test_places_and_what_they_hold(name: str) -> None:
    pairs = group("mk,kn->mn", 6, 18, seed=4)
    out = [torch.full((n, m), 2.0, dtype=torch.float64).T for m, n in (x.shape for x in wanted("mk,kn->mn", pairs))]
    results = weft.grouped("mk,kn->mn", pairs, out=out, accumulate_into=True, backend=name)
    for found, place, right in zip(results, out, wanted("mk,kn->mn", pairs), strict=True):
        assert found is place
        assert torch.equal(place, right + 2)


def test_equal_pairs_that_lie_evenly_are_one_batch() -> None:
    a, b = torch.randn(30, 4, 5), torch.randn(30, 5, 6)
    plan = weft.plan_grouped("mk,kn->mn", list(zip(a, b, strict=True)))
    assert "batch" in plan.explain()
    torch.testing.assert_close(torch.stack(list(plan())), a @ b)


def test_a_plan_takes_other_values_and_other_tensors() -> None:
    pairs, others = group("mk,kn->mn", 9, 11, seed=2), group("mk,kn->mn", 9, 11, seed=2)
    plan = weft.plan_grouped("mk,kn->mn", pairs)
    before = plan()
    for a, b in others:
        a.mul_(3), b.add_(1)
    for results in (plan(others), plan()):  # it holds the others from then on
        for found, right in zip(results, wanted("mk,kn->mn", others), strict=True):
            assert torch.equal(found, right)
    for found, right in zip(before, wanted("mk,kn->mn", pairs), strict=True):  # results of a call are its own
        assert torch.equal(found, right)
    with pytest.raises(weft.ShapeError, match="b of pair 2 lies otherwise"):
        plan([(a, b.T.contiguous().T if at == 2 else b) for at, (a, b) in enumerate(others)])
    with pytest.raises(weft.ShapeError, match="of 9 pairs, 8 are given"):
        plan(others[:8])
    assert "9 pairs of 'mk,kn->mn', float64" in plan.explain()


def shaken(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Other tensors that lie alike, with other values."""
    return [(a.clone() + 1, b.clone() * 2) for a, b in pairs]


@pytest.mark.keeps
@pytest.mark.parametrize("backend", ["cpu", "triton"])
def test_a_group_that_lies_as_one_before_is_not_read_again(backend: str) -> None:
    pairs = group("mk,kn->mn", 7, 9, seed=5)
    first = weft.grouped("mk,kn->mn", pairs, backend=backend)
    before = [one.clone() for one in first]
    others = shaken(pairs)
    with mock.patch("weft.groups.plan.stack_of", side_effect=AssertionError("read again")):
        again = weft.grouped("mk,kn->mn", others, backend=backend)
    for found, right in zip(again, wanted("mk,kn->mn", others), strict=True):
        assert torch.equal(found, right)
    for found, right in zip(first, before, strict=True):
        assert torch.equal(found, right)


def test_what_lies_otherwise_is_read_anew() -> None:
    pairs = group("mk,kn->mn", 8, 9, seed=6)
    weft.grouped("mk,kn->mn", pairs)
    middle = 4
    a, b = pairs[middle]
    for changed in (
        (a.T.contiguous().T, b), (torch.cat([a, a]), b), (a, torch.cat([b, b], 1)[:, ::2]), (a, pairs[middle][1])
    ):  # fmt: skip
        others = [changed if at == middle else pair for at, pair in enumerate(pairs)]
        for found, right in zip(weft.grouped("mk,kn->mn", others), wanted("mk,kn->mn", others), strict=True):
            assert torch.equal(found, right)
    same = (torch.ones(3, 3), torch.ones(3, 3))
    for others in ([same, same, same], [same, (same[0] * 2, same[1]), same], [(same[0],) * 2] * 3):
        for found, right in zip(weft.grouped("mk,kn->mn", others), wanted("mk,kn->mn", others), strict=True):
            assert torch.equal(found, right)
    turned = [(x.to(torch.complex128), y.to(torch.complex128) * 1j) for x, y in pairs]
    for view in (turned, [(x.conj(), y) for x, y in turned], turned):
        for found, right in zip(weft.grouped("mk,kn->mn", view), wanted("mk,kn->mn", view), strict=True):
            assert torch.equal(found, right)
    with pytest.raises(weft.DTypeError, match="a of pair 4 is float32"):
        weft.grouped("mk,kn->mn", [(x.float(), y) if at == middle else (x, y) for at, (x, y) in enumerate(pairs)])


def test_remembered_groups_keep_no_tensor_and_read_closures_anew() -> None:
    pairs = group("mk,kn->mn", 3, 5, seed=7)
    weft.grouped("mk,kn->mn", pairs)
    kept = [weakref.ref(one) for pair in pairs for one in pair]
    del pairs
    assert not any(one() is not None for one in kept)
    pairs = group("mk,kn->mn", 3, 5, seed=7)
    for factor in (2.0, 3.0):
        found = weft.grouped("mk,kn->mn", pairs, epilogue=lambda x: x * factor)  # noqa: B023  it is called at once
        assert torch.equal(found[0], pairs[0][0] @ pairs[0][1] * factor)


def test_results_are_tensors_of_the_callers() -> None:
    pairs = group("mk,kn->mn", 3, 5, seed=8)
    slope = torch.ones((), dtype=torch.float64, requires_grad=True)
    first = weft.grouped("mk,kn->mn", pairs)[0]
    first.mul_(slope)
    (found,) = torch.autograd.grad(first.sum(), slope)
    assert found == (pairs[0][0] @ pairs[0][1]).sum()


def test_numpy_in_and_out() -> None:
    a = [np.arange(6.0).reshape(2, 3), np.ones((1, 3))]
    found = weft.grouped("mk,nk->mn", [(x, x) for x in a])
    assert all(isinstance(x, np.ndarray) for x in found)
    np.testing.assert_array_equal(found[0], a[0] @ a[0].T)


def test_nothing_is_an_empty_list() -> None:
    assert weft.grouped("mk,kn->mn", []) == []


A, B = torch.ones(2, 3), torch.ones(3, 4)


@pytest.mark.parametrize(
    ("pairs", "error", "message"),
    [
        ([(A, B), (A, B.double())], weft.DTypeError, "b of pair 1 is float64, that of pair 0 float32"),
        ([(A, B), (A, torch.ones(4, 4))], weft.ShapeError, "pair 1: label 'k' of 'mk,kn->mn' has extents 3 and 4"),
        ([(A, B), (A[0], B)], weft.ShapeError, "a of pair 1 has 1 dimension, 'mk' 2 labels"),
        ([(A, B), (A, B.to("meta"))], weft.UnsupportedError, "b of pair 1 is on meta"),
        ([(A, B), (A.to_sparse(), B)], weft.UnsupportedError, "a of pair 1 is torch.sparse_coo"),
        ([(A, B), (A.double(), B.double())], weft.DTypeError, "a of pair 1 is float64, that of pair 0 float32"),
        ([(A, B), A], weft.ArgumentError, "pair 1 is not a pair"),
        (A, weft.ArgumentError, "a list of pairs"),
        ([(A.double(), B)], weft.DTypeError, "float64 and float32"),
    ],
)
def test_what_is_wrong_is_named_by_its_place(pairs: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        weft.grouped("mk,kn->mn", pairs)


def test_other_mistakes() -> None:
    memory = np.zeros(100, np.uint8)
    odd = np.frombuffer(memory[4:36].data, np.float64).reshape(2, 2)
    with pytest.raises(weft.UnsupportedError, match="the tensor of pair 1 begins at an address"):
        weft.grouped("mk,kn->mn", [(np.frombuffer(memory[:32].data).reshape(2, 2), odd), (odd, odd)])
    with pytest.raises(weft.ArgumentError, match="did you mean 'epilogue'"):
        weft.grouped("mk,kn->mn", [(A, B)], epilog=torch.relu)
    with pytest.raises(weft.ShapeError, match=r"out of pair 0 has shape \(4, 2\), 'mn' \(\d"):
        weft.grouped("mk,kn->mn", [(A, B)], out=[torch.empty(4, 2)])
    with pytest.raises(weft.ArgumentError, match="pass out"):
        weft.grouped("mk,kn->mn", [(A, B)], accumulate_into=True)
    with pytest.raises(weft.ShapeError, match="a place for each pair: 1, not 2"):
        weft.grouped("mk,kn->mn", [(A, B)], out=[torch.empty(2, 4)] * 2)
    with pytest.raises(weft.NotationError, match="name every mode"):
        weft.grouped("...k,kn->...n", [(A, B)])


def test_a_call_that_is_refused_changes_nothing_of_the_plan() -> None:
    """Tensors that a refused call brought are not read by the next one, nor are its places written to."""
    pairs, out = [(A, B), (A[:1], B)], [torch.zeros(2, 4), torch.zeros(1, 4)]
    plan = weft.plan_grouped("mk,kn->mn", pairs, out=out)
    memory = np.zeros(100, np.uint8)
    odd = np.frombuffer(memory[2 : 2 + A.numel() * 4].data, np.float32).reshape(A.shape)
    places = [torch.zeros(2, 4), torch.zeros(1, 4)]
    for wrong, error in (
        ([(A, B), (A, B)], weft.ShapeError), ([(A, B)], weft.ShapeError),
        ([(torch.from_numpy(odd), B), (A[:1].clone(), B)], weft.UnsupportedError),
    ):  # fmt: skip
        with pytest.raises(error):
            plan(wrong, out=places)
        plan()
        assert not any(place.any() for place in places)
        torch.testing.assert_close(out[0], A @ B)
        torch.testing.assert_close(out[1], A[:1] @ B)


def test_threads_share_a_plan() -> None:
    sizes = [(3, 4), (7, 2), (1, 5)]
    generator = torch.Generator().manual_seed(0)

    def pairs() -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [(torch.rand(m, 6, generator=generator), torch.rand(6, n, generator=generator)) for m, n in sizes]

    plan, given = weft.plan_grouped("mk,kn->mn", pairs()), [pairs() for _ in range(64)]
    with ThreadPoolExecutor(4) as pool:
        for found, each in zip(pool.map(plan, given), given, strict=True):
            for one, (a, b) in zip(found, each, strict=True):
                torch.testing.assert_close(one, a @ b)


def test_a_plan_follows_the_number_of_threads() -> None:
    pairs = [(torch.rand(200, 10), torch.rand(10, 200)), (torch.rand(100, 10), torch.rand(10, 200))]
    plan, before = weft.plan_grouped("mk,kn->mn", pairs), torch.get_num_threads()
    try:
        for threads in (2, 1):
            torch.set_num_threads(threads)
            torch.testing.assert_close(plan()[0], pairs[0][0] @ pairs[0][1])
            assert f"in turn by {threads} thread" in plan.explain()
    finally:
        torch.set_num_threads(before)
