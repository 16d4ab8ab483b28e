"""Nsight Compute: one replayed, filtered run of a process of its own, and its table read, whatever its version.

`ncu` runs a kernel several times, once for each group of counters, and saves and restores memory in between. Clocks are
left as they are (`--clock-control none`), so that its times compare with others; caches are emptied before each pass.
Only what runs between `cudaProfilerStart` and `cudaProfilerStop` is looked at: `weft_bench.profiling.replay` puts one
call there.
"""

from __future__ import annotations

import csv
import io
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import weft
import weft_bench
from weft.base import interpreter
from weft_bench.profiling.counters import CounterSet, counted, metric_names

PATIENCE = 100.0  # seconds for the whole run
MOST_LAUNCHES = 64  # of one call

# Factors of the units that versions of ncu write, to bytes and seconds; anything else stays as it is.
_UNITS = {
    "byte": 1.0, "kbyte": 1e3, "mbyte": 1e6, "gbyte": 1e9, "tbyte": 1e12,
    "nsecond": 1e-9, "usecond": 1e-6, "msecond": 1e-3, "second": 1.0, "ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0,
}  # fmt: skip
_NOTHING = ("", "n/a", "(!) n/a", "nan", "inf")
_PERMISSION = "ERR_NVGPUCTRPERM"


@dataclass(frozen=True, slots=True)
class Counted:
    """The result of a run of ncu: counters of each launch in order, or the sentence that says why there are none."""

    sets: tuple[CounterSet, ...] = ()
    missing: str = ""
    command: str = ""
    version: str = ""


def found() -> str | None:
    """ncu's path, or None: on PATH, or in CUDA's own folder."""
    return shutil.which("ncu") or shutil.which("/usr/local/cuda/bin/ncu")


def count(
    replayed: Path, *, processors: int, device: str, program: str | None = None, patience: float = PATIENCE,
    environment: Mapping[str, str] | None = None,
) -> Counted:  # fmt: skip
    """Counters of one call that `replayed` describes (see `replay`); never raises for ncu's troubles."""
    program = program or found()
    if program is None:
        return Counted(missing="counters need Nsight Compute: `ncu` is not on PATH")
    names = metric_names()
    done = _run(command(program, replayed, names), patience, environment)
    if not isinstance(done, str) and not read(done.stdout):
        unknown = set(re.findall(r"[\w.]+", _complaints(done))) & set(names)
        if unknown:  # a version that does not run with names it does not know
            known = [name for name in names if name not in unknown]
            done = _run(command(program, replayed, known), patience, environment)
    if isinstance(done, str):
        return Counted(missing=done)
    sets = read(done.stdout, processors=processors, device=device)
    said = " ".join(command(program, Path("CALL"), ["..."]))
    if sets:
        return Counted(tuple(sets), command=said, version=version(program))
    return Counted(missing=why_nothing(done.stdout + "\n" + done.stderr), command=said, version=version(program))


def command(program: str, replayed: Path, names: Sequence[str]) -> list[str]:
    """The command line of a run."""
    return [
        program, "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none",
        "--profile-from-start", "off", "--target-processes", "application-only", "--launch-count", str(MOST_LAUNCHES),
        "--metrics", ",".join(names), *interpreter.command("-m", "weft_bench.profiling.replay", str(replayed)),
    ]  # fmt: skip


def version(program: str) -> str:
    """The version that ncu states; empty where it states none."""
    done = _run([program, "--version"], 20.0, None)
    if isinstance(done, str):
        return ""
    match = re.search(r"Version ([\d.]+)", done.stdout)
    return match[1] if match else ""


def read(text: str, *, processors: int | None = None, device: str = "") -> list[CounterSet]:
    """The counters of each launch in a table as ncu prints it: one row a launch, or one row a launch and metric.

    Lines around the table are passed over, and so is what has no value.
    """
    start = re.search(r'^"ID",', text, re.MULTILINE)
    if start is None:
        return []
    rows = list(csv.reader(io.StringIO(text[start.start() :])))
    heads, lines = rows[0], [row for row in rows[1:] if len(row) == len(rows[0])]
    launches = _long(heads, lines) if "Metric Name" in heads else _wide(heads, lines)
    return [counted(name, metrics, processors=processors, device=device) for name, metrics in launches]


def why_nothing(said: str) -> str:
    """Why a run gave no counters, in one sentence."""
    if _PERMISSION in said:
        return (
            f"the driver keeps hardware counters for root ({_PERMISSION}): run as root, or have the administrator load "
            "the driver with NVreg_RestrictProfilingToAdminUsers=0"
        )
    if "No kernels were profiled" in said:
        return "ncu saw no kernel between the marks: the call launched none"
    errors = re.findall(r"==ERROR==\s*(.+)", said) or re.findall(r"^(\w*(?:Error|Exception): .+)$", said, re.MULTILINE)
    return f"ncu gave no counters: {errors[0].strip() if errors else 'it printed no table and no error'}"


def _complaints(done: subprocess.CompletedProcess[str]) -> str:
    lines = (done.stdout + "\n" + done.stderr).splitlines()
    return "\n".join(line for line in lines if line.startswith(("==ERROR==", "==WARNING==")))


def _run(
    line: Sequence[str], patience: float, environment: Mapping[str, str] | None
) -> subprocess.CompletedProcess[str] | str:
    try:
        return subprocess.run(
            line, capture_output=True, text=True, timeout=patience, check=False, stdin=subprocess.DEVNULL,
            env={**os.environ, **_paths(), **(environment or {})},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"ncu took more than {patience:.0f} s and was ended"
    except OSError as error:
        return f"ncu could not be run: {error}"


def _paths() -> dict[str, str]:
    """So that the process finds the weft and the weft-tensor-bench that run here."""
    own = (str(Path(file).parents[1]) for file in (weft.__file__, weft_bench.__file__))
    return {"PYTHONPATH": os.pathsep.join(filter(None, (*own, os.getenv("PYTHONPATH"))))}


def _wide(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> list[tuple[str, dict[str, float]]]:
    """Metrics as columns; the first row has their units."""
    units = dict(zip(heads, lines[0], strict=True)) if lines and not lines[0][0] else {}
    name = heads.index("Kernel Name")
    return [
        (row[name], _values((head, units.get(head, ""), cell) for head, cell in zip(heads, row, strict=True)))
        for row in lines
        if row[0]
    ]


def _long(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> list[tuple[str, dict[str, float]]]:
    """A row for each launch and metric."""
    at = {head: heads.index(head) for head in ("ID", "Kernel Name", "Metric Name", "Metric Unit", "Metric Value")}
    launches: dict[str, tuple[str, list[tuple[str, str, str]]]] = {}
    for row in lines:
        cells = (row[at["Metric Name"]], row[at["Metric Unit"]], row[at["Metric Value"]])
        launches.setdefault(row[at["ID"]], (row[at["Kernel Name"]], []))[1].append(cells)
    return [(name, _values(cells)) for name, cells in launches.values()]


def _values(cells: Iterable[tuple[str, str, str]]) -> dict[str, float]:
    """Metrics by name, in bytes and seconds."""
    values: dict[str, float] = {}
    for name, unit, text in cells:
        if "__" not in name or text.strip().lower() in _NOTHING:
            continue
        try:
            values[name] = float(text.replace(",", "")) * _UNITS.get(unit.strip().lower(), 1.0)
        except ValueError:
            continue
    return values
