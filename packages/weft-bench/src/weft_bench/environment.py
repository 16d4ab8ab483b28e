"""Everything a reader needs to judge and repeat a measurement, in one JSON-able dict that results carry.

The items are those of the mandatory disclosure checklist (table 3.6) of *Design and Performance Engineering of
GPU-Accelerated Tensor Network Algorithms*, one key each.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

import torch

from weft.base.version import __version__
from weft.machine import rotation, statistics, timing
from weft.machine.ceilings import Ceilings
from weft.machine.stamp import (
    command,
    commit,
    cpu_name,
    device_stamp,
    driver_version,
    nvml_handle,
    output_of,
    package_version,
    read_clocks,
)

ITEMS = (
    "platform",
    "software",
    "build",
    "workloads",
    "timing",
    "profiling",
    "statistics",
    "correctness",
    "artifacts",
)
_PACKAGES = (
    "torch",
    "triton",
    "numpy",
    "opt_einsum",
    "cotengra",
    "nvidia-cublas",
    "nvidia-cublas-cu12",
    "cutensor-cu12",
    "cutensor-cu13",
    "nvmath-python",
)
_SETTINGS = (
    "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "TRITON_INTERPRET", "NVIDIA_TF32_OVERRIDE",
    "WEFT_SELFTEST",
)  # fmt: skip


def disclose(
    device: torch.device | str,
    *,
    workloads: Any,
    correctness: Any,
    ceilings: Ceilings | None = None,
    profiling: Any = None,
    rrs: float = timing.RRS_BOUND,
    budget: float = timing.BUDGET,
) -> dict[str, Any]:
    """The environment of a run on `device`, now; one key for each item of `ITEMS`, and the date.

    `workloads` says what was run (equations, extents, dtypes, precision, how inputs were made) and `correctness` by
    what tolerance and against which reference it was checked: only the caller knows. `profiling` is None where no
    profiler ran. `ceilings` go in when given. `rrs` and `budget` are those handed to the timing protocol. Clocks here
    are those at the moment of the call; those under load stand with each timing.
    """
    device = torch.device(device)
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "platform": _platform(device, ceilings),
        "software": _software(device),
        "build": _build(),
        "workloads": workloads,
        "timing": protocol(device, rrs=rrs, budget=budget),
        "profiling": profiling if profiling is not None else "no profiler ran",
        "statistics": {
            "point estimate": "median of the samples; across cases the geometric mean",
            "spread": f"{statistics.NORMAL_CONSISTENCY} MAD, and that over the median (RRS)",
            "interval": (
                f"{statistics.CONFIDENCE:.0%} percentile bootstrap of the median, "
                f"{statistics.RESAMPLES} resamples, seeded"
            ),
        },
        "correctness": correctness,
        "artifacts": {"command": command(), "commit": commit(), "weft": __version__},
    }


def missing(environment: Mapping[str, Any]) -> list[str]:
    """Items of the checklist that `environment` leaves out or empty."""
    return [item for item in ITEMS if environment.get(item) in (None, "", {}, [])]


def protocol(device: torch.device, *, rrs: float, budget: float) -> dict[str, Any]:
    """How `weft.machine.timing` takes its samples on this kind of device."""
    common = {
        "warm-up": "every input set once",
        "sample": "time of a batch of calls over their number",
        "repetitions": (
            f"until RRS <= {rrs}, at least {timing.ENOUGH_SAMPLES} samples; or until {budget} s of calls are over, "
            f"at least {timing.FEWEST_SAMPLES}"
        ),
        "inputs": (
            f"cold: sets in rotation that touch {rotation.CACHE_TURNOVERS} times the last cache "
            f"({rotation.cache_bytes(device)} bytes); hot: one set"
        ),
        "batch seconds": timing.BATCH_SECONDS[device.type],
    }
    if device.type == "cpu":
        return common | {"clock": "time.perf_counter around a batch", "threads": torch.get_num_threads()}
    return common | {
        "warm-up": f"every set once; {timing.WARM_SECONDS} s of batches and rests, if idle {timing.IDLE_SECONDS} s",
        "rest": f"after a batch, {timing.REST} times as long as it took",
        "clock": "CUDA events around a batch, on the stream; the host waits for the second event",
        "launch": "a batch is one CUDA graph where the call can be captured; each timing says whether it was",
    }


def _platform(device: torch.device, ceilings: Ceilings | None) -> dict[str, Any]:
    about: dict[str, Any] = {
        "device": device_stamp(device),
        "cpu": cpu_name(),
        "logical cpus": os.cpu_count(),
        "host memory bytes": _host_memory(),
        "ceilings": asdict(ceilings) if ceilings is not None else None,
    }
    if device.type == "cuda":
        clocks = read_clocks(device)
        about |= {
            "gpus visible": torch.cuda.device_count(),
            "topology": output_of("nvidia-smi", "topo", "-m"),
            "pcie": _pcie(device),
            "clocks": asdict(clocks) if clocks is not None else None,
        }
    return about


def _software(device: torch.device) -> dict[str, Any]:
    return {
        "system": platform.platform(),
        "python": platform.python_version(),
        "driver": driver_version(device),
        "toolkit": torch.version.cuda or torch.version.hip,
        "compiler": _last_line(output_of("nvcc", "--version")),
        "packages": {name: version for name in _PACKAGES if (version := package_version(name))},
    }


def _build() -> dict[str, Any]:
    """Nothing is compiled ahead of time: what stands in for flags are torch's switches and the environment."""
    return {
        "installation": "editable" if _editable() else "wheel",
        "float32 matmul precision of torch": _float32_precision(),
        "deterministic algorithms of torch": torch.are_deterministic_algorithms_enabled(),
        "threads of torch": torch.get_num_threads(),
        "settings": {name: os.environ[name] for name in _SETTINGS if name in os.environ},
    }


def _float32_precision() -> str | None:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # set through torch's newer switches alone
        return getattr(torch.backends.cuda.matmul, "fp32_precision", None)


def _editable() -> bool:
    try:
        files = metadata.distribution("weft").files or []
    except metadata.PackageNotFoundError:
        return True  # run from its sources
    return not any(str(file) == "weft/__init__.py" for file in files)


def _host_memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def _pcie(device: torch.device) -> str | None:
    handle = nvml_handle(device)
    if handle is None:
        return None
    import pynvml

    try:
        generation = pynvml.nvmlDeviceGetCurrPcieLinkGeneration(handle)
        return f"generation {generation}, {pynvml.nvmlDeviceGetCurrPcieLinkWidth(handle)} lanes"
    except pynvml.NVMLError:
        return None


def _last_line(text: str | None) -> str | None:
    return text.splitlines()[-1] if text else None
