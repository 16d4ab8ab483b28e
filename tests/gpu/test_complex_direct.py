"""Complex products where the operands lie: every kind of tile gives the same whole numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import weft
from support import Backend, integers
from weft import reference
from weft.api.describe import TARGETS, choice_for, hypothetical
from weft.gpu.complex import direct
from weft.testing import assert_close, expectation, poisoned, random_operand

SINGLE, DOUBLE = torch.complex64, torch.complex128

CASES = [
    ("mk,kn->mn", (9, 7), (7, 5)),
    ("pqab,xaybz->xpyqz", (2, 2, 2, 3), (5, 2, 3, 3, 4)),  # a gate on two places of a state
    ("xyab,laxr->lbyr", (2, 2, 3, 3), (2, 3, 2, 3)),
    ("adb,cd->cba", (5, 18, 4), (3, 18)),  # as TCCG's case 1
    ("bmk,bkn->bmn", (2, 3, 5), (2, 5, 4)),
    ("kmk,kn->mn", (3, 4, 3), (3, 5)),  # a diagonal
    ("m,n->nm", (5,), (3,)),
    ("k,k->", (11,), (11,)),
    ("km,nk->nm", (40, 3), (35, 40)),
]


def described(case: tuple[Any, ...], a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None) -> Any:
    plan = weft.plan(case[0], a, b, backend="triton")
    layouts = (weft.spec.Layout.of(c) if c is not None else None, weft.spec.Layout.contiguous(plan.shape, a.dtype))
    return weft.spec.canonical(plan._request.contraction(*layouts, ())), plan._request.target


@pytest.mark.parametrize(("case", "at"), [(case, at) for at, case in enumerate(CASES)], ids=[case[0] for case in CASES])
def test_every_kind_of_tile_gives_the_same_whole_numbers(case: tuple[Any, ...], at: int) -> None:
    backend = Backend("triton", "cpu")
    dtype = (SINGLE, DOUBLE)[at % 2]
    conjugate = ((False, False), (True, False), (False, True), (True, True))[at % 4]
    a, b = (integers(shape, backend, at + number, dtype) for number, shape in enumerate(case[1:]))
    seen = [x.conj() if flag else x for x, flag in zip((a, b), conjugate, strict=True)]
    shape = tuple(reference.contract(case[0], a, b).shape)
    c = integers(shape, backend, 9, dtype) if at % 3 else None
    alpha, beta = (2 - 1j, 1 + 3j) if at % 2 else (1, 2)
    expected = reference.contract(case[0], *seen, c=c, alpha=alpha, beta=beta)
    contraction, target = described(case, *seen, c)
    assert direct.supports(contraction, target) is None
    found: dict[Any, direct.DirectSchedule] = {}
    for schedule in direct.schedules(contraction, target).schedules:
        m, n, k = schedule.tiles.tile
        found.setdefault((m > n, k > 1, len(schedule.tiles.m), len(schedule.tiles.n)), schedule)
    assert len(found) > 1
    for schedule in found.values():
        guarded = poisoned(shape, dtype)
        launch = direct.build(contraction, schedule, target)
        launch(a, b, c, guarded.tensor, complex(alpha), complex(beta))
        guarded.check_guards()
        assert torch.equal(guarded.tensor.to(DOUBLE), expected), str(schedule)


def several(x: torch.Tensor, bias: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x * bias + i, x.real, x.imag > 0, bias - x, i


# hooks, operands as (modes, shape, dtype), coordinates
FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "several results": ({"epilogue": several}, {"bias": ("n", (6,), SINGLE)}, {"i": "m"}),
    "of C and D": (
        {"c_fn": lambda x, full, half: x * full + half, "epilogue": lambda x, scalar: (x * scalar).imag},
        {"full": ("bmn", (2, 4, 6), DOUBLE), "half": ("mn", (4, 1), torch.float16), "scalar": ("", (), DOUBLE)}, {},
    ),
    "modulus of C": ({"c_fn": lambda x: (x * x.conj()).real}, {}, {}),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_c_and_d(name: str, dtype: torch.dtype) -> None:
    """Blocks of D are finished where they are made, operands, coordinates and further results included."""
    hooks, described, indices = FUNCTIONS[name]
    a, b, c = (
        integers(shape, Backend("triton", "cpu"), at, dtype)
        for at, shape in enumerate(((2, 4, 5), (2, 5, 6), (2, 4, 6)))
    )
    tensors = {key: random_operand(shape, kind, 5, integers=True) for key, (_, shape, kind) in described.items()}
    options = {**hooks, "indices": indices, "operands": {key: (described[key][0], x) for key, x in tensors.items()}}
    found = reference.contract("bmk,bkn->bmn", a.conj(), b, c=c, alpha=1j, beta=2 - 1j, **options)
    plan = weft.plan("bmk,bkn->bmn", a.conj(), b, backend="triton", **options)
    results = [poisoned((2, 4, 6), kind, layout="permuted") for kind in plan.dtypes]
    layouts = [weft.spec.Layout.of(result.tensor) for result in results]
    contraction = plan._request.contraction(weft.spec.Layout.of(c), layouts[0], tuple(layouts[1:]))
    target = plan._request.target
    assert direct.supports(contraction, target) is None
    taken = [tensors.get(each.name) for each in contraction.aux if each.kind != "output"]
    aux = [*taken, *(result.tensor for result in results[1:])]
    kinds = {}
    for schedule in direct.schedules(contraction, target).schedules:
        m, n, k = schedule.tiles.tile
        kinds.setdefault((m > n, k > 1), schedule)
    for schedule in kinds.values():
        for result in results:
            result.tensor.fill_(1)
        launch = direct.build(contraction, schedule, target)
        launch(a, b, c, results[0].tensor, 1j, 2 - 1j, aux)
        for result, wanted in zip(results, found if isinstance(found, tuple) else (found,), strict=True):
            result.check_guards()
            assert torch.equal(result.tensor.to(wanted.dtype), wanted), str(schedule)


def test_a_small_gate_with_an_epilogue_stays_where_it_lies() -> None:
    extents = {"p": 2, "q": 2, "a": 2, "b": 2, "x": 64, "y": 64, "z": 256}
    request = hypothetical(
        "pqab,xaybz->xpyqz", extents, dtype=SINGLE, target="sm_90", epilogue=lambda x, phase: x * phase,
        operands={"phase": ("xpyqz", SINGLE)},
    )  # fmt: skip
    _, choice = choice_for(request)
    assert choice is not None
    assert choice.best.schedule.family == "complex_direct"
    plain = hypothetical("pqab,xaybz->xpyqz", extents, dtype=SINGLE, target="sm_90")
    assert choice.best.seconds > 1.3 * choice_for(plain)[1].best.seconds  # type: ignore[union-attr]


@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE], ids=str)
def test_a_gate_with_functions(dtype: torch.dtype, triton_backend: Backend) -> None:
    """As large as memory bounds it on a device, where blocks are finished as they are made."""
    shape = (3, 2, 4, 2, 5) if triton_backend.interpreted else (64, 2, 32, 2, 256)
    gate, state = integers((2, 2, 2, 2), triton_backend, 1, dtype), integers(shape, triton_backend, 2, dtype)
    phase, row = integers(shape, triton_backend, 3, dtype), integers(shape[-1:], triton_backend, 4)
    plan = weft.plan(
        "pqab,xaybz->xpyqz", gate, state, backend=triton_backend.name, indices={"y": "y"},
        epilogue=lambda x, phase, row, y: (x * phase + y, (x * row).imag),
        operands={"phase": ("xpyqz", phase), "row": ("z", row)},
    )  # fmt: skip
    assert triton_backend.interpreted or plan.schedule.family == "complex_direct"
    found = plan(gate, state, operands={"phase": phase, "row": row})
    x = torch.einsum("pqab,xaybz->xpyqz", gate, state)
    y = torch.arange(shape[2], device=triton_backend.device)[:, None, None]
    assert torch.equal(found[0], x * phase + y)
    assert torch.equal(found[1], (x * row).imag)


@pytest.mark.parametrize("precision", ["ieee", "tf32"])
def test_is_within_the_bound(precision: str, triton_backend: Backend) -> None:
    a, b = (
        random_operand(shape, SINGLE, at, device=triton_backend.device)
        for at, shape in enumerate(((40, 9, 6), (5, 40)))
    )
    options = {"precision": precision}
    contraction_of = weft.plan("kmp,nk->npm", a, b, backend=triton_backend.name, **options)
    result = contraction_of(a, b)
    assert_close(result, *expectation("kmp,nk->npm", a, b, **options))


def test_a_small_gate_on_a_large_state_is_applied_where_it_lies() -> None:
    """Memory bounds it: the state is read once and written once, without a workspace."""
    extents = {"p": 2, "q": 2, "a": 2, "b": 2, "x": 1024, "y": 64, "z": 256}
    for dtype in (SINGLE, DOUBLE):
        _, choice = choice_for(hypothetical("pqab,xaybz->xpyqz", extents, dtype=dtype, target="sm_90"))
        assert choice is not None
        assert choice.best.schedule.family == "complex_direct"
        assert choice.best.schedule.workspace_bytes == 0


@pytest.mark.parametrize(("options", "word"), [
    ({"a_fn": lambda z: z * z}, "functions"),
    ({"dtype": torch.float32}, "complex"),
], ids=["function", "real"])  # fmt: skip
def test_says_why_not(options: dict[str, Any], word: str) -> None:
    given = {"dtype": SINGLE, **options}
    _, choice = choice_for(hypothetical("mk,kn->mn", {"m": 32, "k": 32, "n": 32}, target="sm_90", **given))
    assert choice is not None
    assert any(reason.startswith("complex_direct:") and word in reason for reason in choice.excluded), choice.excluded


def test_large_products_are_left_to_others() -> None:
    extents = dict.fromkeys("mkn", 2048)
    for dtype in (SINGLE, DOUBLE):
        contraction, choice = choice_for(hypothetical("mk,kn->mn", extents, dtype=dtype, target="sm_90"))
        assert choice is not None
        assert choice.best.schedule.family != "complex_direct"
        assert direct.supports(contraction, TARGETS["sm_90"]) is None
