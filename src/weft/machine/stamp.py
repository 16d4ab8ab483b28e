"""The machine and software that a figure belongs to: device, driver, versions, clocks, command and commit.

`data/tested.json` has the versions that the project has tested together.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

# Reasons as NVML names them (nvmlClocksEventReason*); idle and the application's own settings are no throttling.
_THROTTLES = {
    0x0000000000000004: "software power cap",
    0x0000000000000008: "hardware slowdown",
    0x0000000000000010: "sync boost",
    0x0000000000000020: "software thermal slowdown",
    0x0000000000000040: "hardware thermal slowdown",
    0x0000000000000080: "hardware power brake",
}


@dataclass(frozen=True, slots=True)
class Clocks:
    """One reading of a GPU at work."""

    sm_mhz: int
    memory_mhz: int
    watts: float
    celsius: int
    throttled: tuple[str, ...]  # what held the clocks down at that moment; empty: nothing did


def read_clocks(device: torch.device) -> Clocks | None:
    """Read `device` through NVML; None for a CPU, and where NVML is missing or does not answer for this device."""
    handle = nvml_handle(device)
    if handle is None:
        return None
    import pynvml

    try:
        reasons = int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
        return Clocks(
            sm_mhz=int(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)),
            memory_mhz=int(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM)),
            watts=pynvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            celsius=int(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)),
            throttled=throttle_names(reasons),
        )
    except pynvml.NVMLError:
        return None


def throttle_names(reasons: int) -> tuple[str, ...]:
    """The throttling reasons in NVML's bit mask, in words."""
    return tuple(name for bit, name in _THROTTLES.items() if reasons & bit)


def nvml_handle(device: torch.device) -> Any | None:
    """NVML's handle of a torch device, found by UUID because NVML ignores CUDA_VISIBLE_DEVICES; None without one."""
    if device.type != "cuda" or torch.version.hip:
        return None
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        uuid = torch.cuda.get_device_properties(device).uuid
        return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except pynvml.NVMLError:
        return None


def device_stamp(device: torch.device | str) -> dict[str, Any]:
    """The facts that a figure measured on `device` depends on besides the code: device, driver, torch, toolkit, Triton.

    Plain JSON values, equal exactly where a figure may be reused. On a CPU the number of torch's threads belongs to it.
    """
    device = torch.device(device)
    software = {"torch": torch.__version__, "triton": package_version("triton")}
    if device.type != "cuda":
        return {"kind": device.type, "name": cpu_name(), "threads": torch.get_num_threads(), **software}
    properties = torch.cuda.get_device_properties(device)
    return {
        "kind": "hip" if torch.version.hip else "cuda",
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "processors": properties.multi_processor_count,
        "memory": properties.total_memory,
        "driver": driver_version(device),
        "toolkit": torch.version.hip or torch.version.cuda,
        **software,
    }


def package_version(name: str) -> str | None:
    """The version of an installed distribution, without importing it; None when it is absent."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


@lru_cache
def cpu_name() -> str:
    """The processor's model as the system calls it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def driver_version(device: torch.device) -> str | None:
    """NVIDIA's driver version as its kernel module, or else NVML, tells it; None where neither does."""
    if device.type != "cuda":
        return None
    with contextlib.suppress(OSError):
        told = re.search(r"\b\d{3}\.\d+(\.\d+)?\b", Path("/proc/driver/nvidia/version").read_text())
        if told is not None:
            return told.group()
    if nvml_handle(device) is None:
        return None
    import pynvml

    return str(pynvml.nvmlSystemGetDriverVersion())


_UNDERLINES = re.compile(r"\x1b\[[0-9;]*m")  # and other signs to a terminal, which `nvidia-smi topo` prints anywhere


def command() -> str:
    """The command line of this process, without the directory of the program."""
    program = Path(sys.argv[0])
    named = ["python", "-m", program.parent.name] if program.name == "__main__.py" else [program.name]
    return shlex.join([*named, *sys.argv[1:]])


def commit() -> str | None:
    """The commit of the sources in use, with ``+changes`` when tracked files differ from it; None when unknown.

    `WEFT_COMMIT` says it for a copy of the sources without their history.
    """
    if named := os.environ.get("WEFT_COMMIT"):
        return named
    here = Path(__file__).resolve().parent
    head = output_of("git", "-C", str(here), "rev-parse", "HEAD")
    # A package installed into someone's environment may lie inside a repository that is not weft's.
    if head is None or output_of("git", "-C", str(here), "ls-files", "__init__.py") != "__init__.py":
        return None
    return head + ("+changes" if output_of("git", "-C", str(here), "status", "--porcelain", "-uno") else "")


def output_of(*arguments: str) -> str | None:
    """A program's output without signs to a terminal; None where it is absent, fails, or takes over ten seconds."""
    if shutil.which(arguments[0]) is None:
        return None
    try:
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return _UNDERLINES.sub("", done.stdout).strip() if done.returncode == 0 else None


TESTED = Path(__file__).parent.parent / "data" / "tested.json"
# What has to agree, and how many numbers of its version: releases that differ in the last one count as the same.
_PARTS = {"torch": 2, "triton": 2, "cuda": 1, "python": 2, "capability": 2}


@dataclass(frozen=True, slots=True)
class Component:
    """One part of a machine: the version at hand, and those that were tested."""

    name: str
    version: str
    tested: tuple[str, ...]
    known: bool  # whether the version at hand is among them


@lru_cache
def runs() -> tuple[dict[str, Any], ...]:
    """The combinations that were tested: backend, device, versions, and how."""
    return tuple(json.loads(TESTED.read_text())["runs"])


def components(backend: str, versions: Mapping[str, str | None]) -> list[Component]:
    """Each part that matters to a backend, held against what was tested with it."""
    found = []
    for name, length in _PARTS.items():
        tested = tuple(dict.fromkeys(run[name] for run in runs() if run["backend"] == backend and name in run))
        here = versions.get(name)
        if tested and here:
            known = _short(here, length) in {_short(version, length) for version in tested}
            found.append(Component(name, here, tested, known))
    return found


def together(backend: str, versions: Mapping[str, str | None]) -> bool:
    """Whether one run of the tests had all of these versions at once."""
    return any(_agrees(run, versions) for run in runs() if run["backend"] == backend)


def _agrees(run: Mapping[str, str], versions: Mapping[str, str | None]) -> bool:
    return all(
        _short(versions.get(name) or "", length) == _short(run[name], length)
        for name, length in _PARTS.items()
        if name in run
    )


def _short(version: str, length: int) -> tuple[str, ...]:
    return tuple(version.partition("+")[0].split(".")[:length])
