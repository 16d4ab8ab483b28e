"""Networks distributed by modes: right, the same bits on every rank and again; within each rank's memory; no hang."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import torch

import modes_rank_cases as cases
import weft
from nets import chain, circuit
from on_ranks import Outcome, on_ranks
from weft.networks.modes_call import meshes_of

pytestmark = pytest.mark.early


def values(outcomes: list[Outcome]) -> list[Any]:
    assert [outcome.message for outcome in outcomes] == [""] * len(outcomes)
    assert not any(outcome.ended for outcome in outcomes)
    return [outcome.value for outcome in outcomes]


def hold(found: list[dict[str, Any]]) -> None:
    for name, first in found[0].items():
        assert first["right"], name
        for one in found:
            for other in (one[name]["first"], one[name]["again"]):
                assert all(np.array_equal(x, y) for x, y in zip(first["first"], other, strict=True)), name
    assert min(found[0][name]["sent"] for name in ("ladder", "odd", "complex", "sliced", "max_plus")) > 0


@pytest.fixture(scope="module")
def four() -> list[dict[str, Any]]:
    return values(on_ranks(4, cases.everything, limit=300))


@pytest.mark.parametrize("size", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_results_are_right_and_the_same_bits_on_all_ranks_and_again(size: int) -> None:
    hold(values(on_ranks(size, cases.results, limit=300)))


def test_so_are_those_of_four(four: list[dict[str, Any]]) -> None:
    hold([one["results"] for one in four])
    mesh_holds([one["mesh"] for one in four], (2, 2))


@pytest.mark.slow
def test_so_are_those_of_eight() -> None:
    eight = values(on_ranks(8, cases.on_eight, limit=400))
    hold([one["results"] for one in eight])
    mesh_holds([one["mesh"] for one in eight], (2, 4))
    assert [one["product"] for one in eight] == [True] * 8


def mesh_holds(found: list[dict[str, Any]], shape: tuple[int, ...]) -> None:
    assert all(one["right"] and one["mesh"] == shape for one in found)
    assert all(np.array_equal(found[0]["bits"][0], one["bits"][0]) for one in found)


def test_each_rank_keeps_within_the_limit(four: list[dict[str, Any]]) -> None:
    for one in (each["limit"] for each in four):
        assert one["out"]
        assert one["right"]
        assert one["memory"] <= one["limit"] < one["whole"]
        assert one["slices"] < one["alone"]


@pytest.mark.parametrize(
    ("what", "kind", "words"),
    [
        ("operands", "ShapeError", "rank 1 of 4: operand 0 has shape (3, 4), the network was made for (4, 4)"),
        ("operands of a known call", "ShapeError", "rank 1 of 4: operand 0 has shape (3, 4)"),
        ("way", "ArgumentError", "distribute='rows' is none of 'slices', 'modes', 'auto'"),
        ("no group", "ArgumentError", "distribute='modes' is for the ranks of a group: pass group="),
        ("checkpoint", "UnsupportedError", "checkpoint goes with distribute='slices' alone"),
        ("path", "ShapeError", "path differs: rank 0 of 4:"),
        ("exponents", "UnsupportedError", "strip_exponent goes with distribute='slices' alone"),
    ],
)
def test_what_is_wrong_is_said_on_all(four: list[dict[str, Any]], what: str, kind: str, words: str) -> None:
    for one in four:
        error, message = one["refused"][what]
        assert error == kind
        assert words in message


def test_auto_takes_what_is_predicted_to_be_faster(four: list[dict[str, Any]]) -> None:
    assert four[0]["auto"] == {"free": "modes", "slow": "slices"}


def test_a_rank_that_ends_is_named_on_the_others() -> None:
    begun = time.monotonic()
    first, second, third = on_ranks(3, cases.amid_a_call, "ends", limit=90)
    assert second.ended
    for outcome in (first, third):
        assert outcome.error == "RankError"
        assert "rank 1 of 3" in outcome.message
        assert "ended" in outcome.message
    assert time.monotonic() - begun < 60


def test_a_rank_that_fails_is_named_on_all() -> None:
    outcomes = on_ranks(3, cases.amid_a_call, "fails", limit=90)
    assert [outcome.error for outcome in outcomes] == ["RankError"] * 3
    assert all("rank 1 of 3: something on rank 1" in outcome.message for outcome in outcomes)


def test_a_rank_that_is_slow_is_waited_for() -> None:
    assert values(on_ranks(3, cases.amid_a_call, "is slow", limit=90)) == [True] * 3


def test_meshes_have_the_ranks_in_dimensions_of_their_factors() -> None:
    assert meshes_of(8) == [(8,), (4, 2), (2, 2, 2)]
    assert meshes_of(12) == [(12,), (4, 3), (2, 2, 3)]
    assert meshes_of(1) == [(1,)]
    assert meshes_of(7) == [(7,)]


def test_a_plan_on_paper_says_where_intermediates_are_and_what_travels() -> None:
    net = circuit(5, 14, 2)
    planned = weft.network(net.equation, *[(32,) * tensor.dim() for tensor in net.tensors])
    text = planned.explain(ranks=16, target="h200")
    for words in ("over 16 ranks, mesh", "8 ranks a machine", "on a rank besides the operands", "all-to-all along '"):
        assert words in text
    found = planned.report(ranks=16, target="h200")
    assert 0 < found["seconds"] < found["one_seconds"]
    assert found["sent_bytes"] > 0
    assert any(label is not None for step in found["steps"] for label in step["placed"])
    small = weft.network("ab,bc,cd->ad", *chain(3).tensors)
    assert small.report(ranks=1)["sent_bytes"] == 0
    with pytest.raises(weft.ArgumentError, match="ranks is a number of ranks, 1 or more, not 0"):
        planned.explain(ranks=0)
    with pytest.raises(weft.ArgumentError, match="target='h200' is of a call on paper: pass ranks="):
        planned.explain(target="h200")
    with pytest.raises(weft.UnsupportedError, match="one operand has no steps that ranks could share out"):
        weft.network("ab->ba", (2, 3)).report(ranks=2)


@pytest.mark.gpu
def test_results_over_nccl() -> None:
    """On two GPUs where there are two; on one nothing travels."""
    size = min(2, torch.cuda.device_count())
    found = values(on_ranks(size, cases.results, backend="cpu:gloo,cuda:nccl", limit=300))
    for name, first in found[0].items():
        assert first["right"], name
        assert all(np.array_equal(first["first"][0], one[name]["first"][0]) for one in found), name
