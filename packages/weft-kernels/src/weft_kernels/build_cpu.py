"""Build the pack's shelves of object code: ``python -m weft_kernels.build_cpu [LEVEL ... | host] [--if-stale]``.

Without a level all are built; no machine of that kind is needed. Processes for each core compile a part of the sources
each, and a line is printed for every twentieth of them. A shelf takes its place when it is whole.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

from weft.base.interpreter import command, environment
from weft.cpu.level import LEVELS, Level, assume, host_level
from weft.cpu.machine_code import pack_entry, pack_key, sources_digest
from weft.machine.identity import usable_cores
from weft.machine.pack import Shelf, write_shelf

FOLDER = Path(__file__).parent
_BY_NAME = {level.name: level for level in LEVELS}


def main() -> None:
    """The command line, and what it asks for."""
    parser = argparse.ArgumentParser(description="Build object code of weft's kernels for levels of CPUs.")
    parser.add_argument("levels", nargs="*", metavar="LEVEL", help=f"host, {', '.join(_BY_NAME)}; all by default")
    parser.add_argument("--out", type=Path, default=FOLDER, help="a folder to write shelves to")
    parser.add_argument("--if-stale", action="store_true", help="only shelves that are missing or of other sources")
    parser.add_argument("--part", nargs=2, metavar=("SOURCES", "TO"), type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.part:
        _compile_part(_BY_NAME[asked.levels[0]], *asked.part)
        return
    levels = [level for level in map(_level, asked.levels or _BY_NAME) if level is not None]
    if not levels:
        print("nothing is built ahead for this machine: kernels are compiled when they are first needed")
        return
    found = _sources()
    if asked.if_stale:
        levels = [level for level in levels if stale(asked.out / f"{level.name}.pack", found)]
    if levels:
        build(levels, found, asked.out)


def _level(name: str) -> Level | None:
    if name == "host":
        return host_level()
    if name not in _BY_NAME:
        raise SystemExit(f"{name} is no level: there are {', '.join(_BY_NAME)}")
    return _BY_NAME[name]


def _sources() -> list[str]:
    from weft_kernels.cpu_sources import sources

    assume(_BY_NAME["x86-64-v4"])  # sources of shorter vectors are among those of the longest
    return sources()


def stale(path: Path, sources: list[str]) -> bool:
    """Whether a shelf is missing, or holds other than these."""
    try:
        return set(Shelf(path).keys()) != set(map(pack_key, sources))
    except (OSError, ValueError, KeyError, TypeError):
        return True


def build(levels: list[Level], sources: list[str], out: Path) -> None:
    """Shelves of some levels."""
    cores = len(usable_cores())
    progress = _Progress(len(levels) * len(sources))
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(cores) as pool:
        parts = {level: [Path(folder, f"{level.name}-{at}") for at in range(cores)] for level in levels}
        jobs = [
            pool.submit(_run_part, level, sources[at::cores], part, progress)
            for level in levels
            for at, part in enumerate(parts[level])
        ]
        for job in jobs:
            job.result()
        for level in levels:
            shelves = [Shelf(part) for part in parts[level]]
            entries = {key: shelf.get(key) or b"" for shelf in shelves for key in sorted(shelf.keys())}
            path = out / f"{level.name}.pack"
            write_shelf(path, entries, _about(level))
            path.chmod(0o644)  # whoever installs it, others read it
            print(f"{path.name}: {len(entries)} kernels, {path.stat().st_size / 1e6:.1f} MB")
    print(f"built in {progress.seconds:.0f} s")


class _Progress:
    """Kernels compiled so far, of all."""

    def __init__(self, total: int) -> None:
        self._total, self._done, self._begun = total, 0, time.monotonic()
        self._lock = threading.Lock()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begun

    def step(self) -> None:
        """One kernel more; each twentieth is told."""
        with self._lock:
            self._done += 1
            if self._done * 20 // self._total > (self._done - 1) * 20 // self._total:
                print(f"{self._done} of {self._total} kernels after {self.seconds:.0f} s", flush=True)


def _about(level: Level) -> dict[str, Any]:
    software = {name: metadata.version(name) for name in ("numba", "llvmlite")}
    return {"code": sources_digest(), "processor": level.processor, "python": platform.python_version(), **software}


def _run_part(level: Level, sources: list[str], to: Path, progress: _Progress) -> None:
    """In a process of its own, as numba compiles for one level alone."""
    listed = to.with_suffix(".json")
    listed.write_text(json.dumps(sources))
    line = command("-m", "weft_kernels.build_cpu", level.name, "--part", str(listed), str(to))
    with subprocess.Popen(line, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in process.stdout:  # a line for each kernel
            progress.step()
    if process.returncode:
        raise SystemExit(f"{level.name}: a process that compiles kernels ended with exit code {process.returncode}")


def _compile_part(level: Level, sources: Path, to: Path) -> None:
    from weft_kernels.cpu_compiler import compiled, prepare

    prepare(level)
    entries = {}
    for source in json.loads(sources.read_text()):
        key = pack_key(source)
        entries[key] = pack_entry(compiled(source))
        print(key, flush=True)
    write_shelf(to, entries, {})


if __name__ == "__main__":
    main()
