"""Times of whole ladders that the project recorded on GPUs: shown where a machine has none, and beside its own.

`python -m weft_bench.ladder.recorded results/h200/ladder results/h200/ladder-counters` takes over folders that
`weft ladder --out` wrote on one device; a ladder that several of them have is taken from the first.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from weft.errors import WeftError
from weft_bench.ladder.record import Climb, read
from weft_bench.ladder.retold import served_by_torch

FOLDER = resources.files("weft_bench.ladder").joinpath("data")


@dataclass(frozen=True)
class Recording:
    """All rungs that one device was timed on. Keys are ladder, flight and rung, each with seconds and share."""

    device: str
    date: str
    rungs: Mapping[tuple[str, str, str], tuple[float, float]]

    @property
    def brief(self) -> str:
        """The device without its maker: "H200"."""
        return self.device.removeprefix("NVIDIA ").split()[0]

    def has(self, ladder: str) -> bool:
        """Whether a rung of that ladder was timed."""
        return any(name == ladder for name, _, _ in self.rungs)

    def of(self, ladder: str, flight: str, rung: str) -> tuple[float, float] | None:
        """Seconds of a call and the share of the roofline floor; None where the rung was not timed."""
        return self.rungs.get((ladder, flight, rung))


@cache
def recordings() -> tuple[Recording, ...]:
    """All recordings of the distribution, by name of the device."""
    files = sorted((each for each in FOLDER.iterdir() if each.name.endswith(".json")), key=lambda file: file.name)
    return tuple(_read(json.loads(each.read_text(encoding="utf-8"))) for each in files)


def document(climbs: list[Climb]) -> dict[str, object]:
    """Climbs of one device as a JSON value. `WeftError` where one of them was not measured, or devices differ."""
    if not all(each.measured for each in climbs) or len({each.device for each in climbs}) != 1:
        raise WeftError("a recording is of ladders that were measured, all on one device")
    rungs = [
        [each.ladder, step.flight, step.name, float(f"{step.seconds['value']:.4g}"), float(f"{step.share or 0.0:.4g}")]
        for each in climbs
        for step in each.steps
        if step.seconds and not served_by_torch(each, step)
    ]
    dates = sorted({each.date[:10] for each in climbs})
    return {"device": climbs[0].device, "date": " to ".join(dict.fromkeys((dates[0], dates[-1]))), "rungs": rungs}


def _read(saved: dict[str, object]) -> Recording:
    rungs: list[tuple[str, str, str, float, float]] = saved["rungs"]  # type: ignore[assignment]
    return Recording(
        str(saved["device"]), str(saved["date"]),
        {(ladder, flight, rung): (seconds, share) for ladder, flight, rung, seconds, share in rungs},
    )  # fmt: skip


def first_of_each(folders: Iterable[Path]) -> list[Climb]:
    """A climb of every ladder that the folders have, from the first that has it."""
    found: dict[str, Climb] = {}
    for folder in folders:
        for each in read(folder):
            found.setdefault(each.ladder, each)
    return list(found.values())


def main(folders: list[str]) -> None:
    """Write the recording of some folders, which are of one device, into the package."""
    found = document(first_of_each(map(Path, folders)))
    name = str(found["device"]).lower().replace(" ", "-")
    rows = ",\n  ".join(json.dumps(row) for row in found["rungs"])  # type: ignore[attr-defined]
    head = f'{{"device": {json.dumps(found["device"])}, "date": "{found["date"]}", "rungs": [\n  '
    Path(str(FOLDER), f"{name}.json").write_text(f"{head}{rows}\n]}}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
