"""`weft.cascade` against torch on all of S in float64: values, gradients, forms, masks, extents, errors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import weft
from cascades.functions_between import FUNCTIONS, Between
from cascades.plain import BY_NAME, EQUATION, F64, auxiliary, bias_of, gradients, operands, plainly, results, softmax


@pytest.mark.parametrize("limit", [None, 1 << 14, 1 << 13], ids=["one block", "blocks", "small blocks"])
@pytest.mark.parametrize("each", FUNCTIONS, ids=lambda each: each.name)
def test_values_and_gradients_are_those_of_all_of_s(each: Between, limit: int | None) -> None:
    tensors = [tensor.requires_grad_() for tensor in operands(h=3, q=19, k=26)]
    bias = bias_of(each, 19)
    inputs = tensors if bias is None else [*tensors, bias.requires_grad_()]
    keywords = auxiliary(each, bias)
    keywords.update(alpha=0.6, workspace_limit=limit, specialize="never")  # loops: `test_rows`
    found = results(weft.cascade(EQUATION, *tensors, between=each.function, **keywords))
    expected = plainly(each, *tensors, bias, 0.6)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(gradients(found, inputs), gradients(expected, inputs), rtol=1e-9, atol=1e-11)


def test_gradients_of_a_single_number() -> None:
    a, b, _ = (tensor[0].requires_grad_() for tensor in operands())
    c = torch.linspace(-1, 1, 13, dtype=F64)
    found = weft.cascade("qd,kd->qk, qk,k->", a, b, c, between=lambda s: weft.softmax(s, "qk"))
    expected = torch.softmax((a @ b.mT).flatten(), 0).reshape(11, 13) @ c
    torch.testing.assert_close(torch.autograd.grad(found, (a, b)), torch.autograd.grad(expected.sum(), (a, b)))


@pytest.mark.parametrize("each", FUNCTIONS, ids=lambda each: each.name)
def test_the_reference_is_all_of_s(each: Between) -> None:
    tensors, bias = operands(), bias_of(each, 11)
    keywords = auxiliary(each, bias)
    found = results(weft.cascade(EQUATION, *tensors, between=each.function, backend="reference", **keywords))
    torch.testing.assert_close(found, plainly(each, *tensors, bias, 1.0), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("each", FUNCTIONS, ids=lambda each: each.name)
def test_explain_says_the_form(each: Between) -> None:
    tensors, bias = operands(), bias_of(each, 11)
    said = weft.plan_cascade(EQUATION, *tensors, between=each.function, **auxiliary(each, bias)).explain()
    assert f"form        {each.form}: " in said
    assert "passes      1" in said


def test_what_does_not_fit_a_block_takes_passes() -> None:
    tensors = operands(h=1, q=40, k=200)
    keywords: dict[str, Any] = {"between": BY_NAME["standardized"].function, "workspace_limit": 1 << 15}
    plan = weft.plan_cascade(EQUATION, *tensors, **keywords)
    said = "form        passes: no running form: torch.pow takes an element together with a reduced value"
    assert said in plan.explain()
    assert "passes      3" in plan.explain()
    (expected,) = plainly(BY_NAME["standardized"], *tensors, None, 1.0)
    torch.testing.assert_close(plan(*tensors), expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
def test_errors_of_attention_stay_within_their_bound(dtype: torch.dtype, causal: bool) -> None:
    """|D - exact| is at most sum P |v| (2 |error of S| + (K + 8) u) and its rounding; S has K products of each."""
    q, k, v = operands(h=2, q=37, k=150, d=24, e=5, dtype=dtype)
    scale = 24**-0.5

    def between(s: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return weft.softmax(torch.where(j <= i, s, -math.inf) if causal else s, "k")

    keywords: dict[str, Any] = {"indices": {"i": "q", "j": "k"}, "workspace_limit": 1 << 14}
    found = weft.cascade(EQUATION, q, k, v, between=between, alpha=scale, **keywords)
    assert found.dtype == dtype
    wide = [tensor.double() for tensor in (q, k, v)]
    s = scale * wide[0] @ wide[1].mT
    if causal:
        s = s.masked_fill(~torch.ones(37, 150, dtype=torch.bool).tril(), -math.inf)
    p = torch.softmax(s, -1)
    unit, stored = torch.finfo(torch.float32).eps, torch.finfo(dtype).eps
    error_of_s = (24 + 4) * unit * scale * (wide[0].abs() @ wide[1].abs().mT).amax(-1, keepdim=True)
    bound = (2 * error_of_s + (150 + 8) * unit) * (p @ wide[2].abs()) + stored * (p @ wide[2]).abs()
    assert bool(((found.double() - p @ wide[2]).abs() <= bound + 1e-30).all())


@pytest.mark.parametrize(
    ("equation", "shapes", "plain"),
    [
        ("qd,kd->qk, qk,ke->qe", [(5, 3), (7, 3), (7, 2)], lambda s, v: s.softmax(-1) @ v),
        ("dkh,dqh->khq, hke,khq->eqh", [(3, 7, 2), (3, 5, 2), (2, 7, 4)], None),
        ("bghqd,bhkd->bghqk, bghqk,bhke->bghqe", [(2, 3, 2, 5, 4), (2, 2, 6, 4), (2, 2, 6, 3)], None),
        ("...qd,...kd->...qk, ...qk,...ke->...qe", [(2, 3, 5, 4), (2, 3, 6, 4), (2, 3, 6, 2)], None),
        ("hqd,kd->hqk, hqk,ke->hqe", [(2, 5, 4), (1, 4), (1, 3)], None),
        ("hqd,hkd->hqk, hqk,hke->qe", [(2, 5, 4), (1, 6, 4), (2, 6, 3)], None),
        ("qd,kd->qk, qk,k->q", [(5, 3), (7, 3), (7,)], None),
        ("qd,kd->qk, qk,k->", [(5, 3), (7, 3), (7,)], None),
        ("qqd,kd->qk, qk,ke->qe", [(5, 5, 3), (7, 3), (7, 2)], None),
        ("qdx,kd->qk, qk,kef->qe", [(5, 3, 2), (7, 3), (7, 2, 3)], None),
        ("qd,kd->qk, qk,qke->qe", [(5, 3), (7, 3), (5, 7, 2)], None),
        ((("row", "x"), (4, "x"), ("row", 4), (4, "e"), ("row", "e")), [(5, 3), (7, 3), (7, 2)], None),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_any_modes(equation: Any, shapes: list[tuple[int, ...]], plain: Any) -> None:
    tensors = [torch.randn(shape, dtype=F64) for shape in shapes]
    reduced = (4,) if isinstance(equation, tuple) else "k"

    def between(s: Tensor) -> Tensor:
        return weft.softmax(s, reduced)

    found = weft.cascade(equation, *tensors, between=between, workspace_limit=1 << 13)
    exact = weft.cascade(equation, *tensors, between=between, backend="reference")
    torch.testing.assert_close(found, exact, rtol=1e-12, atol=1e-13)
    if isinstance(equation, str) and "..." not in equation:
        first, middle, last = equation.replace(" ", "").split("->")
        s_term, *second = middle.split(",")
        pairs = zip(tensors, first.split(","), strict=False)
        a, b = (_spread(tensor, term, equation, tensors) for tensor, term in pairs)
        p = torch.softmax(torch.einsum(f"{first}->{s_term}", a, b), s_term.index("k"))
        at = 0 if set(second[0]) == set(s_term) else 1
        p = p.permute([s_term.index(label) for label in second[at]])
        c = _spread(tensors[2], second[1 - at], equation, tensors)
        pair = (p, c) if at == 0 else (c, p)
        torch.testing.assert_close(found, torch.einsum(f"{','.join(second)}->{last}", *pair), rtol=1e-11, atol=1e-12)


def _spread(tensor: Tensor, term: str, equation: str, tensors: list[Tensor]) -> Tensor:
    """A tensor with all extents of its labels, which einsum does not broadcast."""
    first, middle, _ = equation.replace(" ", "").split("->")
    s_term, *second = middle.split(",")
    terms = [*first.split(","), next(each for each in second if set(each) != set(s_term))]
    extents = {label: 1 for each in terms for label in each}
    for each, other in zip(terms, tensors, strict=True):
        for label, extent in zip(each, other.shape, strict=True):
            extents[label] = max(extents[label], extent)
    return tensor.expand([extents[label] for label in term])


FEW = [{"q": 0}, {"k": 0}, {"d": 0}, {"e": 0}, {"h": 0}, {"q": 1, "k": 1}, {"k": 1}]


@pytest.mark.parametrize("extents", FEW, ids=str)
def test_extents_of_nothing_and_of_one(extents: dict[str, int]) -> None:
    q, k, v = operands(**extents)
    d, rows = weft.cascade(EQUATION, q, k, v, between=lambda s: (weft.softmax(s, "k"), weft.logsumexp(s, "k")))
    s = q @ k.mT
    torch.testing.assert_close(d, torch.softmax(s, -1) @ v)
    torch.testing.assert_close(rows, s.logsumexp(-1))


def test_a_sum_of_nothing_is_nothing_whatever_it_is_divided_by() -> None:
    found = weft.cascade("qd,kd->qk", torch.ones(3, 2), torch.ones(0, 2),
                         between=lambda s: weft.sum(torch.exp(s - weft.logsumexp(s, "k")) * s, "k"))  # fmt: skip
    assert torch.equal(found, torch.zeros(3))


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_what_one_operand_has_alone_is_summed_in_the_type_of_sums(backend: str) -> None:
    a, b = torch.full((3, 8, 400), 200.0).half(), torch.full((5, 8), 0.25).half()  # 80000 is no float16
    found = weft.cascade("qdl,kd->qk", a, b, between=lambda s: weft.amax(s, "k"), backend=backend)
    assert torch.equal(found, torch.full((3,), 160000.0))
    found = weft.cascade("kd,qd->kq, kq,qdl->kd", b, b, a[:1].expand(5, 8, 400), between=lambda s: s * 0.001,
                         backend=backend)  # fmt: skip
    torch.testing.assert_close(found, torch.full((5, 8), 200.0).half())


def test_results_share_no_memory() -> None:
    a, b, _ = (tensor[0] for tensor in operands())
    first, second = weft.cascade("qd,kd->qk", a, b, between=lambda s: (weft.amax(s, "k"), weft.amax(s, "k")))
    expected = second.clone()
    first.zero_()
    assert torch.equal(second, expected)


def test_infinities_and_nan_stay_where_they_are() -> None:
    q, k, v = operands(h=1, q=4, k=6)
    mask = torch.zeros(4, 6, dtype=F64)
    mask[0] = -math.inf
    mask[1, 2] = math.inf
    mask[2, 3] = math.nan

    def between(s: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        return weft.softmax(s + mask, "k"), weft.logsumexp(s + mask, "k")

    d, rows = weft.cascade(EQUATION, q, k, v, between=between, operands={"mask": ("qk", mask)}, workspace_limit=1 << 13)
    assert bool((d[0, 0] == 0).all())
    assert rows[0, 0] == -math.inf
    assert rows[0, 1] == math.inf
    assert bool(rows[0, 2].isnan())
    assert bool(d[0, 2].isnan().all())
    torch.testing.assert_close(d[0, 3], torch.softmax(q[0, 3] @ k[0].mT, -1) @ v[0])


def test_masked_blocks_are_not_computed() -> None:
    """Whatever stands in keys that no query sees does not matter, nor does it cost anything."""
    q, k, v = (tensor.float() for tensor in operands(h=1, q=512, k=512))
    k[:, 400:], v[:, 400:] = math.nan, math.nan

    def between(s: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return weft.softmax(torch.where((j <= i) & (j > i - 32), s, -math.inf), "k")

    plan = weft.plan_cascade(EQUATION, q, k, v, between=between, indices={"i": "q", "j": "k"}, workspace_limit=1 << 16)
    assert "masks       pass 1 computes" in plan.explain()
    left = plan.explain().partition("computes ")[2].partition("%")[0]
    assert float(left) < 40
    assert not bool(plan(q, k, v)[:, :300].isnan().any())


def test_documents_of_an_operand_do_not_see_one_another() -> None:
    """Blocks of two documents are not computed: what stands there does not matter."""
    q, k, v = operands(h=1, q=256, k=256)
    document = torch.arange(256) // 64
    mine = q[:, :64].clone()
    k[:, 64:], v[:, 64:] = math.nan, math.nan

    def between(s: Tensor, mine: Tensor, theirs: Tensor) -> Tensor:
        return weft.softmax(torch.where(mine == theirs, s, -math.inf), "k")

    given = {"mine": ("q", document), "theirs": ("k", document)}
    found = weft.cascade(EQUATION, q, k, v, between=between, operands=given, workspace_limit=1 << 17)
    torch.testing.assert_close(found[:, :64], torch.softmax(mine @ k[:, :64].mT, -1) @ v[:, :64])


def test_a_result_of_whole_rows_is_stored_in_the_operands_type() -> None:
    x, w = torch.randn(6, 4).half(), torch.randn(9, 4).half()
    p, rows = weft.cascade("mk,nk->mn", x, w, between=lambda s: (weft.softmax(s, "n"), weft.amax(s, "n")))
    assert p.dtype == torch.float16
    assert rows.dtype == torch.float32
    torch.testing.assert_close(p.float(), torch.softmax(x.float() @ w.float().T, -1), rtol=1e-3, atol=1e-4)
    wide = weft.cascade("mk,nk->mn", x, w, between=lambda s: weft.softmax(s, "n"), out_dtype="fp32")
    assert wide.dtype == torch.float32


@pytest.mark.parametrize("asked", [torch.int32, torch.int8, torch.bool])
def test_a_type_that_cannot_hold_results_is_refused(asked: torch.dtype) -> None:
    q, k, v = torch.rand(4, 5), torch.rand(6, 5), torch.rand(6, 3)
    name = str(asked).removeprefix("torch.")
    with pytest.raises(weft.DTypeError, match=f"a result of type float32 cannot be stored as {name}"):
        weft.cascade("mk,nk->mn, mn,nd->md", q, k, v, between=lambda s: weft.softmax(s, "n"), out_dtype=asked)


def test_a_loss_over_many_words_needs_no_scores() -> None:
    x, w = torch.randn(9, 4, dtype=F64, requires_grad=True), torch.randn(50, 4, dtype=F64, requires_grad=True)
    target = torch.arange(9) * 5

    def between(s: Tensor, v: Tensor, target: Tensor) -> Tensor:
        return weft.mean(weft.logsumexp(s, "v") - weft.sum(torch.where(v == target, s, 0.0), "v"), "t")

    keywords: dict[str, Any] = {"operands": {"target": ("t", target)}, "indices": {"v": "v"}}
    loss = weft.cascade("tk,vk->tv", x, w, between=between, workspace_limit=1 << 13, **keywords)
    expected = torch.nn.functional.cross_entropy(x @ w.T, target)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(torch.autograd.grad(loss, (x, w)), torch.autograd.grad(expected, (x, w)))


def test_results_are_the_same_from_run_to_run() -> None:
    q, k, v = (tensor.float().requires_grad_() for tensor in operands(h=2, q=70, k=90))
    runs = []
    for _ in range(2):
        d = weft.cascade(EQUATION, q, k, v, between=lambda s: weft.softmax(s, "k"), workspace_limit=1 << 14)
        runs.append([d, *torch.autograd.grad(d.square().sum(), (q, k, v))])
    assert all(torch.equal(one, other) for one, other in zip(*runs, strict=True))


def test_arrays_of_numpy_come_back_in_kind() -> None:
    q, k, v = (tensor.numpy() for tensor in operands())
    found = weft.cascade(EQUATION, q, k, v, between=lambda s: (weft.softmax(s, "k"), weft.amax(s, "k")))
    assert all(isinstance(each, np.ndarray) for each in found)


def test_autocast_casts_operands() -> None:
    q, k, v = (tensor.float() for tensor in operands())
    with torch.autocast("cpu", torch.bfloat16):
        assert weft.cascade(EQUATION, q, k, v, between=lambda s: weft.softmax(s, "k")).dtype == torch.bfloat16


def test_a_plan_made_within_autocast_takes_the_tensors_that_it_is_made_of() -> None:
    q, k, v = torch.randn(3, 4), torch.randn(5, 4), torch.randn(5, 6)
    with torch.autocast("cpu", torch.bfloat16):
        plan = weft.plan_cascade("id,jd->ij, ij,je->ie", q, k, v)
        found = plan(q, k, v)
    for each in (found, plan(q, k, v)):
        torch.testing.assert_close(each, q @ k.T @ v)


def test_compiled_code_calls_it() -> None:
    q, k, v = (tensor.float() for tensor in operands())

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return weft.cascade(EQUATION, q, k, v, between=lambda s: weft.softmax(s, "k")) + 1

    torch.testing.assert_close(torch.compile(attention, backend="eager")(q, k, v), attention(q, k, v))


WRONG: list[tuple[str, type[Exception], str, Any]] = [
    ("a mode that S lacks", weft.NotationError, "reduces over 'z', which 'hqk' does not have",
     lambda q, k, v: weft.cascade(EQUATION, q, k, v, between=lambda s: weft.softmax(s, "z"))),
    ("torch's softmax", weft.FunctionError, r"aten\._softmax cannot be fused .*weft\.softmax\(s, 'k'\)",
     lambda q, k, v: weft.cascade(EQUATION, q, k, v, between=lambda s: torch.softmax(s, -1))),
    ("a word outside", weft.FunctionError, "of a tensor it is torch.softmax", lambda q, k, v: weft.softmax(q, "k")),
    ("a word in an epilogue", weft.FunctionError, "weft.cascade and weft.contract",
     lambda q, k, v: weft.contract("hqk,hke->hqe", q, v[:, :4], epilogue=softmax)),
    ("no modes", weft.FunctionError, "takes the modes that it reduces",
     lambda q, k, v: weft.cascade(EQUATION, q, k, v, between=lambda s: weft.sum(s, ""))),
    ("two modes of one place", weft.FunctionError, "argmax reduces one mode",
     lambda q, k, v: weft.cascade(EQUATION, q, k, v, between=lambda s: (s, weft.argmax(s, "qk")))),
    ("whole numbers for C", weft.DTypeError, "the value that meets C is int64",
     lambda q, k, v: weft.cascade(EQUATION, q, k, v, between=lambda s: weft.argmax(s, "k"))),
    ("another S", weft.NotationError, "the second begins with the same labels",
     lambda q, k, v: weft.cascade("hqd,hkd->hqk, hqd,hke->hqe", q, k, v, between=softmax)),
    ("three contractions", weft.NotationError, "a cascade is",
     lambda q, k, v: weft.cascade("hqd,hkd->hqk, hqk,hke->hqe, hqe,e->h", q, k, v)),
    ("no C", weft.NotationError, "names 3 operands, 2 were given", lambda q, k, v: weft.cascade(EQUATION, q, k)),
    ("types", weft.DTypeError, "a is float64 and b float32", lambda q, k, v: weft.cascade(EQUATION, q, k.float(), v)),
    ("whole numbers", weft.DTypeError, "takes float16, bfloat16, float32 and float64",
     lambda q, k, v: weft.cascade(EQUATION, q.int(), k.int(), v.int())),
    ("extents", weft.ShapeError, "label 'd' has extent 4 in operand 0 and 3",
     lambda q, k, v: weft.cascade(EQUATION, q, k[..., :3], v)),
    ("a mode of a bias", weft.NotationError, "which has no label 'z'",
     lambda q, k, v: weft.cascade(EQUATION, q, k, v, between=lambda s, b: s + b, operands={"b": ("z", q[0, :, 0])})),
    ("a name that nobody takes", weft.FunctionError, "no function takes 'b'",
     lambda q, k, v: weft.cascade(EQUATION, q, k, v, between=softmax, operands={"b": ("q", q[0, :, 0])})),
    ("memory", weft.UnsupportedError, "a block takes 8192 at least",
     lambda q, k, v: weft.cascade(EQUATION, q, k, v, between=softmax, workspace_limit=100)),
    ("a keyword", weft.ArgumentError, "takes no keyword 'epilogue'",
     lambda q, k, v: weft.cascade(EQUATION, q, k, v, epilogue=softmax)),
    ("a place of nothing", weft.ShapeError, "argmax of no elements",
     lambda q, k, v: weft.cascade("hqd,hkd->hqk", q, k[:, :0], between=lambda s: weft.argmax(s, "k"))),
    ("another shape", weft.ShapeError, "the plan is for operands of shapes",
     lambda q, k, v: weft.plan_cascade(EQUATION, q, k, v, between=softmax)(q[:, :2], k, v)),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "message", "call"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
def test_bad_input_is_refused_in_words(kind: type[Exception], message: str, call: Any) -> None:
    with pytest.raises(kind, match=message):
        call(*operands())
