"""The machine that a figure belongs to: device, driver, software, clocks."""

from __future__ import annotations

import contextlib
import platform
import re
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
