"""The same on GPUs with NCCL: one rank, and two where there are two devices."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import distributed_cases
from distributed_cases import random_case
from on_ranks import on_ranks

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("ranks", [1, 2])
def test_contractions_are_the_whole_on_one_device(ranks: int) -> None:
    if torch.cuda.device_count() < ranks:
        pytest.skip(f"{torch.cuda.device_count()} GPUs")
    cases = [random_case(seed, ranks, (torch.float32, torch.float16)) for seed in range(5)]  # each compiles kernels
    outcomes = on_ranks(ranks, distributed_cases.many, cases, 4, backend="nccl", limit=500)
    assert [outcome.message for outcome in outcomes] == [""] * ranks
    for outcome in outcomes:
        assert not [text for _, wrong in outcome.value for text in wrong]


@pytest.mark.parametrize("ranks", [1, 2])
def test_large_parts_travel_beside_contractions(ranks: int) -> None:
    """Sums by parts over ranks, with double buffers: values against float64, and again the same bits."""
    if torch.cuda.device_count() < ranks:
        pytest.skip(f"{torch.cuda.device_count()} GPUs")
    outcomes: list[Any] = on_ranks(ranks, distributed_cases.large_on_gpu, backend="nccl", limit=500)
    assert [outcome.message for outcome in outcomes] == [""] * ranks
    for outcome in outcomes:
        for name, (error, repeated, timeline) in outcome.value.items():
            assert error < 1e-3, name
            assert repeated, name
            assert "measured" in timeline
