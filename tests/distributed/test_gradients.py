"""Gradients over ranks against torch's of the whole tensors on one process, in double precision."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import distributed_gradient_cases as cases
from on_ranks import on_ranks
from rank_problems import Case

pytestmark = pytest.mark.early

PRODUCT = Case("mk,kn->mn", {"m": 7, "n": 5, "k": 9}, {}, (2,))
BATCHED = Case("bmk,bkn->nbm", {"b": 5, "m": 3, "n": 4, "k": 7}, {}, (2,))
FUSED = Case(
    "mk,kn->mn", {"m": 7, "n": 5, "k": 9}, {}, (2,),
    options={"a_fn": cases.scaled, "b_fn": cases.squashed, "epilogue": cases.gelu_biased,
             "indices": {"row": "m", "at": "k"}},
    operands={"weight": "k", "bias": "n"}, c="mn", alpha=0.5, beta=2,
)  # fmt: skip
ALONE = Case("mks,kn->mn", {"m": 5, "n": 3, "k": 4, "s": 6}, {}, (2,), c="1n")  # s is summed in A alone
COMPLEX = Case("mk,kn->mn", {"m": 5, "n": 4, "k": 7}, {}, (2,), torch.complex128, c="mn", alpha=1 + 2j, beta=0.5 - 1j)


def of_two() -> list[Case]:
    """Every pair of placements of A, B and D on a line; a batch; functions; C; complex values; modes of one tensor."""
    placed = cases.placed
    of_a, of_b, of_d = ("m", "k", None), ("n", "k", None), ("m", "n", None)
    found = [placed(PRODUCT, a=of_a[i], b=of_b[j], d=of_d[(i + j) % 3]) for i in range(3) for j in range(3)]
    found += [placed(BATCHED, a=a, b=b, d=d) for a, b, d in (("b", "b", "b"), ("m", "k", "b"), (None, "b", "n"))]
    product = replace(PRODUCT, alpha=2.0, beta=3.0)
    found += [placed(replace(product, c=c), a="k", b="k", d=d) for c, d in (("1n", "m"), ("m1", None), ("11", "n"))]
    found += [placed(replace(product, c="m1", options={"c_fn": cases.squashed}), a="k", b="k", d="m"),
              placed(replace(product, c="mn", beta=0.0), a="m", b="n", d="n"),
              placed(replace(PRODUCT, options={"epilogue": cases.rectified}), a="k", b="n", d="n")]  # fmt: skip
    found += [placed(FUSED, a="k", b="k", d="m", bias="n"), placed(FUSED, a="m", b=None, d="n", weight="k"),
              placed(FUSED, a=None, b="n", d=None)]  # fmt: skip
    found += [placed(COMPLEX, a="k", b="k", d="m"), placed(COMPLEX, a="m", b="k", d=None)]
    diagonal = Case("mkk,kn->mn", {"m": 5, "n": 3, "k": 4}, {}, (2,), c="mn")
    empty = Case("mk,kn->mn", {"m": 1, "n": 3, "k": 2}, {}, (2,), options={"epilogue": cases.two_results})
    found += [placed(ALONE, a="s", b="k", d="m"), placed(ALONE, a="k", b="k", d=None),
              placed(diagonal, a="m", b="n", d="n"), placed(empty, a="m", b="k", d="m")]  # fmt: skip
    return found


def of_four() -> list[Case]:
    placed = cases.placed
    product, fused, batched = (replace(case, mesh=(2, 2)) for case in (PRODUCT, FUSED, BATCHED))
    line = replace(FUSED, mesh=(4,))
    return [
        placed(product, a=("m", "k"), b=(None, "k"), d=("m", "n")),
        placed(product, a=("k", "k"), b=("k", "n"), d=(None, "m")),
        placed(batched, a=("b", "m"), b=("b", None), d=("n", "n")),
        placed(fused, a=("m", "k"), b=("k", "k"), d=("n", None), bias=(None, "n"), weight=("k", None)),
        placed(fused, a=("k", None), b=("n", "k"), d=("m", "m")),
        placed(line, a="m", b="k", d="n", bias="n", weight="k"),
    ]


@pytest.fixture(scope="module")
def two() -> list[dict[str, Any]]:
    placed = cases.placed
    twice = [placed(PRODUCT, a="k", b="n", d="m"), placed(FUSED, a="k", b="k", d="m", bias="n"),
             placed(FUSED, a="m", b=None, d=None), placed(COMPLEX, a="m", b="k", d="n"),
             placed(ALONE, a="s", b="k", d="m")]  # fmt: skip
    outcomes = on_ranks(2, cases.on_two, of_two(), twice)
    assert [outcome.message for outcome in outcomes] == [""] * 2
    return [outcome.value for outcome in outcomes]


def test_gradients_are_parts_of_the_whole_ones(two: list[dict[str, Any]]) -> None:
    for one in two:
        assert not one["wrong"]


def test_gradients_of_gradients(two: list[dict[str, Any]]) -> None:
    for one in two:
        assert not one["wrong twice"]


def test_gradients_on_a_mesh_of_four() -> None:
    outcomes = on_ranks(4, cases.many, of_four())
    assert [outcome.message for outcome in outcomes] == [""] * 4
    for outcome in outcomes:
        assert not outcome.value


@pytest.mark.gpu
@pytest.mark.parametrize("ranks", [1, 2])
def test_gradients_with_nccl(ranks: int) -> None:
    if torch.cuda.device_count() < ranks:
        pytest.skip(f"{torch.cuda.device_count()} GPUs")
    chosen = [cases.placed(replace(case, mesh=(ranks,)), a="k", b="k", d="m") for case in (PRODUCT, FUSED, COMPLEX)]
    outcomes = on_ranks(ranks, cases.many, chosen, True, backend="nccl", limit=500)
    assert [outcome.message for outcome in outcomes] == [""] * ranks
    for outcome in outcomes:
        assert not outcome.value


def test_gradients_of_dtensors_lie_as_they_do(two: list[dict[str, Any]]) -> None:
    for one in two:
        assert one["dtensors"] == [True] * 6


def test_plans_of_gradients_are_made_once(two: list[dict[str, Any]]) -> None:
    for one in two:
        assert one["plans made"] == (1, 1, ["mn,kn->mk", "mn,mk->kn"])


def test_explain_lists_the_plans_of_the_backward_pass(two: list[dict[str, Any]]) -> None:
    before, after, detached, largest = two[0]["explained"]
    backward = before.partition("backward, of a, b, bias:")[2]
    assert [line.strip() for line in backward.splitlines() if line[2:4].strip()][1:] == [
        "G = mn,->mn of dD' and 1, reading sums, bias, in float32",
        "dA = mn,kn->mk of G and B', in float32",
        "dB before its function = mn,mk->kn of G and A, in float32",
        "dB = kn,->kn of B' and 1, reading dB before its function, in float32",
        "d bias = mn,->n of dD' and 1, reading sums, bias, in float32",
        "kept besides operands and results: the sums, 160 B of this rank's in float32",  # 5 of 9 rows of 8
    ]
    assert "D: reduce-scatter of sums along 'm'" in backward or "all-gather along 'k'" in backward
    assert "d bias: all-reduce of sums" in backward
    assert after == before  # the plans that were used are those that were foreseen
    assert "backward" not in detached
    assert largest.endswith("none: over ranks the algebra max_plus has no gradient")


def test_half_precision(two: list[dict[str, Any]]) -> None:
    for one in two:
        assert one["types"] == [torch.float16] * 2
        assert max(one["halves"]) < 4e-3


def test_what_has_no_gradient_is_one_error_on_every_rank(two: list[dict[str, Any]]) -> None:
    expected = {
        "on one rank": ("ShapeError", "which tensors require a gradient differs: rank 0 of 2: none; rank 1 of 2: a"),
        "algebra": ("UnsupportedError", "over ranks the algebra max_plus has none"),
        "backward": ("ShapeError", "which results have a gradient differs: rank 0 of 2: [True, True]; rank 1 of 2: "),
        "tangent": ("UnsupportedError", "a is inside a transform of torch.func, or has a tangent"),
        "transform": ("UnsupportedError", "ranks 0, 1 of 2: a is inside a transform of torch.func"),
        "a factor": ("DTypeError", "alpha is a Python number, not Tensor"),
        "repeated": ("UnsupportedError", "a has extent 1 along 'b', which is 4, and is placed by it"),
        "recorded on one rank": ("ShapeError", "create_graph differs: rank 0 of 2: False; rank 1 of 2: True"),
        "other second derivatives": ("RankError", "ranks are at different calls: rank 0 of 2: the backward pass of "
                                     "distributed.plan('mn,kn->mk'); rank 1 of 2: the backward pass of "
                                     "distributed.plan('mn,mk->kn')"),
        "both": ("UnsupportedError", "a is inside a transform of torch.func, or has a tangent"),
        "blocks": ("UnsupportedError", "a requires a gradient: with device= there is none"),
        "whole numbers": ("DTypeError", "is not differentiable"),
        "left out": ("RankError", "ranks are at different calls: rank 0 of 2: the backward pass of distributed.plan("),
    }
    for one in two:
        for name, (kind, words) in expected.items():
            assert one[name][0] == kind, (name, one[name])
            assert words in one[name][1], (name, one[name])
        assert not one["no_grad"]
