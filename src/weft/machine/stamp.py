"""Which machine and which software a measured figure belongs to, in a form that keys and reports can hold."""

from __future__ import annotations

import contextlib
import platform
import re
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from weft.machine.clocks import nvml_handle


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
