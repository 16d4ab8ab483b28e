"""The share of L2 accesses that hit, for one schedule in every order of its output tiles, by Nsight Compute."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from weft_bench.cases import Case
from weft_bench.profiling import ncu
from weft_bench.profiling.counters import CounterSet
from weft_bench.profiling.profile import SIDE_BY_SIDE
from weft_bench.profiling.replay import TURN
from weft_bench.profiling.subject import WEFT, CaseRecipe


def add_hits(orders: dict[str, Any], case: Case, place: torch.device) -> None:
    """Add ``hits``, per cent by the group of rows, to the orders of a case of a study; ``no hits`` says why there are
    none."""
    processors = torch.cuda.get_device_properties(place).multi_processor_count

    def counted(group: str, folder: Path) -> tuple[str, float | str]:
        file = folder / f"{group}.weft-call"
        file.write_bytes(pickle.dumps(CaseRecipe(case, WEFT, orders["schedules"][group], None, str(place))))
        found = ncu.count(file, processors=processors, device="", environment={TURN: str(folder / "turn")})
        longest = max(found.sets, key=_seconds, default=None)
        hits = longest.get("l2_hits") if longest is not None else None
        return group, hits if hits is not None else found.missing or "the profiler told no L2 hits"

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        found: Mapping[str, float | str] = dict(pool.map(lambda group: counted(group, Path(folder)), orders["seconds"]))
    orders["hits"] = {group: hits for group, hits in found.items() if not isinstance(hits, str)}
    if reasons := [hits for hits in found.values() if isinstance(hits, str)]:
        orders["no hits"] = reasons[0]


def _seconds(launch: CounterSet) -> float:
    return launch.get("seconds") or 0.0
