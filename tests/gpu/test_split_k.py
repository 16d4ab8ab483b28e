"""Uneven shares: every step of every sum is in one share of one program."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from weft.gpu.common.contraction_launch import StreamK, most_splits, stream
from weft.gpu.common.tiles import range_start, split_of_tile, splits_of
from weft.planner.target import interpreting


@triton.jit
def shares_of_portion(found, STREAM_K: tl.constexpr, MOST: tl.constexpr):
    """Of each task that a portion meets: `(task, share, first step, steps)`, and how many shares there are."""
    number = tl.program_id(0)
    start = range_start(number, STREAM_K)
    end = range_start(number + 1, STREAM_K)
    row = found + number * MOST * 5
    for task in range(start // STREAM_K.steps, (end - 1) // STREAM_K.steps + 1):
        share, first, steps = split_of_tile(task, number, STREAM_K)
        tl.store(row, task)
        tl.store(row + 1, share)
        tl.store(row + 2, first)
        tl.store(row + 3, steps)
        tl.store(row + 4, splits_of(task * STREAM_K.n_tiles, STREAM_K))
        row += 5


@pytest.mark.skipif(not interpreting(), reason="a kernel of the test's own runs in the interpreter")
@pytest.mark.parametrize(
    ("tasks", "steps", "portions", "abreast"),
    [(36, 81, 132, 2), (72, 81, 132, 1), (72, 81, 264, 1), (1, 528, 132, 1), (5, 7, 4, 2), (131, 9, 132, 1)],
)
def test_every_step_is_in_one_share(tasks: int, steps: int, portions: int, abreast: int) -> None:
    cut = stream(tasks, steps, portions, abreast)
    most = tasks + 1
    found = torch.full((portions, most, 5), -1, dtype=torch.int32)
    shares_of_portion[(portions,)](found, cut, most)
    counts: dict[int, int] = {}
    covered: dict[int, list[tuple[int, int, int]]] = {}
    for portion in found.tolist():
        lengths = [length for task, share, first, length, count in portion if task >= 0]
        assert sum(lengths) in (cut.base, cut.base + 1)
        for task, share, first, length, count in portion:
            if task >= 0:
                covered.setdefault(task, []).append((share, first, length))
                assert counts.setdefault(task, count) == count
    assert sorted(covered) == list(range(tasks))
    for task, shares in covered.items():
        assert [share for share, _, _ in shares] == list(range(counts[task]))
        at = 0
        for _, first, length in shares:
            assert first == at
            assert length > 0
            at += length
        assert at == steps
    assert most_splits(tasks, cut) == max(counts.values())


def test_portions_differ_by_no_more_than_a_step() -> None:
    assert stream(36, 81, 132, 2) == StreamK(steps=81, base=22, longer=12, n_tiles=2)
    assert stream(3, 44, 132, 1) == StreamK(steps=44, base=1, longer=0, n_tiles=1)
