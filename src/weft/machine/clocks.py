"""Readings of a GPU's management library during work: clocks, power, temperature, and what holds the clocks down."""

from __future__ import annotations

from dataclasses import dataclass
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
