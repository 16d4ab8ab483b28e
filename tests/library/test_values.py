"""What torch's operations compute, held against the oracle in float64 within its bounds, on the CPU and on a GPU.

On a GPU the marker `gpu` selects them: `pytest -m gpu tests/library`. "stand-in" is what is built for a GPU, run on the
CPU, but for products that torch has on a GPU alone.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import weft
from library.calls import (
    BRAIN,
    COMPLEX,
    DOUBLE,
    EIGHTH,
    HALF,
    SINGLE,
    SIZES,
    Call,
    case,
    check,
    check_permutation,
    moved,
    on_each,
    place_of,
    run,
    target_for,
    without_halves,  # noqa: F401  for every test here
)
from weft import reference
from weft.library import family, products
from weft.planner.options import Options
from weft.plans.resolving import resolved
from weft.spec import Layout, parse
from weft.testing import random_operand

EQUATIONS = (
    "mk,kn->mn", "km,nk->nm", "bmk,bkn->bnm", "bmk,kbn->mbn", "amk,kbn->bnma", "akbl,lckd->dabc", "abkl,klcd->abcd",
    "k,k->", "mk,k->m", "k,kn->n", "bk,bk->b", "m,n->nm", "ab,ba->ab", "ab,b->ba", "mik,kn->mn", "mi,n->nm", "ai,b->",
    "mml,mn->nm", "kkm,kn->mn", "mp,pn->mn", ",->", "a,->a",
)  # fmt: skip


@on_each
@pytest.mark.parametrize("dtype", [SINGLE, HALF, COMPLEX, torch.int32], ids=str)
@pytest.mark.parametrize("equation", EQUATIONS)
def test_equations(equation: str, dtype: torch.dtype, device: str) -> None:
    check(case(equation, SIZES, dtype), device)
    add = case(equation, SIZES, dtype, add=dtype, alpha=3, beta=-2, layouts=("padded", "strided"), layout="padded")
    check(add, device)


TYPES = [
    (BRAIN, BRAIN, {}), (BRAIN, BRAIN, {"out_dtype": SINGLE}), (HALF, HALF, {"accumulate": DOUBLE}),
    (SINGLE, SINGLE, {"precision": HALF}), (SINGLE, SINGLE, {"precision": "tf32x3"}),
    (SINGLE, SINGLE, {"accumulate": DOUBLE}), (DOUBLE, DOUBLE, {}), (COMPLEX, SINGLE, {}), (SINGLE, COMPLEX, {}),
    (COMPLEX, COMPLEX, {"precision": "3m"}), (COMPLEX, COMPLEX, {"accumulate": torch.complex128}),
    (EIGHTH, EIGHTH, {"out_dtype": SINGLE}), (EIGHTH, EIGHTH, {"out_dtype": SINGLE, "precision": EIGHTH}),
    (EIGHTH, torch.float8_e5m2, {"out_dtype": HALF}),
    (torch.int8, torch.int8, {"out_dtype": torch.int32}), (torch.uint8, torch.uint8, {"out_dtype": torch.int64}),
    (torch.int16, torch.int16, {"out_dtype": torch.int64}), (torch.int64, torch.int64, {}),
    (HALF, SINGLE, {"promote": True}),
]  # fmt: skip


@on_each
@pytest.mark.parametrize("equation", ["amk,kbn->bnma", "bmk,bkn->bmn", "mik,kn->mn", "m,n->nm", "bk,bk->b"])
@pytest.mark.parametrize(("a", "b", "options"), TYPES, ids=str)
def test_types(a: torch.dtype, b: torch.dtype, options: dict[str, Any], equation: str, device: str) -> None:
    check(case(equation, SIZES, a, b, **options), device)


@on_each
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_integers_wrap_around(dtype: torch.dtype, device: str) -> None:
    """At the ends of their range, which no float64 holds the products of."""
    ends = torch.iinfo(dtype)
    generator = torch.Generator().manual_seed(3)
    a, b = (torch.randint(ends.min, ends.max, shape, generator=generator).to(dtype) for shape in ((7, 300), (300, 5)))
    a[0], b[:, 1] = ends.min, ends.max
    found = run(Call("mk,kn->mn", a, b), device)
    assert torch.equal(found.results[0].cpu(), (a[:, :, None] * b).sum(1, dtype=dtype))


@on_each
@pytest.mark.parametrize("dtype", [SINGLE, HALF], ids=str)
@pytest.mark.parametrize("equation", ["mk,kn->mn", "bmk,bkn->mbn", "m,n->nm", "ab,ab->ba"])
def test_functions(equation: str, dtype: torch.dtype, device: str) -> None:
    output = equation.split("->")[1]
    first = output[0]
    scale = torch.linspace(-1, 1, SIZES[first], dtype=dtype)
    both = torch.randn([SIZES[label] for label in output], generator=torch.Generator().manual_seed(5)).to(dtype)
    inner = equation[0]
    for options in (
        {"epilogue": torch.relu},
        {"epilogue": torch.nn.functional.gelu},
        {"a_fn": lambda x: x * 2 + 1, "b_fn": torch.tanh},
        {"epilogue": lambda x, s: torch.sigmoid(x + s), "operands": {"s": (first, scale)}},
        {"epilogue": lambda x, s, t: (x * s, t - x), "operands": {"s": (first, scale), "t": (output, both)}},
        {"epilogue": lambda x, i: torch.where(i > 1, x, 0 * x), "indices": {"i": first}},
        {"a_fn": lambda x, i: x * (i - 1), "indices": {"i": inner}},
        {"epilogue": lambda x: 0 * x + 1.0},
    ):
        check(case(equation, SIZES, dtype, **options), device)
        if "c_fn" not in options:
            check(case(equation, SIZES, dtype, add=dtype, beta=0.5, c_fn=lambda x: x * x, **options), device)


@on_each
@pytest.mark.parametrize("dtype", [SINGLE, HALF, DOUBLE, COMPLEX], ids=str)
@pytest.mark.parametrize("equation", ["mk,nk->mn", "km,kn->nm", "bmk,bkn->bmn", "amk,kbn->bnma", "pk,nk->pn"])
def test_added_by_the_product(equation: str, dtype: torch.dtype, device: str) -> None:
    """An operand that is added to sums, along any modes of D, alone or with an operation behind; sums round once."""
    output = equation.split("->")[1]
    for modes in (output, output[::-1], output[-1], output[0]):
        beside = random_operand([SIZES[label] for label in modes], dtype, 5)
        functions = [lambda s, x: s + x, lambda s, x: x + s]
        if not dtype.is_complex:
            functions += [lambda s, x: torch.relu(s + x), lambda s, x: s + x + x, lambda s, x: 2 - (s + x)]
        for function in functions:
            call = case(equation, SIZES, dtype, epilogue=function, operands={"x": (modes, beside)}, alpha=3)
            check(call, device)
        if not dtype.is_complex:  # of sums so small that the reference itself does not round what is left to nothing
            tail = {"epilogue": lambda s, x: torch.nn.functional.gelu(s + x, approximate="tanh")}
            check(case(equation, SIZES, dtype, **tail, operands={"x": (modes, beside)}, alpha=0.25), device)


@pytest.mark.parametrize("algebra", ["or_and", "gf2"])
@pytest.mark.parametrize("equation", ["mk,kn->mn", "bmk,kbn->nbm", "k,kn->n", "mk,nk->nm"])
def test_truth_values_are_counted(equation: str, algebra: str) -> None:
    """Every byte that is not zero is true, and no pair of a long sum is lost."""
    extents, terms = {"b": 3, "m": 5, "n": 7, "k": 700}, equation.replace("->", ",").split(",")
    made = torch.Generator().manual_seed(3)
    bits = [torch.rand([extents[x] for x in term], generator=made) < 0.5 for term in terms[:2]]
    stored = [(one.to(torch.uint8) * 254).view(torch.bool) for one in bits]
    count = torch.einsum(equation, *(one.double() for one in bits))
    expected = count % 2 == 1 if algebra == "gf2" else count > 0
    plan = weft.plan(equation, *stored, algebra=algebra, specialize="library")
    assert torch.equal(plan(*stored), expected)
    assert "count pairs" in plan.explain()


def test_added_operands_keep_nan() -> None:
    a, b, bias = torch.ones(3, 4), torch.ones(4, 5), torch.zeros(5)
    a[1, 2] = bias[3] = torch.nan
    call = Call("mk,kn->mn", a, b, options={"epilogue": lambda s, x: torch.relu(s + x), "operands": {"x": ("n", bias)}})
    (found,) = run(call, "stand-in").results
    assert torch.equal(found.isnan(), (a @ b + bias).isnan())


@on_each
@pytest.mark.parametrize("algebra", ["max_plus", "min_plus", "max_times", "log", "or_and", "min_max"])
@pytest.mark.parametrize("equation", ["mk,kn->nm", "bmkl,bkn->bnm", "k,k->", "m,n->mn"])
def test_algebras(equation: str, algebra: str, device: str) -> None:
    dtype = torch.bool if algebra == "or_and" else SINGLE
    call = case(equation, SIZES, dtype, algebra=algebra)
    if dtype is torch.bool:
        found = run(call, device)
        exact = reference.contract(equation, call.a, call.b, algebra=algebra)
        assert torch.equal(found.results[0].cpu().long(), exact.long())
        return
    check(call, device)
    check(case(equation, SIZES, dtype, algebra=algebra, add=dtype, epilogue=torch.neg), device)


@on_each
def test_far_logarithms(device: str) -> None:
    a, b = (1000 * torch.randn(shape, generator=torch.Generator().manual_seed(2)) for shape in ((9, 70), (70, 8)))
    a[2], b[:, 3] = -torch.inf, torch.inf
    check(Call("mk,kn->mn", a, b, options={"algebra": "log"}), device)


@on_each
@pytest.mark.parametrize("equation", ["mk,kn->mn", "mik,kn->mn", "bk,bk->b"])
def test_empty_sums(equation: str, device: str) -> None:
    extents = {**SIZES, "k": 0}
    check(case(equation, extents, add=SINGLE, epilogue=lambda x: x + 1), device)
    check(case(equation, extents, algebra="max_plus"), device)


def test_empty_results_are_not_cut() -> None:
    """Of operands that would be cut where there was anything to compute."""
    a, b = torch.ones(3000, 900), torch.ones(900, 0)
    for words in ({"a_fn": torch.exp}, {"algebra": "max_plus"}):
        for specialize in ("now", "library"):
            assert weft.contract("mk,kn->mn", a, b, specialize=specialize, **words).shape == (3000, 0)  # type: ignore[call-overload]


@on_each
def test_conjugates(device: str) -> None:
    x, y = (random_operand(shape, COMPLEX, 1) for shape in ((5, 7), (7, 6)))
    for a, b in ((x.conj(), y), (x, y.conj()), (x.conj(), y.conj())):
        options = Options(backend="reference")
        a, b = (each.to(place_of(device)) for each in (a, b))
        request = resolved(parse("mk,kn->nm"), "mk,kn->nm", a, b, options)
        d = torch.empty(6, 5, dtype=COMPLEX, device=place_of(device))
        contraction = request.contraction(None, Layout.of(d), ())
        target = target_for(device)
        choice = family.choice(contraction, "cpu", target)
        assert not isinstance(choice, str)
        choice.build()(*(each.conj() if each.is_conj() else each for each in (a, b)), None, d, 1, 0)
        assert torch.allclose(d.cpu(), (a @ b).t().cpu(), atol=1e-5)


@on_each
def test_a_limit_of_workspace(device: str) -> None:
    """Parts as small as it asks for; what cannot be done in so little is said."""
    call = case("amk,kbn->bnma", {**SIZES, "k": 65}, HALF, a_fn=torch.tanh, epilogue=torch.relu)
    usual = run(call, device).choice.best.schedule.workspace_bytes
    found = check(call, device, usual // 4)
    assert found.choice.best.schedule.workspace_bytes <= usual // 4
    target = target_for(device)
    sentence = family.choice(found.contraction, "cpu", target, 1)
    assert "bytes of workspace, the limit is 1" in str(sentence)


@on_each
@pytest.mark.parametrize("dtype", [HALF, SINGLE, COMPLEX, torch.int32], ids=str)
def test_permutations(dtype: torch.dtype, device: str) -> None:
    x = random_operand((7, 5, 9), dtype, 1, layout="padded")
    for equation in ("abc->cba", "abc->bac", "abc->abc", "abc->acdb"):
        for options in ({}, {"alpha": 3}, {"fn": lambda x: x * 2}, {"alpha": 2, "beta": -1}):
            check_permutation(x, equation, options, device)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("options", [
    {}, {"epilogue": lambda x, i: torch.relu(x + i), "indices": {"i": "m"}}, {"algebra": "max_plus"},
    {"a_fn": torch.exp},
])  # fmt: skip
@pytest.mark.parametrize("dtype", [HALF, SINGLE, torch.int32], ids=str)
def test_in_a_graph(dtype: torch.dtype, options: dict[str, Any]) -> None:
    """Nothing waits for the GPU, and nothing comes from the CPU."""
    if dtype is torch.int32 and options:
        pytest.skip("these are functions of real values")
    call = case("amk,kbn->bnma", SIZES, dtype, **options)
    eager = run(call, "cuda").results[0]
    a, b = moved(call.a, "cuda"), moved(call.b, "cuda")
    found = run(call, "cuda")
    launch, d = found.choice.build(), torch.empty_like(eager)
    aux = tuple(None for _ in found.contraction.aux)
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        launch(a, b, None, d, 1, 0, aux)
    recorded.replay()
    torch.cuda.synchronize()
    assert torch.equal(d, eager)


@on_each
@pytest.mark.parametrize("dtype", [BRAIN, HALF], ids=str)
@pytest.mark.parametrize("equation", ["mk,kn->mn", "km,kn->nm", "bmk,bkn->bmn"])
def test_long_sums_of_halves(equation: str, dtype: torch.dtype, device: str) -> None:
    """Sums are of single precision, and rounded once."""
    for options in ({}, {"alpha": 0.3}, {"add": dtype, "beta": 2}):
        check(case(equation, {"b": 2, "m": 300, "n": 33, "k": 500}, dtype, **options), device)


@pytest.mark.parametrize("summed", "Lpq")
def test_equal_extents_hide_no_transposition(summed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All orders of the modes of a product of a square matrix and a cube, in first and in known calls."""
    monkeypatch.setenv("WEFT_TIERS", "1")
    generator = torch.Generator().manual_seed(3)
    a, b, bias = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((4, 4, 4), (4, 4), (4,)))
    kept = [label for label in "Lpq" if label != summed]
    for order_a, of_b, order_d in itertools.product(
        itertools.permutations("Lpq"), (f"{summed}i", f"i{summed}"), itertools.permutations([*kept, "i"])
    ):
        equation = f"{''.join(order_a)},{of_b}->{''.join(order_d)}"
        expected = torch.einsum(equation, a, b)
        for _ in range(3):
            assert torch.allclose(weft.einsum(equation, a, b), expected), equation
        added = expected + bias
        for _ in range(2):
            found = weft.contract(
                equation, a, b, operands={"bias": (order_d[-1], bias)}, epilogue=lambda total, bias: total + bias
            )
            assert torch.allclose(found, added), equation


def test_a_row_of_bytes_with_steps_of_one_is_multiplied() -> None:
    """torch's product of int8 matrices leaves what was in memory for a row that lies so."""
    row, place = torch.ones(9, dtype=torch.int8), torch.full((1, 1), -7, dtype=torch.int32)
    products._of_bytes(row.as_strided((1, 9), (1, 1)), row[:, None], out=place)
    assert place.item() == 9
