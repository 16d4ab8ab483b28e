"""A thesis's three benchmark pairs by its ten counters: a product, a branch, a two-site contraction.

Section 5.5.3 of *Design and Performance Engineering of GPU-Accelerated Tensor Network Algorithms* says of each pair
which counters are to part its two variants. They are read by Nsight Compute of the launch that takes longest, as those
of the ladder are; product and two-site contraction are rungs of it.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from weft.errors import UnsupportedError
from weft_bench.ladder.climbing import RungRecipe
from weft_bench.ladder.ladders import ladder
from weft_bench.ladder.rung import Size
from weft_bench.micro import published
from weft_bench.micro.computing import branch_call
from weft_bench.micro.record import Micro, Row
from weft_bench.profiling.counters import KNOWN, PACK, CounterSet
from weft_bench.profiling.profile import Profile, add_counters
from weft_bench.profiling.subject import Recipe


@dataclass(frozen=True)
class Pair:
    """Two variants of the same work; `higher` are counters that the first is to have more of."""

    name: str
    variants: tuple[str, str]
    higher: tuple[str, ...]


PAIRS = (
    Pair("product", ("cuBLAS", "naive"), ("K1", "K5", "K9")),
    Pair("divergence", ("by warp", "by lane"), ("K10",)),
    Pair("two-site", ("ordered", "direct"), ("K1", "K5", "K9")),
)
#: Ladder, flight and rung of the variants that are rungs.
_RUNGS = {
    ("product", "cuBLAS"): ("multiply", "fp32", "cuBLAS"),
    ("product", "naive"): ("multiply", "fp32", "coalesced"),  # the thesis's naive kernel reads rows of B as they lie
    ("two-site", "ordered"): ("tensor", "two-site", "two batched products"),
    ("two-site", "direct"): ("tensor", "two-site", "0 direct"),
}


@dataclass(frozen=True)
class BranchRecipe:
    """How the profiler's process makes the call of a branch: see `weft_bench.profiling.subject`."""

    by_lane: bool
    device: str

    def make(self) -> tuple[Callable[..., Any], Sequence[Any]]:
        call, out = branch_call(torch.device(self.device), self.by_lane)
        return call, [out]


def pairs(device: torch.device, name: str, budget: float) -> Micro:
    """The ten counters of each variant. `UnsupportedError` where they cannot be read; `budget` is for timings alone."""
    wanted = [(pair, variant) for pair in PAIRS for variant in pair.variants]
    found = _counted([recipe(pair.name, variant, str(device)) for pair, variant in wanted], device, name)
    return compared({(pair.name, variant): each for (pair, variant), each in zip(wanted, found, strict=True)}, name)


def recipe(pair: str, variant: str, device: str) -> Recipe:
    """How another process makes the call of a variant."""
    if pair == "divergence":
        return BranchRecipe(variant == "by lane", device)
    which, *place = _RUNGS[pair, variant]
    number = next(number for number, flight, rung in ladder(which) if [flight.name, rung.name] == place)
    return RungRecipe(which, number, Size(), device)


def compared(counted: Mapping[tuple[str, str], CounterSet], name: str) -> Micro:
    """The table of counters by pair and variant, and what parts each pair."""
    rows = [_row(pair, variant, found) for (pair, variant), found in counted.items()]
    figures, said = {}, []
    for pair in PAIRS:
        first, second = (counted[pair.name, variant] for variant in pair.variants)
        for key in pair.higher:
            more, less = first.get(key), second.get(key)
            if more is None or less is None:
                said.append(f"{key} of {pair.name} is not known")
                continue
            figures[f"{pair.name}: {key} of {pair.variants[1]} over {pair.variants[0]}"] = less / more
            if less >= more:
                said.append(f"{key} does not part {pair.name}")
    finding = "; ".join(said) or "all counters that are to part a pair do"
    return Micro(
        "pairs", name, "the ten counters of two variants of the same work", "variant", (), rows, figures, finding,
        published.PAIRS, published.SOURCE,
    )  # fmt: skip


def _counted(recipes: Sequence[Recipe], device: torch.device, name: str) -> list[CounterSet]:
    """The counters of the longest launch of each call; `UnsupportedError` that says why there are none."""
    profiles = [Profile("pair", "", name) for _ in recipes]
    add_counters([(found, pickle.dumps(each)) for found, each in zip(profiles, recipes, strict=True)], device)
    sets = []
    for found in profiles:
        if found.busiest is None:
            raise UnsupportedError(found.missing.get("counters", "no counters were read"))
        sets.append(found.busiest)
    return sets


def _row(pair: str, variant: str, found: CounterSet) -> Row:
    row: dict[str, float | str | None] = {"pair": pair, "variant": variant, "kernel": found.kernel}
    row |= {column(counter.key): found.get(counter.key) for counter in PACK}
    seconds = found.get("seconds")
    return row | {"under the profiler us": None if seconds is None else 1e6 * seconds}


def column(key: str) -> str:
    """The head of a counter's column: ``"K1 %"``."""
    return f"{key} {KNOWN[key].unit}".strip()
