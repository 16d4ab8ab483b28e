"""The runner on permutations, fused and in place."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from bench.sides import CEILINGS, CPU, QUICK, Side
from weft.selftest.case import PermuteCase
from weft_bench.entry import Entry
from weft_bench.records import Run
from weft_bench.runner import Runner
from weft_bench.suites import entries
from weft_bench.timed_sets import Sampling


def moving(kind: str, case: PermuteCase, *sides: Any) -> Run:
    run = Run("test", "a CPU", [side.name for side in sides], {})
    runner = Runner(run, sides, CPU, CEILINGS, QUICK, kind)
    runner.go([Entry(case, "group", case.name)])
    return run


MATRIX = PermuteCase("matrix", "ab->ba", (6, 4))


def test_a_permutation_is_compared_bit_for_bit() -> None:
    def off(x: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
        d.copy_(x.t())
        d.view(torch.int32)[0, 0] += 1
        return d

    run = moving("permutation", MATRIX, Side("weft", lambda x, d: d.copy_(x.t())), Side("torch", off))
    (case,) = run.cases
    assert case.work == {"flops": 0, "function_flops": 0, "bytes": 2 * 24 * 4}
    assert case.floor["copy"] == pytest.approx(192e-9)
    assert case.dtypes == ("float32", "float32")
    assert case.extents == [("a", 6), ("b", 4)]
    assert case.results["weft"].error_over_bound == 0
    assert case.results["torch"].wrong == "wrong: 1 of 24 words differ from what torch moves"


def test_a_fused_permutation_has_the_functions_bits_and_counts_its_own_bytes() -> None:
    case = replace(MATRIX, fn="relu", out_dtype=torch.float16)
    run = moving("permutation", case, Side("weft", lambda x, d: d.copy_(torch.relu(x).t())))
    assert run.cases[0].work["bytes"] == 24 * 6
    assert run.cases[0].functions == {"fn": "relu"}
    assert run.cases[0].results["weft"].samples


def test_each_way_in_place_begins_with_the_same_matrix() -> None:
    def transpose(x: torch.Tensor) -> torch.Tensor:
        turned = x.view(-1).view(4, 6)
        turned.copy_(x.t().contiguous())
        return turned

    run = moving(
        "in place", MATRIX, Side("weft", transpose), Side("torch", transpose), Side("odd", lambda x: x.t() + 0)
    )
    results = run.cases[0].results
    assert results["weft"].samples
    assert results["torch"].samples
    assert "lies in other memory" in results["odd"].wrong
    wrong = moving("in place", MATRIX, Side("weft", lambda x: x.view(-1).view(4, 6)))
    assert "words differ" in wrong.cases[0].results["weft"].wrong


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("suite", "only", "peers"),
    [
        ("permute", ["permute-3*", "permute-2^25"], ("torch", "cutensor")),
        ("transpose", ["in-place-4096*"], ("torch",)),
        ("dense", ["dense-square-100x*", "dense-state-*"], ("cublas",)),
    ],
)
def test_on_a_gpu_other_kinds_are_checked_and_timed(suite: str, only: list[str], peers: tuple[str, ...]) -> None:
    from weft_bench.peers.registry import contender
    from weft_bench.suites import SUITES

    kind = SUITES[suite].kind
    sides = [contender(name, kind, quick=True) for name in ("weft", *peers)]
    run = Run(suite, "a GPU", [side.name for side in sides], {})
    Runner(run, sides, torch.device("cuda"), sampling=Sampling(budget=0.02), kind=kind).go(entries(suite, only=only))
    assert run.ended == "finished"
    assert list(run.failures()) == []
    assert all(mine.timing["captured"] for _, _, mine in run.pairs(peers[0]))
    assert run.pairs(peers[0])
