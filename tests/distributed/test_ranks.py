"""Ranks agree or all raise one error; a rank that ends or does not come is named; nothing hangs."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

import rank_cases
import weft
from on_ranks import on_ranks
from weft.distributed.ranks import find_ranks


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    outcomes = on_ranks(4, rank_cases.agreements)
    assert [outcome.message for outcome in outcomes] == [""] * 4
    return [outcome.value for outcome in outcomes]


def test_ranks_know_who_they_are(found: list[dict[str, Any]]) -> None:
    assert [one["who"] for one in found] == [(f"rank {rank} of 4", 4, 4, "gloo") for rank in range(4)]
    assert [one["sum"] for one in found] == [[6.0] * 3] * 4
    assert [one["in half"] for one in found[:2]] == ["rank 0 of 2", "rank 1 of 2"]
    for rank in (2, 3):
        assert found[rank]["in half"] == ("ArgumentError", f"rank {rank} of 4 is not in the group that is given")


def test_what_passes_everywhere_is_returned(found: list[dict[str, Any]]) -> None:
    assert [one["fine"] for one in found] == [[rank + 1] * 5 for rank in range(4)]
    assert [one["same"] for one in found] == [7] * 4
    assert [one["values"] for one in found] == [[{"rank": rank} for rank in range(4)]] * 4


def test_one_error_on_every_rank(found: list[dict[str, Any]]) -> None:
    some = ("ShapeError", "rank 1 of 4: extent 1 is odd\nrank 3 of 4: extent 3 is odd")
    assert [one["some"] for one in found] == [some] * 4
    assert [one["all"] for one in found] == [("DTypeError", "ranks 0, 1, 2, 3 of 4: float8 is too small")] * 4
    assert [one["foreign"] for one in found] == [("RankError", "ranks 1, 2, 3 of 4: list index out of range")] * 4


def test_ranks_that_ask_for_something_else_are_named(found: list[dict[str, Any]]) -> None:
    shapes = "the shape of a differs: rank 0 of 4: (False, 3); ranks 1, 2, 3 of 4: (True, 3)"
    assert [one["other shapes"] for one in found] == [("ShapeError", shapes)] * 4
    calls = "ranks are at different calls: rank 0 of 4: call False; ranks 1, 2, 3 of 4: call True"
    assert [one["other calls"] for one in found] == [("RankError", calls)] * 4


@pytest.mark.parametrize("where", ["agreement", "collective"])
def test_a_rank_that_ends_is_named_on_all_others(where: str) -> None:
    begun = time.monotonic()
    outcomes = on_ranks(4, rank_cases.one_ends, where, limit=30)
    assert outcomes[2].ended
    for rank in (0, 1, 3):
        assert outcomes[rank].error == "RankError"
        assert "rank 2 of 4" in outcomes[rank].message
        assert "ended" in outcomes[rank].message
        assert ("the second call" if where == "agreement" else "all-gather of A, part") in outcomes[rank].message
    assert time.monotonic() - begun < 20


def test_what_goes_wrong_on_a_mesh_goes_wrong_on_all_its_lines() -> None:
    outcomes = on_ranks(4, rank_cases.on_a_mesh, limit=100)
    for rank, outcome in enumerate(outcomes):
        assert outcome.message == ""
        meshes, said, seconds = outcome.value
        kind, words = meshes["other"]
        assert kind == "ShapeError"
        assert words.startswith("the mesh differs: rank 0 of 4: (2, 2); ranks 1, 2, 3 of 4: (4, 1)")
        kind, words = meshes["no"]
        assert kind == "ArgumentError"
        assert words.startswith("rank 2 of 4: the mesh 2 x 3 has 6 places, the group 4 ranks")
        if rank == 2:
            assert said[0] == "RankError"
            assert "rank 3 of 4 failed: MemoryError: no room" in said[1]
        assert seconds < 25  # not the time limit


def test_a_rank_that_does_not_come_is_named() -> None:
    first, second = on_ranks(2, rank_cases.one_is_late, limit=30)
    assert first.message == "rank 1 of 2 did not come to the only call within 0.7 s"
    assert second.value == "late"


def test_no_group_is_a_clear_error() -> None:
    with pytest.raises(weft.ArgumentError, match=r"no process group: start the program with torchrun"):
        find_ranks()
    with pytest.raises(weft.ArgumentError, match="timeout is a number of seconds above 0, not -1"):
        find_ranks(timeout=-1)
    assert not torch.distributed.is_initialized()
