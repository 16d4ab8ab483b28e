"""Complex contractions on Triton's kernels: every way to compute one gives the same whole numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import weft
from gpu.complex_ways import way_of
from support import Backend, integers
from weft import reference
from weft.gpu.blas import family as blas
from weft.gpu.common.operation import kind_of
from weft.gpu.complex import real_forms
from weft.planner.schedule import Target
from weft.testing import assert_close, expectation, poisoned, random_operand

SINGLE, DOUBLE = torch.complex64, torch.complex128
H200 = Target("cuda", 0, "NVIDIA H200", 90, 132, 232448)

CASES = [
    ("mk,kn->mn", (9, 7), (7, 5)),
    ("km,nk->nm", (7, 9), (5, 7)),
    ("fbea,ecfd->dcba", (2, 2, 3, 4), (3, 2, 2, 5)),  # as TCCG's case 20
    ("fdea,ecfb->dcba", (2, 2, 3, 4), (3, 2, 2, 5)),  # its case 24: no matrix in D
    ("bmk,bkn->bmn", (2, 3, 5), (2, 5, 4)),
    ("mkb,knb->nmb", (3, 5, 2), (5, 4, 2)),
    ("kmk,kn->mn", (3, 4, 3), (3, 5)),  # a diagonal
    ("mkx,kn->mn", (4, 3, 2), (3, 5)),  # a lone mode
    ("mx,ny->mn", (4, 3), (3, 2)),
    ("m,n->nm", (5,), (3,)),
    ("k,k->", (11,), (11,)),
    (",n->n", (), (6,)),
    ("mk,kn->mn", (3, 0), (0, 4)),
    ("xyab,laxr->lbyr", (2, 2, 3, 3), (2, 3, 2, 3)),
    ("dca,cbd->ba", (4, 5, 2), (5, 2, 4)),  # as TCCG's case 13: D is small
]
CALLS: list[dict[str, Any]] = [
    {},
    {"alpha": 2 - 1j},
    {"alpha": 2, "beta": 3, "add": True},
    {"alpha": 1 + 2j, "beta": 1 - 1j, "add": True},
    {"alpha": 1j, "beta": 2j, "add": True, "within": True},
]


def operands(case: tuple[Any, ...], types: tuple[torch.dtype, torch.dtype], flags: tuple[bool, bool], seed: int) -> Any:
    backend = Backend("triton", "cpu")
    given = [
        integers(shape, backend, seed + at, dtype)
        for at, (shape, dtype) in enumerate(zip(case[1:], types, strict=True))
    ]
    return [x.conj() if flag else x for x, flag in zip(given, flags, strict=True)]


@pytest.fixture
def with_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's calls run through torch on any device: here they are planned as for a GPU."""
    supports = blas.supports
    monkeypatch.setattr(blas, "supports", lambda contraction, target: supports(contraction, H200))


@pytest.mark.one_of(2)
@pytest.mark.usefixtures("with_library")
@pytest.mark.parametrize(
    ("case", "at"), [(case, at) for at, case in enumerate(CASES)], ids=[f"{case[0]}" for case in CASES]
)
def test_every_way_gives_the_same_whole_numbers(case: tuple[Any, ...], at: int) -> None:
    dtype = (SINGLE, SINGLE, DOUBLE)[at % 3]
    flags = ((False, False), (True, False), (False, True), (True, True))[at % 4]
    call = CALLS[at % len(CALLS)]
    a, b = operands(case, (dtype, dtype), flags, at)
    shape = reference.contract(case[0], a, b).shape
    c = integers(tuple(shape), Backend("triton", "cpu"), 9, dtype) if "add" in call else None
    alpha, beta = call.get("alpha", 1), call.get("beta", 0)
    expected = reference.contract(case[0], a, b, c=c, alpha=alpha, beta=beta)
    plan = weft.plan(case[0], a, b, backend="triton", precision="3m")  # every way of "ieee", and one more
    contraction = plan._request.contraction(
        *((weft.spec.Layout.of(c) if c is not None else None), weft.spec.Layout.contiguous(shape, dtype)), ()
    )
    contraction = weft.spec.canonical(contraction)
    found: dict[Any, Any] = {}
    for schedule in real_forms.schedules(contraction, plan._request.target).schedules:
        found.setdefault(way_of(schedule), schedule)
    assert len(found) > 1
    for schedule in found.values():
        guarded = poisoned(tuple(shape), dtype)
        addend = c
        if call.get("within"):
            guarded.tensor.copy_(c)  # type: ignore[arg-type]
            addend = guarded.tensor
        launch = real_forms.build(contraction, schedule, plan._request.target)
        launch(*(x.conj() if x.is_conj() else x for x in (a, b)), addend, guarded.tensor, complex(alpha), complex(beta))
        guarded.check_guards()
        assert torch.equal(guarded.tensor.to(DOUBLE), expected), str(schedule)


def test_what_is_real_stays_real(backend: Backend) -> None:
    """A real operand is neither promoted nor copied: the pair is one more mode of the other."""
    a, b = integers((9, 7), backend, 1, SINGLE), integers((7, 5), backend, 2, torch.float32)
    for x, y, equation in ((a, b, "mk,kn->mn"), (b, a, "kn,mk->nm")):
        plan = weft.plan(equation, x, y, backend=backend.name)
        assert torch.equal(plan(x, y).to(DOUBLE), reference.contract(equation, x, y))
        if backend.name == "triton":
            assert plan.workspace_bytes == 0
        c = integers(tuple(plan.shape), backend, 3, SINGLE)
        for addend in (c, c.clone()):
            expected = reference.contract(equation, x, y, c=addend, alpha=1 - 2j, beta=3 + 1j)
            out = addend if addend is c else None
            result = plan(x, y, c=addend, alpha=1 - 2j, beta=3 + 1j, out=out)
            assert torch.allclose(result.to(DOUBLE), expected, atol=1e-4)
        z = x.conj() if x is a else x, y.conj() if y is a else y
        assert torch.equal(
            weft.contract(equation, *z, backend=backend.name).to(DOUBLE), reference.contract(equation, *z)
        )


@pytest.mark.parametrize("options", [
    {"a_fn": lambda x: x * x},
    {"b_fn": torch.abs},
    {"a_fn": torch.exp, "b_fn": lambda x: x / (x + 4j)},
    {"epilogue": lambda z: (z * z.conj()).real},
    {"epilogue": lambda z: torch.where(z.real > 0, z, -1j * z)},
    {"c_fn": torch.conj, "c": True, "alpha": 2j, "beta": 1 + 1j},
    {"c_fn": torch.sqrt, "c": True, "epilogue": torch.abs, "out_dtype": torch.float32},
    {"accumulate": DOUBLE, "alpha": 0.5 - 1j},
    {"precision": "tf32"},
    {"precision": "tf32x3", "alpha": 1j},
    {"out_dtype": DOUBLE},
], ids=" ".join)  # fmt: skip
@pytest.mark.parametrize("flags", [(False, False), (True, False), (False, True)])
def test_within_the_bound(options: dict[str, Any], flags: tuple[bool, bool], triton_backend: Backend) -> None:
    options = dict(options)
    a, b = (
        random_operand(shape, SINGLE, at, device=triton_backend.device) for at, shape in enumerate(((9, 17), (17, 6)))
    )
    a, b = (x.conj() if flag else x for x, flag in zip((a, b), flags, strict=True))
    c = random_operand((9, 6), SINGLE, 5, device=triton_backend.device) if options.pop("c", False) else None
    result = weft.contract("mk,kn->mn", a, b, c=c, backend=triton_backend.name, **options)
    assert_close(result, *expectation("mk,kn->mn", a, b, c=c, **options))


def test_complex_factors_keep_infinities_apart(triton_backend: Backend) -> None:
    """A factor without an imaginary part multiplies no infinity by zero."""
    a = torch.tensor([[complex(torch.inf, 1.0)]], dtype=SINGLE, device=triton_backend.device)
    moved = weft.permute(a, "ab->ba", alpha=2.0, backend=triton_backend.name)
    assert moved[0, 0].real == torch.inf
    assert moved[0, 0].imag == 2


def test_reads_no_c_for_beta_zero(triton_backend: Backend) -> None:
    a = integers((4, 4), triton_backend, 1, SINGLE)
    c = torch.full((4, 4), torch.nan, dtype=SINGLE, device=triton_backend.device)
    result = weft.contract("mk,kn->mn", a, a, c=c, beta=0, backend=triton_backend.name)
    assert torch.equal(result.to(DOUBLE), reference.contract("mk,kn->mn", a, a))


@pytest.mark.parametrize(("fn", "word"), [(torch.asin, "asin"), (torch.acosh, "acosh")])
def test_functions_without_real_form_are_refused_by_name(fn: Any, word: str, triton_backend: Backend) -> None:
    a = integers((4, 4), triton_backend, 1, SINGLE)
    with pytest.raises(weft.UnsupportedError, match=word):
        weft.contract("mk,kn->mn", a, a, epilogue=fn, backend=triton_backend.name)


def test_single_precision_that_is_aligned_to_four_bytes(triton_backend: Backend) -> None:
    """No word of 64 bits may be read there: such arrays come from other libraries."""
    reals = torch.arange(41.0, device=triton_backend.device)[1:]
    layout = weft.spec.Layout((4, 5), (5, 1), SINGLE, alignment=4)
    assert kind_of(layout) == "pairs"
    assert kind_of(layout._replace(alignment=8)) == "words"
    assert reals.data_ptr() % 8 == 4
