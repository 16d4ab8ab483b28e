"""Times of whole ladders that the project recorded on GPUs: shown where a machine has none, and beside its own.

`python -m weft_bench.ladder.recorded results/h200/ladder` takes over a folder that `weft ladder --out` wrote.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from weft.errors import WeftError
from weft_bench.ladder.record import Climb, read

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
        if step.seconds
    ]
    dates = sorted({each.date[:10] for each in climbs})
    return {"device": climbs[0].device, "date": " to ".join(dict.fromkeys((dates[0], dates[-1]))), "rungs": rungs}


def _read(saved: dict[str, object]) -> Recording:
    rungs: list[tuple[str, str, str, float, float]] = saved["rungs"]  # type: ignore[assignment]
    return Recording(
        str(saved["device"]), str(saved["date"]),
        {(ladder, flight, rung): (seconds, share) for ladder, flight, rung, seconds, share in rungs},
    )  # fmt: skip


def main(folder: str) -> None:
    """Write the recording of a folder, which is of one device, into the package."""
    found = document(read(Path(folder)))
    name = str(found["device"]).lower().replace(" ", "-")
    rows = ",\n  ".join(json.dumps(row) for row in found["rungs"])  # type: ignore[attr-defined]
    head = f'{{"device": {json.dumps(found["device"])}, "date": "{found["date"]}", "rungs": [\n  '
    Path(str(FOLDER), f"{name}.json").write_text(f"{head}{rows}\n]}}\n")


if __name__ == "__main__":
    main(sys.argv[1])
