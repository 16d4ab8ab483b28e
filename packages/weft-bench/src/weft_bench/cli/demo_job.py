"""The main job: the suite `demo` (the paper's fused example and TCCG), each case checked and timed by the bench."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from weft.cli.arguments import read_device, split_cases
from weft.errors import NotationError, UnsupportedError, WorkspaceError
from weft.machine.ceilings import Ceilings
from weft.machine.rotation import Mode
from weft.machine.stamp import device_stamp
from weft.planner.target import interpreting, resolve_backend
from weft_bench import cases
from weft_bench.checking import tolerance_text
from weft_bench.entry import Entry
from weft_bench.environment import disclose
from weft_bench.peers.pytorch import Einsum
from weft_bench.peers.registry import Weft
from weft_bench.records import CaseRecord, Run
from weft_bench.runner import Runner
from weft_bench.suites import PAIRS, SUITES, entries
from weft_bench.timed_sets import Sampling

EXAMPLE = cases.example()
CPU_WORK = 1 << 25  # multiply-adds of a case on a CPU: so the whole demo takes about a minute, of one core too
INTERPRETED_WORK = 1 << 12  # Triton's interpreter takes milliseconds for every tile
BUDGET = 0.15  # seconds of samples for one timing
_OUT_OF_MEMORY = torch.OutOfMemoryError.__name__  # how the runner's sentence for it begins


@dataclass(frozen=True, slots=True)
class Settings:
    """Where and how large the demo runs."""

    device: torch.device
    backend: str  # resolved: never "auto"
    pair: str  # of number types in the suite: one of weft_bench.suites.PAIRS
    work: int | None  # most multiply-adds of a case; None leaves the published extents
    budget: float = BUDGET  # seconds of samples for one timing
    mode: Mode = "cold"

    @property
    def dtypes(self) -> tuple[torch.dtype, torch.dtype, torch.dtype]:
        """Number types of A, B and D in the suite."""
        stored, result, _ = PAIRS[self.pair]
        return stored, stored, result

    @property
    def scaling(self) -> str:
        """The change to the extents, for captions."""
        if self.work is None:
            return "as published"
        return f"shrunk by one factor a case, to at most {self.work:,} multiply-adds"


def settings_for(
    device: str | None = None,
    backend: str = "auto",
    work: int | None = None,
    budget: float = BUDGET,
    mode: Mode = "cold",
) -> Settings:
    """Fill in what was not asked for: a GPU where there is one, its published extents in fp16, scaled fp32 on a CPU.

    Raises `UnsupportedError` for a device that is not there or that the backend does not serve.
    """
    place = read_device(device, backend)
    chosen = resolve_backend(backend, place)
    if place.type == "cuda":
        return Settings(place, chosen, "fp16_fp32", work, budget, mode)
    most = INTERPRETED_WORK if chosen == "triton" and interpreting() else CPU_WORK
    return Settings(place, chosen, "fp32", work or most, budget, mode)


def select(text: str | None, settings: Settings) -> list[Entry]:
    """The example and the suite, or those that `text` names: ``"1,4,20-30"``, ``"tccg-07"``, ``"example"``.

    Raises `NotationError` for what names none.
    """
    only = split_cases(text)
    if text is not None and not only:
        raise NotationError("no case is named")
    names = [entry.case.name for entry in entries("demo", [settings.pair])]  # the example is the first
    for part in only:
        if part not in names and not (part.isdecimal() and 1 <= int(part) < len(names)):
            raise NotationError(f"case '{part}' is none of example, 1-{len(names) - 1}, {names[1]} ... {names[-1]}")
    return entries("demo", [settings.pair], only, settings.work)


class Demo:
    """One run of the demo. `run` holds what was measured, also after an error or an interruption."""

    def __init__(self, chosen: list[Entry], settings: Settings, known: Ceilings | None) -> None:
        # torch.einsum takes no `out`, and fresh memory costs time on a CPU: there both sides allocate their result.
        self._weft = Weft(backend=settings.backend, allocates=settings.device.type == "cpu")
        self._torch = Einsum(cast=False)
        self._chosen, self._settings, self._known = chosen, settings, known
        name = str(device_stamp(settings.device)["name"])
        self.run = Run(
            "demo", name, [self._weft.name, self._torch.name], _environment(settings, known), mode=settings.mode
        )

    def go(self, begun: Callable[[str], None], measured: Callable[[CaseRecord, str], None]) -> None:
        """Check and time every case. A wrong result ends a case, not the run.

        `begun` hears the name of each case, `measured` what came of it and what its plan says of itself.
        `WorkspaceError` where a case does not fit into memory; `UnsupportedError` where weft cannot do one.
        """
        settings = self._settings
        sampling = Sampling(mode=settings.mode, budget=settings.budget, within_budget=True)

        def kept(run: Run) -> None:
            if run.ended == "running":
                self._refuse_what_did_not_run()
                record, planned = run.cases[-1], self._weft.planned
                measured(record, planned.explain() if planned is not None else "")

        Runner(
            self.run, (self._weft, self._torch), settings.device, self._known, sampling,
            begun=lambda name: begun(name.rpartition(" ")[2]), kept=kept,
        ).go(self._chosen)  # fmt: skip

    @property
    def complete(self) -> bool:
        """Whether every case was measured."""
        return len(self.run.cases) == len(self._chosen) and self.run.ended == "finished"

    def _refuse_what_did_not_run(self) -> None:
        for name in self.run.skipped:
            raise WorkspaceError(f"{name.rpartition(' ')[2]}: {self._settings.device} is out of memory")
        record = self.run.cases[-1]
        if any(result.wrong.startswith(_OUT_OF_MEMORY) for result in record.results.values()):
            raise WorkspaceError(f"{record.name}: {self._settings.device} is out of memory")
        if reason := record.results[self._weft.name].cannot:
            raise UnsupportedError(reason)


def _environment(settings: Settings, known: Ceilings | None) -> dict[str, Any]:
    return disclose(
        settings.device,
        workloads={
            "suite": SUITES["demo"].about,
            "extents": settings.scaling,
            "inputs": "normal values, seeded",
        },
        correctness=tolerance_text(),
        ceilings=known,
        budget=settings.budget,
    )
