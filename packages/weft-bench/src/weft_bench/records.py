"""The record of a run: one JSON file with every sample and the disclosure, and a CSV of the essentials.

A run is written anew after every case, whole or not at all, so that what was measured survives an interruption.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from weft.base import files
from weft.errors import WeftError
from weft.machine.statistics import Interval, Summary, summarise
from weft_bench.entry import Entry

FORMAT = 1
MODEL = "weft-model"  # weft itself with plans that its cost model alone has chosen
SAME = "weft-same"  # weft by the schedule that the case without its functions has
INVARIANT = "weft-invariant"  # weft, no bit of D depending on the extents of A's own modes
CONTRACT = "weft-contract"  # weft.contract in the place of a plan
NOW_TIER, LIBRARY_TIER = "weft-now", "weft-library"  # plans by what `specialize` says
PEAK = "peak bytes"  # that a call takes, in what a result says about itself
VARIANTS = (MODEL, SAME, INVARIANT, CONTRACT, NOW_TIER, LIBRARY_TIER)  # weft too, in another way: no peers
RUN_FILE = "run.json"
CSV_FILE = "run.csv"
COLUMNS = (
    *("case", "group", "equation", "extents", "dtypes", "precision", "functions", "contender", "way"),
    *("median_us", "low_us", "high_us", "rrs", "samples", "ended", "tflops", "tbps", "floor_us", "floor_share"),
    *("error_over_bound", "remark"),
)
JOULES = "joules"  # of a call: a column where energy was measured


@dataclass
class Result:
    """The result of one contender on one case: samples, or why there are none."""

    samples: tuple[float, ...] = ()  # seconds per call
    cannot: str = ""  # the contender has no way to do it, in its words
    wrong: str = ""  # its result was wrong, or it broke
    way: str = ""  # which of its ways counts
    error_over_bound: float | None = None  # of the way that counts; at most 1
    timing: dict[str, Any] = field(default_factory=dict)  # how the samples were taken: see weft.machine.timing.Timing
    about: dict[str, Any] = field(default_factory=dict)  # schedule, workspace, separate kernels
    ways: dict[str, float | str] = field(default_factory=dict)  # all that were tried: seconds, or why not
    errors: dict[str, float] = field(default_factory=dict)  # of several ways, over the bound
    beyond: dict[str, float] = field(default_factory=dict)  # seconds of those whose error is too large to count
    note: str = ""

    @cached_property
    def summary(self) -> Summary:
        """The summary of at least one sample."""
        return summarise(self.samples)

    @property
    def seconds(self) -> Interval:
        """The median and its interval."""
        return Interval(self.summary.median, self.summary.low, self.summary.high)


@dataclass
class CaseRecord:
    """One case: what it was, what it asks of the device, and what each contender did."""

    name: str
    group: str  # of the suite: number types, function, or what the case is about
    base: str  # name that cases share which differ in their functions alone
    equation: str
    extents: list[tuple[str, int]]
    dtypes: tuple[str, ...]  # of A, B and D; of the operand and the result where there is one operand
    precision: str
    functions: dict[str, str]  # hook to name
    layouts: tuple[str, ...]
    scaled: bool  # shrunk from its published extents
    modes: dict[str, int]  # extents M, N, K and batch as products; empty where weft cannot read the case
    work: dict[str, int]  # flops, function_flops, bytes
    floor: dict[str, Any]  # seconds by cause, intensity, what binds; empty without ceilings
    results: dict[str, Result] = field(default_factory=dict)

    def measured(self, contender: str) -> Result | None:
        """The contender's result if it has samples."""
        result = self.results.get(contender)
        return result if result is not None and result.samples else None


@dataclass
class Run:
    """One run of a suite on one device."""

    suite: str
    device: str  # the name that its maker gave it
    contenders: list[str]  # weft first, then peers
    environment: dict[str, Any]
    cases: list[CaseRecord] = field(default_factory=list)
    ended: str = "running"  # "finished", "interrupted", or why it ended early
    mode: str = "cold"  # or "hot": operands in the cache, where the floor does not hold
    host: bool = False  # the host's work for each call is what was timed
    selected: bool = False  # only some of the suite's cases were asked for
    skipped: dict[str, str] = field(default_factory=dict)  # cases left out, with the reason
    seconds: float | None = None  # that its cases took, in all the pieces that it was measured in; None of old records
    format: int = FORMAT

    @property
    def peers(self) -> list[str]:
        return [name for name in self.contenders[1:] if name not in VARIANTS]

    @property
    def ours(self) -> str:
        return self.contenders[0]

    @property
    def groups(self) -> list[str]:
        return list(dict.fromkeys(case.group for case in self.cases))

    @property
    def commit(self) -> str | None:
        return self.environment.get("artifacts", {}).get("commit")

    @property
    def command(self) -> str:
        return str(self.environment.get("artifacts", {}).get("command", ""))

    @property
    def date(self) -> str:
        return str(self.environment.get("date", ""))

    def pairs(self, peer: str, group: str | None = None) -> list[tuple[CaseRecord, Result, Result]]:
        """Cases that both `peer` and weft measured: case, the peer's result, ours."""
        found = []
        for case in self.cases:
            theirs, mine = case.measured(peer), case.measured(self.ours)
            if theirs is not None and mine is not None and group in (None, case.group):
                found.append((case, theirs, mine))
        return found

    def missing(self, entries: Sequence[Entry]) -> list[Entry]:
        """The entries of a suite that are not among the cases yet."""
        there = {(case.group, case.name) for case in self.cases}
        return [entry for entry in entries if (entry.group, entry.case.name) not in there]

    @property
    def scaled(self) -> bool:
        return any(case.scaled for case in self.cases)

    @property
    def caveat(self) -> str:
        """The reason why this run's figures are not the suite's own; empty for a whole run."""
        said = ["scaled cases"] * self.scaled + ["selected cases"] * self.selected
        said += ["operands in the cache"] * (self.mode == "hot" and not self.host)
        if self.ended != "finished":
            said.append(self.ended)
        return ", ".join(said)

    def failures(self) -> Iterator[tuple[CaseRecord, str]]:
        """Cases that weft computed wrong, with what was wrong."""
        for case in self.cases:
            result = case.results.get(self.ours)
            if result is not None and result.wrong:
                yield case, result.wrong


def check_continues(what: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """`WeftError` where a record that is to be continued differs in one of these: it would not be one record."""
    for name, value in now.items():
        if before[name] != value:
            raise WeftError(f"the {what} to continue has {name} {before[name]}, not {value}")


def continued(run: Run, before: Run, whole: bool = True) -> Run:
    """`run`, which has not begun, with the cases that `before` measured, with every contender if `whole`.

    `WeftError` where the two would not be one run: another suite, device, commit, mode, or other contenders.
    """
    origins = [
        {name: getattr(each, name) for name in ("suite", "device", "commit", "mode", "contenders")}
        for each in (before, run)
    ]
    check_continues("run", *origins)
    run.cases = [case for case in before.cases if not whole or case.results.keys() >= set(run.contenders)]
    earlier = before.environment.get("continues", [])
    run.environment["continues"] = [*earlier, {"date": before.date, "command": before.command, "ended": before.ended}]
    run.seconds = before.seconds
    return run


def whole_groups(run: Run, groups: Sequence[str], asked: Sequence[Entry]) -> Run:
    """The cases of some groups as a run of their own, finished even where `run` was cut off in another group.

    `asked` are the suite's cases of these groups. `WeftError` unless each of them was measured by every contender.
    """
    cases = [case for case in run.cases if case.group in groups and case.results.keys() >= set(run.contenders)]
    found = replace(run, cases=cases, ended="finished")
    left = [entry for entry in found.missing(asked) if entry.group in groups]
    ended = "cut off" if run.ended == "running" else run.ended
    if left or not cases:
        some = f"{left[0].group} {left[0].case.name}" if left else f"any of {', '.join(groups)}"
        raise WeftError(f"the run of {run.suite} of {run.date} was {ended} before {some}")
    earlier = run.environment.get("continues", [])
    said = {"date": run.date, "command": run.command, "ended": f"{ended}, these groups were whole"}
    found.environment = {**run.environment, "continues": [*earlier, said]}
    return found


def device_slug(name: str) -> str:
    """A device's name as a folder is called: "NVIDIA H200" is ``h200``."""
    words = re.sub(r"[^a-z0-9]+", "-", re.sub(r"\(r\)|\(tm\)|@.*", "", name.lower())).strip("-").split("-")
    kept = [word for word in words if word not in ("nvidia", "amd", "intel", "cpu", "processor")]
    return "-".join(kept or words)


def save(run: Run, folder: Path) -> None:
    """Write the run's JSON and CSV into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / RUN_FILE, json_text(run))
    write_whole(folder / CSV_FILE, csv_text(run))


def json_text(run: Run) -> str:
    """The run as JSON, one line for each case."""
    entry = asdict(run)
    cases = ",\n".join(json.dumps(case, allow_nan=False) for case in entry.pop("cases"))
    return json.dumps(entry, indent=1, allow_nan=False).removesuffix("\n}") + f',\n "cases": [\n{cases}\n ]\n}}\n'


def load(folder: Path) -> Run:
    """Read the run in `folder` (or the JSON file itself). `WeftError` where there is none that can be read."""
    file = folder / RUN_FILE if folder.is_dir() else folder
    with reading(file, "run of weft bench"):
        entry = json.loads(file.read_text())
        if entry["format"] != FORMAT:
            raise WeftError(f"{file} has format {entry['format']}, this version of weft reads {FORMAT}")
        cases = [_case(case) for case in entry.pop("cases")]
        return Run(**entry, cases=cases)


@contextmanager
def reading(file: Path, what: str) -> Iterator[None]:
    """While a record is read: `WeftError` where the file is none, cannot be read, or was cut."""
    try:
        yield
    except OSError as error:
        raise WeftError(f"{file} is no {what}: {error.strerror}") from error
    except KeyError as error:
        raise WeftError(f"{file} is no {what}: it lacks {error}") from error
    except (ValueError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise WeftError(f"{file} is no {what}: {error}") from error


def csv_text(run: Run) -> str:
    """One line for each case and contender; times in microseconds."""
    text = io.StringIO()
    measured = any("energy" in result.about for case in run.cases for result in case.results.values())
    writer = csv.DictWriter(text, (*COLUMNS, JOULES) if measured else COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    for case in run.cases:
        for contender, result in case.results.items():
            writer.writerow({**_about(case), "contender": contender, "way": result.way, **_figures(case, result)})
    return text.getvalue()


def write_whole(file: Path, text: str | bytes) -> None:
    """Write `file` so that nobody ever sees a part of it; see `weft.base.files.hand_out`."""
    files.hand_out(file, text)


def _about(case: CaseRecord) -> dict[str, str]:
    return {
        "case": case.name,
        "group": case.group,
        "equation": case.equation,
        "extents": " ".join(f"{label}={extent}" for label, extent in case.extents),
        "dtypes": " ".join(case.dtypes),
        "precision": case.precision,
        "functions": " ".join(f"{hook}={name}" for hook, name in case.functions.items()),
    }


def _figures(case: CaseRecord, result: Result) -> dict[str, str]:
    row = {"remark": result.cannot or result.wrong or result.note}
    if not result.samples:
        return row
    summary = result.summary
    row |= {
        "median_us": f"{1e6 * summary.median:.4g}",
        "low_us": f"{1e6 * summary.low:.4g}",
        "high_us": f"{1e6 * summary.high:.4g}",
        "rrs": f"{summary.rrs:.3g}",
        "samples": str(summary.count),
        "ended": str(result.timing.get("ended", "")),
    }
    if "energy" in result.about:
        row[JOULES] = f"{result.about['energy'][JOULES]:.4g}"
    if result.error_over_bound is not None:
        row["error_over_bound"] = f"{result.error_over_bound:.3g}"
    if case.work:
        row["tflops"] = f"{case.work['flops'] / summary.median / 1e12:.4g}"
        row["tbps"] = f"{case.work['bytes'] / summary.median / 1e12:.4g}"
    if case.floor:
        floor = case.floor["seconds"]
        row |= {"floor_us": f"{1e6 * floor:.4g}", "floor_share": f"{floor / summary.median:.3g}"}
    return row


def _case(entry: dict[str, Any]) -> CaseRecord:
    results = {name: Result(**{**each, "samples": tuple(each["samples"])}) for name, each in entry["results"].items()}
    tuples = {name: tuple(entry[name]) for name in ("dtypes", "layouts")}
    extents = [(label, extent) for label, extent in entry["extents"]]
    return CaseRecord(**{**entry, **tuples, "extents": extents, "results": results})
