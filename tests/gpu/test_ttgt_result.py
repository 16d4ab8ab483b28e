"""D written from a workspace: where it is proposed, what it costs, and that it computes the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import weft
from support import Backend, integers
from weft.gpu.composite import ttgt
from weft.planner.planner import choose
from weft.planner.program import Program
from weft.planner.schedule import Target
from weft.planner.target import standing_for
from weft.spec import Contraction, Layout, canonical
from weft.spec.contraction import class_modes
from weft.spec.dtypes import resolve
from weft.spec.notation import parse
from weft.testing import assert_close, expectation, poisoned

H200 = Target("cuda", 0, "NVIDIA H200", 90, 132, 232448)
HALF_TO_SINGLE = {"dtype": torch.float16, "out_dtype": torch.float32}

# equation, shapes, layout of D: a batch mode innermost, modes of A and B in turn, gaps, rows between words, m innermost
CASES = [
    ("xmyk,ykxn->mxny", (3, 4, 5, 7), (5, 7, 3, 6), "contiguous"),
    ("aebf,dfce->abcd", (3, 4, 5, 2), (4, 2, 3, 4), "padded"),
    ("aebf,dfce->cadb", (3, 4, 5, 2), (4, 2, 3, 4), "contiguous"),
    ("mk,kn->mn", (9, 6), (6, 11), "strided"),
    ("mk,kn->mn", (9, 6), (6, 11), "offset"),
    ("kma,kn->mna", (6, 5, 3), (6, 7), "contiguous"),
]


def described(equation: str, extents: dict[str, int], dtype: torch.dtype, strides: tuple[int, ...] = ()) -> Contraction:
    notation = parse(equation)
    a, b = (Layout.contiguous([extents[label] for label in term], dtype) for term in notation.inputs)
    d = Layout.contiguous([extents[label] for label in notation.output], dtype)
    d = d._replace(strides=strides or d.strides)
    modes = class_modes(notation, a, b, None, d, extents)
    return canonical(Contraction(modes, a, b, None, d, resolve(dtype, dtype), text=equation))


def permuting(contraction: Contraction, target: Target) -> list[Program]:
    """Programs that write D from a workspace."""
    found = ttgt.schedules(contraction, target).schedules
    return [schedule for schedule in found if str(schedule).endswith("; D permuted")]


def test_a_result_with_a_batch_mode_innermost_is_written_last() -> None:
    extents = {"x": 32, "y": 32, "m": 64, "k": 64, "n": 64}
    choice = choose(described("xmyk,ykxn->mxny", extents, torch.float16), "triton", H200)
    best = choice.best.schedule
    assert str(best).endswith("; D permuted")
    assert best.workspace_bytes >= 32 * 32 * 64 * 64 * 2
    limited = choose(choice.description, "triton", H200, workspace_limit=best.workspace_bytes - 1)  # type: ignore[arg-type]
    assert all(ranked.schedule.workspace_bytes < best.workspace_bytes for ranked in limited.ranked)


def test_the_library_multiplies_what_it_could_not_have_written() -> None:
    """Large products of double precision are fastest in the library, and that writes no rows with gaps."""
    extents = dict.fromkeys("mkn", 4096)
    strided = described("mk,kn->mn", extents, torch.float64, (8192, 2))
    chosen = str(choose(strided, "triton", H200).best.schedule)
    assert chosen.startswith("ttgt ")
    assert chosen.endswith("; blas mm; D permuted")


def test_a_result_that_lies_as_a_matrix_is_written_by_the_product() -> None:
    extents = dict.fromkeys("mkn", 4096)
    for dtype in (torch.float16, torch.float32):
        assert not list(ttgt.ways(described("mk,kn->mn", extents, dtype)))
    rows = described("mk,kn->mn", extents, torch.float16, (4097, 1))  # between words
    assert list(ttgt.ways(rows))


@pytest.mark.parametrize(
    "options",
    [
        HALF_TO_SINGLE,
        {"dtype": torch.float32, "alpha": 0.5},
        {"dtype": torch.float32, "alpha": 2.0, "beta": 3.0, "add": True},
        {"dtype": torch.float16, "alpha": 0.5, "beta": -1.0, "add": True, "c_fn": torch.abs, "a_fn": torch.relu},
        {"dtype": torch.float32, "alpha": -1.0, "epilogue": torch.relu},
    ],
    ids=["halves", "scaled", "added", "half added, functions", "epilogue"],
)
@pytest.mark.parametrize(("equation", "a_shape", "b_shape", "layout"), CASES)
def test_every_workspace_gives_the_product(
    equation: str,
    a_shape: tuple[int, ...],
    b_shape: tuple[int, ...],
    layout: str,
    options: dict[str, Any],
    triton_backend: Backend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ttgt, "LEAST_FLOPS", 1)
    monkeypatch.setattr(ttgt, "TILED", ())  # there is no library in the interpreter
    monkeypatch.setattr(ttgt, "_is_matrix", lambda _: False)  # also where a product would write D well
    options = dict(options)
    dtype, alpha, beta = options.pop("dtype"), options.pop("alpha", 1.0), options.pop("beta", 1.0)
    add = options.pop("add", False)
    a, b = integers(a_shape, triton_backend, 1, dtype), integers(b_shape, triton_backend, 2, dtype)
    plan = weft.plan(equation, a, b, backend=triton_backend.name, **options)
    guarded = poisoned(plan.shape, plan.dtype, layout=layout, device=triton_backend.device)
    c = integers(plan.shape, triton_backend, 3, plan.dtype) if add else None
    contraction = plan._request.contraction(Layout.of(c) if c is not None else None, Layout.of(guarded.tensor))
    target = plan._request.target
    found = permuting(contraction, target)
    assert found
    expected, bound = expectation(equation, a, b, c=c, alpha=alpha, beta=beta, **options)
    for schedule in list({str(each.product.description): each for each in found}.values())[:2]:
        guarded.tensor.fill_(float("nan"))
        ttgt.build(contraction, schedule, target)(a, b, c, guarded.tensor, alpha, beta if add else 0.0)
        guarded.check_guards()
        assert_close(guarded.tensor, expected, bound)


def test_an_epilogue_takes_operands_and_coordinates_and_leaves_two_results(
    triton_backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ttgt, "LEAST_FLOPS", 1)
    device = triton_backend.device
    a, b = integers((3, 4, 5, 7), triton_backend, 1), integers((5, 7, 3, 6), triton_backend, 2)
    bias = integers((6,), triton_backend, 3)
    plan = weft.plan(
        "xmyk,ykxn->mxny", a, b, backend="triton",
        epilogue=lambda acc, bias, m: (acc + bias, torch.where(m >= 2, acc, -acc)),
        operands={"bias": ("n", bias)}, indices={"m": "m"},
    )  # fmt: skip
    contraction, target = plan.contraction, plan._request.target
    schedule = permuting(contraction, target)[0]
    d, other = (torch.full(plan.shape, float("nan"), device=device) for _ in range(2))
    kinds = {"operand": bias, "index": None, "output": other}
    aux = tuple(kinds[each.kind] for each in contraction.aux)
    ttgt.build(contraction, schedule, target)(a, b, None, d, 1.0, 0.0, aux)
    acc = torch.einsum("xmyk,ykxn->mxny", a, b)
    assert torch.equal(d, acc + bias[:, None])
    later = torch.arange(4, device=device)[:, None, None, None] >= 2
    assert torch.equal(other, torch.where(later, acc, -acc))


def test_whole_numbers_are_written_last_too(triton_backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ttgt, "LEAST_FLOPS", 1)
    a, b = (integers(shape, triton_backend, at, torch.int8) for at, shape in enumerate(((3, 5, 7), (4, 7, 6))))
    c = integers((3, 4, 6, 5), triton_backend, 3, torch.int32)
    plan = weft.plan("amk,bkn->abnm", a, b, backend="triton", out_dtype=torch.int32)
    contraction, target = plan._request.contraction(Layout.of(c), Layout.of(c)), plan._request.target
    schedule = permuting(contraction, target)[0]
    # Multiplied on the CPU: torch has no whole-number product on a GPU.
    expected = 2 * torch.einsum("amk,bkn->abnm", a.cpu().int(), b.cpu().int()).to(c.device) - c
    d = torch.full_like(c, -77)
    ttgt.build(contraction, schedule, target)(a, b, c, d, 2, -1)
    assert torch.equal(d, expected)
    ttgt.build(contraction, schedule, target)(a, b, c, c, 2, -1)  # C is D
    assert torch.equal(c, expected)


def biased(total: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.relu(total + bias)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_library_multiplies_what_functions_with_operands_follow(dtype: torch.dtype) -> None:
    """It fuses nothing, and is faster by more than the pass that does."""
    a, b, bias = torch.empty(2048, 2048, dtype=dtype), torch.empty(2048, 2048, dtype=dtype), torch.empty(2048)
    asked: dict[str, Any] = {"epilogue": biased, "operands": {"bias": ("n", bias.to(dtype))}, "backend": "triton"}
    with standing_for(H200):
        schedule = str(weft.plan("mk,kn->mn", a, b, specialize="now", **asked).schedule)
        assert schedule.endswith("ttgt nothing packed; blas mm; D permuted")
        half = weft.plan("mk,kn->mn", a.half(), b.half(), specialize="now", **asked)
    assert "blas" not in str(half.schedule)  # a kernel here does all at the library's speed


@pytest.mark.parametrize(("dtype", "added"), [(torch.float32, False), (torch.float64, True)])
def test_functions_with_operands_behind_a_product(
    dtype: torch.dtype, added: bool, triton_backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ttgt, "LEAST_FLOPS", 1)
    monkeypatch.setattr(ttgt, "TILED", ())
    a, b = integers((9, 6), triton_backend, 1, dtype), integers((6, 11), triton_backend, 2, dtype)
    bias = integers((11,), triton_backend, 3, dtype)
    c = integers((9, 11), triton_backend, 4, dtype) if added else None
    asked: dict[str, Any] = {"epilogue": biased, "operands": {"bias": ("n", bias)}, "backend": triton_backend.name}
    plan = weft.plan("mk,kn->mn", a, b, c=c, **asked)
    choice = choose(plan._first().description, "triton", plan._request.target)
    ranked = next(each for each in choice.ranked if str(each.schedule).endswith("; D permuted"))
    expected = torch.relu(a @ b + (c if c is not None else 0) + bias)
    found = torch.full((9, 11), float("nan"), dtype=dtype, device=triton_backend.device)
    launch = ttgt.build(choice.description, ranked.schedule, choice.target)  # type: ignore[arg-type]
    launch(a, b, c, found, 1.0, 1.0, (bias,))
    assert torch.equal(found, expected)  # integers: nothing rounds
