"""Functions of complex values with operands and coordinates, and epilogues that yield several results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import weft
from gpu.complex_ways import way_of
from support import Backend, integers
from weft import reference
from weft.gpu.blas import family as blas
from weft.gpu.complex import real_forms
from weft.planner.schedule import Target
from weft.spec import Layout
from weft.testing import assert_close, expectation, poisoned, random_operand

SINGLE, DOUBLE = torch.complex64, torch.complex128
H200 = Target("cuda", 0, "NVIDIA H200", 90, 132, 232448)
CPU = Backend("triton", "cpu")

Made = Callable[..., torch.Tensor]


def gated(x: torch.Tensor, gate: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    return x * gate + place


def shifted(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return x + bias


def picked(x: torch.Tensor, half: torch.Tensor, scalar: torch.Tensor) -> torch.Tensor:
    return torch.where(half > 0, x * scalar, half)


def several(x: torch.Tensor, bias: torch.Tensor, place: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x = x + bias * place
    return x, x.real, bias - x, x.imag > place, place


# -- every way ---------------------------------------------------------------------------------------------------------

# equation, shapes, hooks, operands as (modes, shape, dtype), coordinates, whether C is added
WAYS: dict[str, tuple[Any, ...]] = {
    "all": (
        "fbea,ecfd->dcba", ((2, 2, 3, 4), (3, 2, 2, 5)),
        {"a_fn": gated, "b_fn": shifted, "c_fn": picked, "epilogue": several},
        {"gate": ("ea", (3, 4), SINGLE), "bias": ("d", (5,), DOUBLE), "half": ("cd", (2, 5), torch.float16),
         "scalar": ("", (), SINGLE)},
        {"place": "b"}, True,
    ),
    "left of a broadcast": (
        "bmk,bkn->bmn", ((1, 4, 5), (3, 5, 2)), {"a_fn": gated},
        {"gate": ("kb", (5, 3), SINGLE)}, {"place": "m"}, False,
    ),
    "right and last": (
        "km,kn->nm", ((5, 3), (5, 4)), {"b_fn": gated, "epilogue": shifted},
        {"gate": ("nk", (4, 5), torch.bool), "bias": ("nm", (4, 1), SINGLE)}, {"place": "k"}, True,
    ),
    "small": (
        "dca,cbd->ba", ((4, 5, 2), (5, 2, 4)), {"a_fn": shifted, "epilogue": several},
        {"bias": ("a", (2,), SINGLE)}, {"place": "a"}, False,
    ),
}  # fmt: skip


@pytest.fixture
def with_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's calls run through torch on any device: here they are planned as for a GPU."""
    supports = blas.supports
    monkeypatch.setattr(blas, "supports", lambda contraction, target: supports(contraction, H200))


@pytest.mark.usefixtures("with_library")
@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE], ids=str)
@pytest.mark.parametrize("name", WAYS)
def test_every_way_applies_them_alike(name: str, dtype: torch.dtype) -> None:
    equation, shapes, hooks, described, indices, added = WAYS[name]
    a, b = (integers(shape, CPU, at, dtype) for at, shape in enumerate(shapes))
    tensors = {
        name: random_operand(shape, kind, at, integers=True)
        for at, (name, (_, shape, kind)) in enumerate(described.items())
    }
    operands = {name: (modes, tensors[name]) for name, (modes, _, _) in described.items()}
    given = {**hooks, "operands": operands, "indices": indices}
    shape = tuple(weft.plan(equation, a, b, backend="reference", **given).shape)
    c = integers(shape, CPU, 9, dtype) if added else None
    scaled = {"alpha": 1 - 2j, "beta": 2 + 1j} if added else {}
    found = reference.contract(equation, a.conj(), b, c=c, **scaled, **given)
    expected = found if isinstance(found, tuple) else (found,)

    plan = weft.plan(equation, a.conj(), b, backend="triton", precision="3m", **given)
    results = [poisoned(shape, kind, layout="strided" if at else "permuted") for at, kind in enumerate(plan.dtypes)]
    layouts = [Layout.of(result.tensor) for result in results]
    contraction = plan._request.contraction(Layout.of(c) if added else None, layouts[0], tuple(layouts[1:]))
    contraction = weft.spec.canonical(contraction)
    outputs = [result.tensor for result in results[1:]]
    aux = [*(tensors.get(each.name) for each in contraction.aux if each.kind != "output"), *outputs]
    ways: dict[Any, Any] = {}
    for schedule in real_forms.schedules(contraction, plan._request.target).schedules:
        ways.setdefault(way_of(schedule), schedule)
    assert len(ways) > 3
    for schedule in ways.values():
        for result in results:
            result.tensor.fill_(1 if result.tensor.dtype is torch.bool else 77)
        launch = real_forms.build(contraction, schedule, plan._request.target)
        factors = (complex(scaled.get("alpha", 1)), complex(scaled.get("beta", 0)))
        launch(a, b, c, results[0].tensor, *factors, aux)
        for result, wanted in zip(results, expected, strict=True):
            result.check_guards()
            assert torch.equal(result.tensor.to(wanted.dtype), wanted), str(schedule)


# -- calls -------------------------------------------------------------------------------------------------------------


def operand(shape: tuple[int, ...], seed: int, dtype: torch.dtype, backend: Backend, **given: Any) -> torch.Tensor:
    return random_operand(shape, dtype, seed, integers=True, device=backend.device, **given)


def matrices(backend: Backend, dtype: torch.dtype = SINGLE) -> tuple[torch.Tensor, torch.Tensor]:
    return operand((4, 5), 1, dtype, backend), operand((5, 6), 2, dtype, backend)


@pytest.mark.parametrize("dtype", [
    SINGLE, DOUBLE, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.int64, torch.bool,
], ids=str)  # fmt: skip
def test_operands_of_every_type(dtype: torch.dtype, backend: Backend) -> None:
    a, b = matrices(backend)
    row, full, one = (operand(shape, 3, dtype, backend) for shape in ((6,), (4, 6), ()))
    d = weft.contract(
        "mk,kn->mn", a, b, epilogue=lambda x, row, full, one: x * row + full + one, backend=backend.name,
        operands={"row": ("n", row), "full": ("mn", full), "one": ("", one)},
    )  # fmt: skip
    kind = torch.promote_types(dtype, SINGLE)
    expected = (a @ b).to(kind) * row.to(kind) + full.to(kind) + one.to(kind)
    assert torch.equal(d, expected.to(SINGLE))


@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE], ids=str)
@pytest.mark.parametrize("modes", ["nm", "mn", "m", "nn", ""])
def test_operands_of_any_strides_and_lazily_conjugated(modes: str, dtype: torch.dtype, backend: Backend) -> None:
    a, b = matrices(backend, dtype)
    shape = tuple({"m": 4, "n": 6}[label] for label in modes)
    bias = operand(shape, 4, dtype, backend, layout="strided").conj()
    d = weft.contract("mk,kn->mn", a, b, epilogue=shifted, operands={"bias": (modes, bias)}, backend=backend.name)
    seen = {"nm": lambda: bias.T, "m": lambda: bias[:, None], "nn": bias.diagonal}.get(modes, lambda: bias)()
    assert torch.equal(d, a @ b + seen)


def test_coordinates_of_every_tensor(backend: Backend) -> None:
    a, b, c = (operand(shape, at, SINGLE, backend) for at, shape in enumerate(((2, 4, 5), (2, 5, 6), (2, 4, 6))))
    d = weft.contract(
        "bmk,bkn->bmn", a, b, c=c, beta=1j, a_fn=lambda x, k, p: x * k + p, b_fn=lambda x, n: x - 1j * n,
        c_fn=lambda x, m: x * m, epilogue=lambda x, p, n: x + 2 * p + n, backend=backend.name,
        indices={"k": "k", "p": "b", "n": "n", "m": "m"},
    )  # fmt: skip
    ranges = [torch.arange(extent, device=backend.device) for extent in (2, 4, 5, 6)]
    batch, row, depth, column = ranges[0].reshape(2, 1, 1), ranges[1].reshape(4, 1), ranges[2], ranges[3]
    expected = (a * depth + batch) @ (b - 1j * column) + 1j * c * row + 2 * batch + column
    assert torch.equal(d, expected)


def test_several_results_in_their_own_types(backend: Backend) -> None:
    a, b = matrices(backend)
    bias = operand((6,), 3, SINGLE, backend)
    options = {"epilogue": several, "operands": {"bias": ("n", bias)}, "indices": {"place": "m"}}
    types = (SINGLE, torch.float32, SINGLE, torch.bool, torch.int32)
    place = torch.arange(4, device=backend.device)[:, None]
    x = a @ b + bias * place
    expected = (x, x.real, bias - x, x.imag > place, place.expand(4, 6).int())
    found = weft.contract("mk,kn->mn", a, b, backend=backend.name, **options)
    assert tuple(result.dtype for result in found) == types
    out = tuple(poisoned((4, 6), kind, layout="permuted", device=backend.device) for kind in types)
    weft.contract("mk,kn->mn", a, b, backend=backend.name, out=tuple(each.tensor for each in out), **options)
    for guarded, result, wanted in zip(out, found, expected, strict=True):
        guarded.check_guards()
        assert torch.equal(result, wanted)
        assert torch.equal(guarded.tensor, wanted)


def test_results_in_wider_types(backend: Backend) -> None:
    a, b = matrices(backend)
    found = weft.contract(
        "mk,kn->mn", a, b, epilogue=lambda x: (x, x.abs(), 1 - 2j), out_dtype=(DOUBLE, torch.float64, None),
        backend=backend.name,
    )  # fmt: skip
    assert [each.dtype for each in found] == [DOUBLE, torch.float64, SINGLE]
    assert torch.equal(found[0], (a @ b).to(DOUBLE))
    assert torch.allclose(found[1], (a @ b).abs().double())
    assert torch.equal(found[2], torch.full((4, 6), 1 - 2j, dtype=SINGLE, device=backend.device))


@pytest.mark.parametrize("kind", [torch.float32, SINGLE], ids=str)
def test_real_beside_complex(kind: torch.dtype, backend: Backend) -> None:
    """A real operand's function takes real ones within the product; complex ones before it."""
    a = operand((4, 5), 1, SINGLE, backend)
    real, gate = operand((5, 6), 5, torch.float32, backend), operand((5,), 6, kind, backend)
    options = {"backend": backend.name, "operands": {"gate": ("k", gate)}, "indices": {"n": "n"}}
    for x, y, hook, equation in ((a, real, "b_fn", "mk,kn->mn"), (real, a, "a_fn", "kn,mk->nm")):
        options[hook] = lambda x, gate, n: (x * gate).real + n
        d = weft.contract(equation, x, y, alpha=2 - 1j, **options)
        del options[hook]
        changed = (real * gate[:, None]).real + torch.arange(6, device=backend.device)
        expected = (2 - 1j) * (a @ changed.to(SINGLE))
        assert torch.equal(d, expected if hook == "b_fn" else expected.T)


@pytest.mark.one_of(5)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
def test_real_contractions_that_meet_complex_values(dtype: torch.dtype, backend: Backend) -> None:
    """The product is real; complex are an operand, what a function has on its way, or D."""
    a, b = matrices(backend, dtype)
    c = operand((4, 6), 3, dtype, backend)
    wide = DOUBLE if dtype is torch.float64 else SINGLE
    phase = operand((6,), 4, wide, backend)
    total = (a.double() @ b.double()).to(wide)
    name = {"backend": backend.name}
    assert torch.equal(weft.contract("mk,kn->mn", a, b, out_dtype=wide, **name), total)
    with_phase = {"operands": {"phase": ("n", phase)}, **name}
    turned, plain = weft.contract(
        "mk,kn->mn", a, b, epilogue=lambda x, phase: (x * phase, x), out_dtype=(wide, None), **with_phase
    )
    assert torch.equal(turned, total * phase)
    assert torch.equal(plain, total.real)
    d = weft.contract(
        "mk,kn->mn", a, b, c=c, beta=2.0, c_fn=lambda x, phase: (x * phase).imag,
        epilogue=lambda x: torch.complex(x, -x).imag, **with_phase,
    )  # fmt: skip
    assert torch.equal(d, -(total.real + 2 * c * phase.imag).to(dtype))
    d = weft.contract("mk,kn->mn", a, b, b_fn=lambda x, phase: (x * phase).imag, **with_phase)
    assert torch.equal(d, (total.real * phase.imag).to(dtype))


def test_of_c_alone_is_not_read_for_beta_zero(backend: Backend) -> None:
    a, b = matrices(backend)
    c = torch.full((4, 6), torch.nan, dtype=SINGLE, device=backend.device)
    gate = torch.full((4,), torch.nan, dtype=SINGLE, device=backend.device)
    options = {"c_fn": lambda x, gate: x * gate, "operands": {"gate": ("m", gate)}}
    d = weft.contract("mk,kn->mn", a, b, c=c, beta=0, backend=backend.name, **options)
    assert torch.equal(d, a @ b)


def test_a_plan_runs_on_new_values(backend: Backend) -> None:
    a, b = matrices(backend)
    bias = operand((6,), 3, SINGLE, backend)
    plan = weft.plan("mk,kn->mn", a, b, epilogue=shifted, operands={"bias": ("n", bias)}, backend=backend.name)
    for each in (bias, -2 * bias):
        assert torch.equal(plan(a, b, operands={"bias": each}), a @ b + each)
    assert "bias" in plan.explain()


@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE], ids=str)
def test_is_within_the_bound(dtype: torch.dtype, backend: Backend) -> None:
    shapes = {"a": (9, 17), "b": (17, 6), "c": (9, 6), "gate": (17,), "bias": (9, 6)}
    t = {
        name: random_operand(shape, dtype, at, device=backend.device) for at, (name, shape) in enumerate(shapes.items())
    }
    options = {
        "c": t["c"], "alpha": 0.5 - 2j, "beta": 1j, "a_fn": lambda x, gate: x / (gate + 4), "c_fn": torch.conj,
        "epilogue": lambda x, bias, i: torch.exp(0.1 * x) * bias + i,
        "operands": {"gate": ("k", t["gate"]), "bias": ("mn", t["bias"])}, "indices": {"i": "n"},
    }  # fmt: skip
    result = weft.contract("mk,kn->mn", t["a"].conj(), t["b"], backend=backend.name, validate=True, **options)
    assert_close(result, *expectation("mk,kn->mn", t["a"].conj(), t["b"], **options))


@pytest.mark.parametrize(("options", "words"), [
    ({"epilogue": lambda x, bias: torch.asin(x) + bias, "operands": {"bias": ("n", torch.ones(6))}}, "asin"),
    ({"epilogue": shifted, "operands": {"bias": ("n", torch.ones(6, dtype=torch.complex32))}}, "complex32"),
], ids=["function", "operand"])  # fmt: skip
def test_says_what_it_cannot_do(options: dict[str, Any], words: str) -> None:
    a, b = matrices(CPU)
    with pytest.raises(weft.UnsupportedError, match=words):
        weft.contract("mk,kn->mn", a, b, backend="triton", **options)
