"""The command ``python -m cookbook``: every recipe of docs/cookbook measured on this machine, into one JSON file.

    PYTHONPATH=src:tools python -m cookbook --out results/cpu/cookbook.json --threads 1
    PYTHONPATH=src:tools python -m cookbook --device cuda --out results/h200/cookbook.json

Times are by `weft.machine.timing`, the same tensors in every call. On a GPU calls are repeated for `STEADY` seconds
first, so that kernels made to measure have come where they pay, and a batch is one CUDA graph where the calls allow it.
Recipes that are not named keep what the file has of them.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from cookbook.recipes import Calls, pages, read
from weft.base.figures import duration
from weft.errors import WeftError
from weft.machine.stamp import commit, device_stamp
from weft.machine.timing import measure

STEADY = 2.0  # seconds of calls on a GPU before any is timed
SEED = 0


def main() -> int:
    options = _options()
    if options.threads:
        torch.set_num_threads(options.threads)
    chosen = [page for page in pages() if not options.recipes or page.stem in options.recipes]
    if missing := set(options.recipes) - {page.stem for page in chosen}:
        print(f"no page of docs/cookbook is called {', '.join(sorted(missing))}", file=sys.stderr)
        return 2
    record = _begun(options.out, options.device)
    if options.missing:
        chosen = [page for page in chosen if page.stem not in record["recipes"]]
    for page in chosen:
        torch.manual_seed(SEED)
        recipe = read(page, options.device)
        record["recipes"][recipe.name] = {
            "size": recipe.sizes[options.device],
            "commit": commit(),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "times": timed(recipe.calls(options.device), options.device, options.budget),
        }
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(record, indent=1) + "\n")
        found = record["recipes"][recipe.name]["times"]
        print(f"{recipe.name}: " + ", ".join(f"{name} {_said(each)}" for name, each in found.items()), flush=True)
    return 0


def timed(calls: Calls, device: str, budget: float) -> dict[str, Any]:
    """Seconds of each call, the median with its 95 % interval, and what departed from the protocol."""
    found: dict[str, dict[str, Any]] = {}
    for name, call in calls.items():
        try:
            if device == "cuda":
                _steady(call)
            taken = measure(call, [()], device=device, mode="hot", budget=budget)
        except (WeftError, RuntimeError) as error:  # memory that is not there, say: others are measured still
            found[name] = {"cannot": f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"}
            continue
        summary = taken.summary
        found[name] = {
            "seconds": summary.median, "low": summary.low, "high": summary.high, "samples": len(taken.samples),
            "captured": taken.captured, "notes": list(taken.notes),
        }  # fmt: skip
    return found


def _said(time: dict[str, Any]) -> str:
    return str(time["cannot"]) if "cannot" in time else duration(time["seconds"])


def _steady(call: Callable[[], Any]) -> None:
    end = time.perf_counter() + STEADY
    while time.perf_counter() < end:
        call()
        torch.cuda.synchronize()


def _begun(file: Path, device: str) -> dict[str, Any]:
    """The record in the file, where it is of this machine; a new record elsewhere."""
    stamp = device_stamp(device)
    known: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    recipes = known.get("recipes", {}) if known.get("machine") == stamp else {}
    command = f"PYTHONPATH=src:tools python -m cookbook {' '.join(sys.argv[1:])}"
    return {"machine": stamp, "command": command, "recipes": recipes}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m cookbook", description=__doc__.partition("\n")[0])
    parser.add_argument("recipes", nargs="*", help="names of pages; all where none is named")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file")
    parser.add_argument("--missing", action="store_true", help="only what the file does not have yet")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--threads", type=int, default=0, help="of torch on the CPU; as many as it has by default")
    parser.add_argument("--budget", type=float, default=0.5, help="seconds of samples for each call")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
