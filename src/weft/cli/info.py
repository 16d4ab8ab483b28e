"""The machine that weft runs on: device, ceilings, versions, and where measured figures are kept."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch

from weft.base.figures import counted, duration, si
from weft.base.version import __version__
from weft.machine.ceilings import Ceilings
from weft.machine.stamp import cpu_name, driver_version, package_version
from weft.machine.store import cache_directory
from weft.plans.explain.lines import section


def describe(device: torch.device, known: Ceilings | None) -> str:
    """The text of `weft info`; `known` is None where no ceilings are to be had."""
    sections = {
        "device": _device(device),
        "backends": _backends(),
        "ceilings": _ceilings(known),
        "versions": _versions(device),
        "self-test": _selftest(device),
        "cache": _cache(cache_directory()),
    }
    return "\n".join(line for name, lines in sections.items() for line in section(name, lines))


def _device(device: torch.device) -> list[str]:
    host = f"{cpu_name()}, {os.cpu_count()} logical CPUs, {counted(torch.get_num_threads(), 'thread')} of torch"
    if device.type != "cuda":
        return [host]
    properties = torch.cuda.get_device_properties(device)
    gpu = (
        f"{properties.name}, compute capability {properties.major}.{properties.minor}, "
        f"{properties.multi_processor_count} multiprocessors, {properties.total_memory / 2**30:.0f} GiB"
    )
    return [gpu, f"on {host}"]


def _backends() -> list[str]:
    """Which backends can run here, and what the others lack."""
    if package_version("triton") is None:
        triton = "triton: no, Triton is not installed"
    elif not torch.cuda.is_available():
        triton = "triton: plans only, there is no GPU"
    else:
        triton = "triton: yes"
    return [f"{triton}; cpu: yes; reference: yes"]


def _ceilings(known: Ceilings | None) -> list[str]:
    if known is None:
        return ["not known: measure them with `weft info`"]
    source = f"measured {known.date}" if known.source == "measured" else "from the datasheet, not measured"
    width = max(map(len, known.matrix), default=0)
    graph = f", {duration(known.launch_graph)} within a CUDA graph" if known.launch_graph else ""
    launch = f"{duration(known.launch_eager)} from Python{graph}" if known.launch_eager else "unknown"
    return [
        f"{source}",
        f"memory: read {si(known.read, 'B/s')}, write {si(known.write, 'B/s')}, copy {si(known.copy, 'B/s')}",
        f"launch: {launch}",
        "matrix products:",
        *(f"  {name:<{width}}  {si(rate, 'FLOP/s')}" for name, rate in known.matrix.items()),
    ]


def _versions(device: torch.device) -> list[str]:
    found = {
        "weft": __version__,
        "Python": platform.python_version(),
        **{name: package_version(name) for name in ("torch", "triton", "numpy")},
        "CUDA": torch.version.cuda,
        "HIP": torch.version.hip,
        "driver": driver_version(device),
    }
    return [", ".join(f"{name} {version}" for name, version in found.items() if version)]


def _selftest(device: torch.device) -> list[str]:
    """The stored self-test results of this machine, a line for each backend."""
    if device.type == "cuda":
        return [_tested("triton", device), _tested("cpu", torch.device("cpu"))]
    return [_tested("cpu", device)]


def _tested(backend: str, device: torch.device) -> str:
    from weft.planner.registry import short_name
    from weft.planner.target import target_of
    from weft.planner.verdicts import applies, failure, known
    from weft.selftest.cases import trials

    target = target_of(backend, device)
    if not applies(backend, target):
        return f"{backend}: off (WEFT_SELFTEST)"
    families = tuple(dict.fromkeys(trial.family for trial in trials(backend)))
    verdicts = [verdict for family in families for verdict in known(family, backend, target).values()]
    if not verdicts:
        return f"{backend}: no family yet; each is tested before its first use, and `weft doctor` tests all"
    dates = sorted(verdict.date[:10] for verdict in verdicts)
    span = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    tested = [family for family in families if known(family, backend, target)]
    failed = [f"{short_name(family)} {why}" for family in tested if (why := failure(family, backend, target))]
    outcome = f"; {'; '.join(failed)}" if failed else ", all passed"
    return f"{backend}: {len(tested)} of {len(families)} families, {span}{outcome}"


def _cache(directory: Path) -> list[str]:
    sizes = [file.stat().st_size for file in directory.rglob("*") if file.is_file()] if directory.is_dir() else []
    return [f"{directory}: {counted(len(sizes), 'file')}, {si(sum(sizes), 'B')} (WEFT_CACHE_DIR moves it)"]
