"""Whole numbers are exact, wrap around as the accumulator and the result's type do, and have 64 bits where asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import weft
from support import Backend
from weft.planner.schedule import Target
from weft.spec.dtypes import fits_int32

INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
EQUATIONS = [
    ("mk,kn->nm", (6, 40), (40, 5)), ("mk,k->m", (9, 30), (30,)), ("zmk,zkn->zmn", (2, 3, 5), (2, 5, 4)),
    ("m,n->mn", (5,), (6,)), ("mkx,kn->mn", (3, 4, 5), (4, 6)),
]  # fmt: skip


def anything(shape: tuple[int, ...], dtype: torch.dtype, seed: int, device: str) -> torch.Tensor:
    """Values over the whole range of a type."""
    limits = torch.iinfo(dtype)
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(limits.min, limits.max, shape, dtype=dtype, generator=generator).to(device)


def exact(equation: str, a: torch.Tensor, b: torch.Tensor, total: torch.dtype) -> torch.Tensor:
    """The sum in Python's integers, reduced to the accumulator's range."""
    term_a, rest = equation.split(",")
    term_b, output = rest.split("->")
    extents = dict(zip(term_a + term_b, (*a.shape, *b.shape), strict=True))
    labels = output + "".join(label for label in extents if label not in output)
    objects = [x.cpu().numpy().astype(object) for x in (a, b)]
    spread = []
    for term, values in zip((term_a, term_b), objects, strict=True):
        order = [term.index(label) for label in labels if label in term]
        index = tuple(slice(None) if label in term else None for label in labels)
        spread.append(values.transpose(order)[index])
    sums = spread[0] * spread[1]
    for _ in labels[len(output) :]:
        sums = sums.sum(axis=-1)
    bits = torch.iinfo(total).bits
    wrapped = [(int(value) + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1) for value in sums.reshape(-1)]
    return torch.tensor(wrapped, dtype=total).reshape([extents[label] for label in output])


@pytest.mark.one_of(3)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize(("equation", "shape_a", "shape_b"), EQUATIONS)
def test_sums_wrap_around(
    backend: Backend, equation: str, shape_a: tuple[int, ...], shape_b: tuple[int, ...], dtype: torch.dtype
) -> None:
    if backend.interpreted and dtype not in (torch.int8, torch.int64):
        pytest.skip("one narrow and one wide type are interpreted")
    a, b = anything(shape_a, dtype, 1, backend.device), anything(shape_b, dtype, 2, backend.device)
    narrow = torch.int64 if dtype is torch.int64 else torch.int32
    for total in dict.fromkeys((narrow, torch.int64)):
        for result in dict.fromkeys((total, torch.int32, torch.int8)):
            d = weft.contract(equation, a, b, accumulate=total, out_dtype=result, backend=backend.name)
            assert d.dtype == result
            assert torch.equal(d.cpu(), exact(equation, a, b, total).to(result)), (total, result)


def test_validation_is_exact(backend: Backend) -> None:
    a, b = anything((17, 33), torch.int8, 1, backend.device), anything((33, 19), torch.int8, 2, backend.device)
    options = {"out_dtype": torch.int32, "backend": backend.name}
    d = weft.contract("mk,kn->mn", a, b, **options, validate=True)
    assert torch.equal(d.cpu(), exact("mk,kn->mn", a, b, torch.int32))
    assert bool((weft.error_bound("mk,kn->mn", a, b, out_dtype=torch.int32) == 0).all())


def test_alpha_beta_and_c_are_whole(backend: Backend) -> None:
    a, b = anything((5, 6), torch.int16, 1, backend.device), anything((6, 7), torch.int16, 2, backend.device)
    c = anything((5, 7), torch.int32, 3, backend.device)
    d = weft.contract("mk,kn->mn", a, b, c=c, alpha=3, beta=-2, out_dtype=torch.int32, backend=backend.name)
    expected = 3 * exact("mk,kn->mn", a, b, torch.int64) - 2 * c.cpu().long()
    assert torch.equal(d.cpu(), expected.to(torch.int32))
    with pytest.raises(weft.DTypeError, match="is no integer"):
        weft.contract("mk,kn->mn", a, b, alpha=0.5, out_dtype=torch.int32, backend=backend.name)


def test_bool_has_algebras_but_no_sum(backend: Backend) -> None:
    a, b = torch.rand(5, 6) > 0.5, torch.rand(6, 7) > 0.5
    with pytest.raises(weft.DTypeError, match="bool has no sum of products"):
        weft.contract("mk,kn->mn", a, b, backend=backend.name)
    d = weft.contract("mk,kn->mn", a, b, algebra="or_and", backend="reference", validate=True)
    assert torch.equal(d, (a.int() @ b.int()) > 0)


@pytest.mark.gpu
@pytest.mark.parametrize("equation", ["mk,nk->mn", "mk,kn->mn", "km,kn->mn"])
def test_matrix_units_are_exact_at_size(equation: str) -> None:
    """Products of int8 on the tensor cores, operands along k or packed."""
    extents = {"m": 512, "n": 768, "k": 2048}
    a, b = (
        anything(tuple(extents[label] for label in term), torch.int8, at, "cuda")
        for at, term in enumerate(equation.split("->")[0].split(","))
    )
    d = weft.contract(equation, a, b, out_dtype=torch.int32)
    assert torch.equal(d.double(), torch.einsum(equation, a.double(), b.double()))


def test_sums_that_could_leave_int32_keep_off_instructions_that_do_not_wrap() -> None:
    """`mma.sync` of int8 saturates; wgmma, which alone reads TMA tiles, wraps around."""
    matrix = pytest.importorskip("weft.gpu.gett.family")
    hopper = Target("cuda", 0, "NVIDIA H200", 90, 132, 232448)
    for k, able in ((131071, True), (131072, False)):
        a, b = (torch.empty(64, k, dtype=torch.int8, device="meta") for _ in range(2))
        described = weft.plan("mk,nk->mn", a, b, out_dtype=torch.int32, backend="reference").contraction
        reason = matrix.supports(described, hopper)
        assert (reason is None) == able
        assert able or "do not wrap" in reason


@pytest.mark.gpu
@pytest.mark.parametrize("side", [8, 16, 64, 256])
def test_long_sums_wrap_on_the_gpu(side: int) -> None:
    k = 2**17 + 2**10
    a = torch.full((side, k), -128, dtype=torch.int8, device="cuda")
    d = weft.contract("mk,nk->mn", a, a, out_dtype=torch.int32)
    assert bool((d == k * 2**14 - 2**32).all())


def test_functions_wrap_around_in_the_types_that_they_see(backend: Backend) -> None:
    """A's function in the product's type, the epilogue in the accumulator's; the oracle, and `validate`, alike."""
    byte = torch.tensor([[100]], dtype=torch.uint8, device=backend.device)
    one = torch.ones_like(byte)
    found = weft.contract(
        "mk,kn->mn", byte, one, a_fn=lambda v: v - 128, out_dtype=torch.int32, backend=backend.name, validate=True
    )
    assert found.item() == 228
    large = torch.tensor([[2**30]], dtype=torch.int32, device=backend.device)
    found = weft.contract(
        "mk,kn->mn", large, torch.ones_like(large), epilogue=lambda v: torch.where(v + v > 0, 1, 0).to(v.dtype),
        backend=backend.name, validate=True,
    )  # fmt: skip
    assert found.item() == 0


@pytest.mark.parametrize("beta", [2**31, -(2**31) - 1, 2**32 + 3])
def test_factors_wrap_around(backend: Backend, beta: int) -> None:
    one = torch.ones(1, 1, dtype=torch.int32, device=backend.device)
    found = weft.contract("mk,kn->mn", one, one, c=one, beta=beta, backend=backend.name)
    assert found.item() == (1 + beta + 2**31) % 2**32 - 2**31


BIG = torch.int64
# The longest sum of the extreme value's squares that int32 holds, by type.
LONGEST = {torch.int8: 131071, torch.uint8: 33025, torch.int16: 1, torch.int32: 0}


def extreme(dtype: torch.dtype) -> int:
    limits = torch.iinfo(dtype)
    return limits.max if dtype is torch.uint8 else limits.min


def full(shape: tuple[int, ...], dtype: torch.dtype, device: str = "cpu", value: int | None = None) -> torch.Tensor:
    return torch.full(shape, extreme(dtype) if value is None else value, dtype=dtype, device=device)


@pytest.mark.parametrize("dtype", LONGEST, ids=str)
def test_the_longest_sum_that_int32_holds(dtype: torch.dtype) -> None:
    k, square = LONGEST[dtype], extreme(dtype) ** 2
    assert k * square < 2**31 <= (k + 1) * square
    assert fits_int32(dtype, k) == (k > 0)
    assert not fits_int32(dtype, k + 1)


@pytest.mark.parametrize("result", [torch.int64, torch.float64], ids=str)
@pytest.mark.parametrize("dtype", LONGEST, ids=str)
@pytest.mark.parametrize("equation", ["k,k->", "mk,kn->mn", "zk,zk->z", "mkz,kzn->nm"])
def test_sums_past_int32(backend: Backend, equation: str, dtype: torch.dtype, result: torch.dtype) -> None:
    k = max(LONGEST[dtype] + 5, 4)
    if backend.interpreted and (k > 1000 or equation != "mk,kn->mn"):
        pytest.skip("long sums take the interpreter minutes")
    extents = {"k": k, "m": 3, "n": 2, "z": 2}
    value = extreme(dtype) if dtype is not torch.int32 else -(2**20)
    a, b = (full(tuple(extents[label] for label in term), dtype, backend.device, value)
            for term in equation.split("->")[0].split(","))  # fmt: skip
    right = value**2 * k * (2 if equation.startswith("mkz") else 1)
    d = weft.contract(equation, a, b, out_dtype=result, backend=backend.name)
    assert bool((d == torch.tensor(float(right) if result.is_floating_point else right, dtype=result)).all())
    assert bool((weft.error_bound(equation, a, b, out_dtype=result) < 1e-3 * abs(right)).all())


def test_sums_of_one_operand_past_int32(backend: Backend) -> None:
    x = full((8, 3), torch.int32, backend.device)
    d = weft.einsum("km->m", x, out_dtype=BIG, backend=backend.name)
    assert d.tolist() == [8 * -(2**31)] * 3


def test_validation_agrees() -> None:
    a = full((70000,), torch.uint8)
    assert weft.contract("k,k->", a, a, out_dtype=BIG, validate=True).item() == 70000 * 255**2
    assert weft.reference.contract("k,k->", a, a, out_dtype=BIG).item() == 70000 * 255**2
    place = torch.zeros((), dtype=BIG)
    assert weft.reference.contract("k,k->", a, a, out=place).item() == 70000 * 255**2


def test_values_rounded_to_a_narrow_type() -> None:
    a = full((70000,), torch.int64, value=255)
    assert weft.contract("k,k->", a, a, precision=torch.uint8).item() == 70000 * 255**2


def test_what_joins_a_sum_has_room(backend: Backend) -> None:
    """alpha, C and the epilogue of short sums, which alone int32 would hold."""
    a = full((4, 4), torch.int8, backend.device, value=100)
    how = {"out_dtype": BIG, "backend": backend.name}
    addend = full((4, 4), BIG, backend.device, value=2**40)
    for _ in range(2):  # the second call is known
        assert weft.contract("mk,kn->mn", a, a, **how).tolist() == [[40000] * 4] * 4
        assert weft.contract("mk,kn->mn", a, a, alpha=10**7, **how).tolist() == [[4 * 10**11] * 4] * 4
        assert weft.contract("mk,kn->mn", a, a, c=addend, **how).tolist() == [[40000 + 2**40] * 4] * 4
        square = weft.contract("mk,kn->mn", a, a, epilogue=_square, **how)
        assert square.tolist() == [[40000**2] * 4] * 4
    plan = weft.plan("mk,kn->mn", a, a, **how)
    for alpha in (1, 10**7, 1, 2**33):
        assert plan(a, a, alpha=alpha).tolist() == [[40000 * alpha] * 4] * 4


def _square(v: torch.Tensor) -> torch.Tensor:
    return v * v


def test_short_sums_are_made_in_int32() -> None:
    """So that matrix instructions serve them, which add in nothing wider."""
    gett = pytest.importorskip("weft.gpu.gett.family")
    hopper = Target("cuda", 0, "NVIDIA H200", 90, 132, 232448)
    for k, narrow in ((131071, True), (131072, False)):
        a, b = (torch.empty(64, k, dtype=torch.int8, device="meta") for _ in range(2))
        plan = weft.plan("mk,nk->mn", a, b, out_dtype=BIG, backend="reference")
        assert plan.request.arithmetic.accumulate is BIG
        assert (plan.contraction.arithmetic.accumulate is torch.int32) == narrow
        assert (gett.supports(plan.contraction, hopper) is None) == narrow
        real = weft.plan("mk,nk->mn", a, b, out_dtype=torch.float32, epilogue=torch.relu, backend="reference")
        assert real.request.arithmetic.accumulate is (torch.int32 if narrow else BIG)


def test_a_type_of_sums_that_is_asked_for_is_taken() -> None:
    a = full((70000,), torch.uint8)
    found = weft.contract("k,k->", a, a, out_dtype=BIG, accumulate=torch.int32)
    assert found.item() == (70000 * 255**2 + 2**31) % 2**32 - 2**31
    assert weft.contract("k,k->", a, a, out_dtype=torch.int32).item() == found.item()


M = torch.full((8, 8), 2**20, dtype=torch.int32)
ONE = torch.ones_like(M)
CALLS: dict[str, tuple[Callable[[torch.dtype], Any], int]] = {
    "einsum of three": (lambda to: weft.einsum("ij,jk,kl->il", M, M, ONE, out_dtype=to), 2**46),
    "of three, alpha": (lambda to: weft.einsum("ij,jk,kl->il", M, M, ONE, out_dtype=to, alpha=2), 2**47),
    "of three, into out": (lambda to: weft.einsum("ij,jk,kl->il", M, M, ONE, out=torch.zeros(8, 8, dtype=to)), 2**46),
    "of four, function": (
        lambda to: weft.einsum("ij,jk,kl,lm->im", M, M, ONE, ONE, out_dtype=to, epilogue=lambda v: v + v), 2**50,
    ),
    "network": (lambda to: weft.network("ij,jk,kl->il", M, M, ONE, out_dtype=to)(M, M, ONE), 2**46),
    "type in words": (
        lambda to: weft.network("ij,jk,kl->il", M, M, ONE, out_dtype=str(to).removeprefix("torch."))(M, M, ONE), 2**46,
    ),
    "chain": (lambda to: weft.chain("ij,jk,kl->il", M, M, ONE, out_dtype=to), 2**46),
    "matmul": (lambda to: weft.matmul(M, M, out_dtype=to), 2**43),
    "tensordot": (lambda to: weft.tensordot(M, M, 1, out_dtype=to), 2**43),
    "grouped": (lambda to: weft.grouped("mk,kn->mn", [(M, M), (M[:3], M)], out_dtype=to)[1], 2**43),
    "grouped evenly": (lambda to: weft.grouped("mk,kn->mn", [(M, M), (M, M)], out_dtype=to)[1], 2**43),
    "compiled": (lambda to: torch.compile(lambda x: weft.matmul(x, x, out_dtype=to), backend="eager")(M), 2**43),
}  # fmt: skip


@pytest.mark.parametrize("result", [torch.int64, torch.float64], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_every_call(name: str, result: torch.dtype) -> None:
    call, right = CALLS[name]
    found = call(result)
    assert found.dtype is result
    assert bool((found == right).all()), found


def test_intermediates_of_a_network_wrap_as_they_are_asked_to() -> None:
    net = weft.network("ij,jk,kl->il", M, M, ONE, out_dtype=BIG, accumulate=torch.int32)
    assert net(M, M, ONE).tolist() == [[0] * 8] * 8
    assert weft.einsum("ij,jk,kl->il", M, M, ONE).tolist() == [[0] * 8] * 8
