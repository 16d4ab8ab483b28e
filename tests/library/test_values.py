"""What torch's operations compute, held against the oracle in float64 within its bounds, on the CPU and on a GPU.

On a GPU the marker `gpu` selects them: `pytest -m gpu tests/library`. "stand-in" is what is built for a GPU, run on the
CPU, but for products that torch has on a GPU alone.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

import weft
from weft import reference
from weft.algebra import find
from weft.library import family, permutations, products
from weft.oracle.bounds import error_bound
from weft.oracle.judgement import judged
from weft.planner.options import Options, read_indices, read_operands
from weft.planner.planner import Choice
from weft.planner.request import HOOKS
from weft.planner.schedule import Target
from weft.planner.target import target_of
from weft.plans.resolving import resolved
from weft.spec import Contraction, Layout, parse
from weft.testing import poisoned, random_operand

DEVICES = [
    "cpu",
    "stand-in",
    pytest.param("cuda", marks=[
        pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
    ]),
]  # fmt: skip
HALF, BRAIN, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64
COMPLEX, EIGHTH = torch.complex64, torch.float8_e4m3fn

on_each = pytest.mark.parametrize("device", DEVICES)


@pytest.fixture(autouse=True)
def without_halves(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if getattr(request.node, "callspec", None) and request.node.callspec.params.get("device") == "stand-in":
        monkeypatch.setattr(products, "_HALVES", ())


def target_for(device: str) -> Target:
    if device == "stand-in":
        return Target("cuda", name="NVIDIA H100 80GB HBM3", capability=90, processors=132)
    return target_of("cpu" if device == "cpu" else "triton", torch.device(device))


def place_of(device: str) -> str:
    return "cuda" if device == "cuda" else "cpu"


class Call(NamedTuple):
    """A call of `weft.contract`, its operands on the CPU."""

    equation: str
    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor | None = None
    alpha: Any = 1
    beta: Any = 1
    layout: str = "contiguous"  # of D
    options: Any = None


def case(equation: str, extents: dict[str, int], dtype: Any = SINGLE, dtype_b: Any = None, **given: Any) -> Call:
    """Random operands of the terms of an equation; `layouts` are those of A and B, `add` has C as well."""
    terms, output = equation.split("->")
    layouts = given.pop("layouts", ("contiguous", "contiguous"))
    types = dtype, dtype_b or dtype
    a, b = (
        random_operand([extents[label] for label in term], of, seed, layout=layout, integers=_whole(of))
        for seed, (term, of, layout) in enumerate(zip(terms.split(","), types, layouts, strict=True))
    )
    c = None
    if (of_c := given.pop("add", None)) is not None:
        c = random_operand([extents[label] for label in output], of_c, 7, integers=_whole(of_c))
    options = {name: value for name, value in given.items() if name not in Call._fields}
    return Call(equation, a, b, c, **{name: given[name] for name in given if name in Call._fields}, options=options)


def _whole(dtype: torch.dtype) -> bool:
    return not (dtype.is_floating_point or dtype.is_complex)


def moved(value: Any, device: str) -> Any:
    """A tensor on a device, strides kept; a mapping of operands too."""
    if isinstance(value, torch.Tensor):
        there = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=place_of(device))
        return there.copy_(value)
    if isinstance(value, dict):
        return {name: (modes, moved(tensor, device)) for name, (modes, tensor) in value.items()}
    return value


class Run(NamedTuple):
    """A call as this family serves it: its description, its choice, and tensors on a device."""

    contraction: Contraction
    choice: Choice
    results: list[torch.Tensor]


def run(call: Call, device: str, limit: int | None = None, times: int = 1) -> Run:
    """The call into poisoned memory, with guards around it."""
    given = dict(call.options or {})
    operands, indices = given.pop("operands", {}), given.pop("indices", {})
    a, b, c = (moved(each, device) for each in (call.a, call.b, call.c))
    beside = moved(operands, device)
    options = Options(
        functions=tuple(given.pop(hook, None) for hook in HOOKS), operands=read_operands(beside),
        indices=read_indices(indices), algebra=find(given.pop("algebra", "plus_times")), backend="reference", **given,
    )  # fmt: skip
    request = resolved(parse(call.equation), call.equation, a, b, options)
    extents = request.extents()
    shape = [extents[label] for label in request.notation.output]
    dtypes = (request.d_dtype, *(request.outputs or ()))
    places = [poisoned(shape, dtype, layout=call.layout, device=place_of(device)) for dtype in dtypes]
    layouts = [Layout.of(place.tensor) for place in places]
    contraction = request.contraction(Layout.of(c) if c is not None else None, layouts[0], tuple(layouts[1:]))
    target = target_for(device)
    choice = family.choice(contraction, "cpu" if device == "cpu" else "triton", target, limit)
    assert not isinstance(choice, str), choice
    named = (each.name for each in contraction.aux if each.kind != "output")
    d, *others = (place.tensor for place in places)
    aux = (*(beside[name][1] if name in beside else None for name in named), *others)
    launch = choice.build()
    for _ in range(times):
        launch(a, b, c, d, call.alpha, call.beta, aux)
    for place in places:
        place.check_guards()
    return Run(contraction, choice, [d, *others])


def check(call: Call, device: str, limit: int | None = None, times: int = 1) -> Run:
    """The call, and further ones of the same launch, right within the oracle's bounds."""
    found = run(call, device, limit, times)
    options = {name: value for name, value in (call.options or {}).items() if name != "promote"}
    added = {} if call.c is None else {"c": call.c, "beta": call.beta}
    scaled = {} if call.alpha == 1 else {"alpha": call.alpha}
    exact = reference.contract(call.equation, call.a, call.b, **added, **scaled, **_wide(options))
    bounds = error_bound(call.equation, call.a, call.b, **added, **scaled, **(call.options or {}))
    exact, bounds = ([each] if isinstance(each, torch.Tensor) else list(each) for each in (exact, bounds))
    for result, wanted, bound in zip(found.results, exact, bounds, strict=True):
        if not result.dtype.is_floating_point and not result.dtype.is_complex:
            assert torch.equal(result.cpu(), wanted.to(result.dtype))
        else:
            verdict = judged(result.cpu(), wanted, bound)
            assert verdict.right, f"{verdict} {found.choice.best.schedule}"
    return found


def _wide(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name != "out_dtype"}


SIZES = {"a": 3, "b": 2, "c": 5, "d": 4, "i": 6, "k": 33, "l": 3, "m": 17, "n": 9, "o": 2, "p": 1}
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
def test_the_peak(device: str) -> None:
    call = case("mk,kn->mn", SIZES)
    found = run(call, device)
    asked = replace(found.contraction, peak=True)
    target = target_for(device)
    choice = family.choice(asked, "cpu", target)
    assert not isinstance(choice, str)
    d = found.results[0]
    peak = torch.zeros((), dtype=torch.int32, device=place_of(device))
    choice.build()(moved(call.a, device), moved(call.b, device), None, d, 1, 0, (peak,))
    assert peak.view(torch.float32).item() == d.abs().max().item()


@on_each
@pytest.mark.parametrize("dtype", [HALF, SINGLE, COMPLEX, torch.int32], ids=str)
def test_permutations(dtype: torch.dtype, device: str) -> None:
    x = random_operand((7, 5, 9), dtype, 1, layout="padded")
    for equation in ("abc->cba", "abc->bac", "abc->abc", "abc->acdb"):
        for options in ({}, {"alpha": 3}, {"fn": lambda x: x * 2}, {"alpha": 2, "beta": -1}):
            check_permutation(x, equation, options, device)


def check_permutation(x: torch.Tensor, equation: str, options: dict[str, Any], device: str) -> None:
    extents = {"d": 3} if "d" in equation else {}
    there = moved(x, device)
    old = reference.permute(equation, x, extents=extents)
    old = random_operand(old.shape, x.dtype, 4)
    added = {"out": moved(old, device)} if "beta" in options else {}
    plan = weft.plan_permute(there, equation, extents=extents, backend="reference", **options, **added)
    target = target_for(device)
    choice = permutations.choice(plan.permutation, "cpu", target)
    assert not isinstance(choice, str)
    d = moved(old, device) if added else poisoned(old.shape, x.dtype, device=place_of(device)).tensor
    choice.build()(there, d if added else None, d, options.get("alpha", 1), options.get("beta", 0))
    wanted = reference.permute(equation, x, extents=extents, **options, **({"out": old.clone()} if added else {}))
    assert torch.allclose(d.cpu(), wanted.to(x.dtype), rtol=2e-3 if dtype_is_half(x) else 1e-6)


def dtype_is_half(x: torch.Tensor) -> bool:
    return x.dtype in (HALF, BRAIN)


LABELS = "abcdefg"
ROLES = {"batch": (1, 1, 1), "m": (1, 0, 1), "n": (0, 1, 1), "k": (1, 1, 0), "lone a": (1, 0, 0), "lone b": (0, 1, 0)}


@st.composite
def calls(draw: st.DrawFn) -> Call:
    """Any partition of up to 7 modes among roles, in any order in each tensor, some operands broadcast."""
    labels = LABELS[: draw(st.integers(0, 7))]
    roles = {label: draw(st.sampled_from(sorted(ROLES))) for label in labels}
    extents = {label: draw(st.sampled_from((1, 2, 3, 4, 5))) for label in labels}
    in_a, in_b, in_d = (draw(st.permutations([x for x in labels if ROLES[roles[x]][at]])) for at in range(3))
    equation = f"{''.join(in_a)},{''.join(in_b)}->{''.join(in_d)}"
    layout = st.sampled_from(("contiguous", "padded", "strided", "offset"))
    dtype = draw(st.sampled_from((SINGLE, HALF, DOUBLE, COMPLEX, torch.int32)))
    given: dict[str, Any] = {"alpha": draw(st.sampled_from((1, 2))), "layout": draw(layout)}
    if draw(st.booleans()):
        given |= {"add": dtype, "beta": draw(st.sampled_from((1, -3)))}
    if draw(st.integers(0, 3)) == 0 and dtype not in (COMPLEX, torch.int32):
        given["epilogue"] = torch.relu
    return case(equation, extents, dtype, layouts=(draw(layout), draw(layout)), **given)


@on_each
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(call=calls(), limit=st.sampled_from((None, 4096, 600)))
def test_random(call: Call, limit: int | None, device: str) -> None:
    note(call.equation)
    try:
        check(call, device, limit)
    except AssertionError as error:
        if "bytes of workspace, the limit is" not in str(error):
            raise


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


class Watched(TorchDispatchMode):
    """The most bytes that operations have made and not given back, besides tensors that were there before."""

    def __init__(self, *known: torch.Tensor) -> None:
        super().__init__()
        self._known = {tensor.untyped_storage().data_ptr() for tensor in known}
        self._made: dict[int, tuple[StorageWeakRef, int]] = {}
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for tensor in found if isinstance(found, (tuple, list)) else (found,):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in self._known:
                    self._made[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self._made = {key: each for key, each in self._made.items() if not each[0].expired()}
        self.most = max(self.most, sum(size for _, size in self._made.values()))
        return found


@pytest.mark.parametrize("device", ["cpu", "stand-in"])
@pytest.mark.parametrize("options", [
    {}, {"a_fn": torch.tanh, "epilogue": torch.relu}, {"epilogue": lambda x: torch.exp(x) * torch.sin(x) + x},
    {"precision": torch.float16}, {"algebra": "max_plus"}, {"algebra": "log"}, {"epilogue": lambda x: (x, x + 1)},
], ids=lambda options: "-".join(options) or "plain")  # fmt: skip
@pytest.mark.parametrize("equation", ["mk,kn->mn", "amk,kbn->bnma", "mik,kn->mn", "m,n->nm", "ab,ab->ba"])
@pytest.mark.parametrize("limit", [None, 20000])
def test_no_more_workspace_than_said(equation: str, options: dict[str, Any], limit: int | None, device: str) -> None:
    sizes = {label: 2 * extent for label, extent in SIZES.items()}
    call = case(equation, sizes, **options)
    try:
        found = run(call, device, limit)
    except AssertionError as error:
        assert "bytes of workspace, the limit is" in str(error)  # noqa: PT017  the least is more
        return
    a, b = moved(call.a, "cpu"), moved(call.b, "cpu")
    d, *others = found.results
    with Watched(a, b, d, *others) as watched:
        found.choice.build()(a, b, None, d, 1, 0, tuple(others))
    assert watched.most <= found.choice.best.schedule.workspace_bytes
    assert limit is None or watched.most <= limit


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
