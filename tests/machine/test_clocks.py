"""Reading clocks and throttling, with NVML played by a stand-in."""

import sys
from types import SimpleNamespace

import pytest
import torch

from weft.machine.stamp import Clocks, read_clocks, throttle_names


class NvmlError(Exception):
    pass


def stand_in(**changes: object) -> SimpleNamespace:
    """An NVML that knows one GPU, with UUID GPU-abc."""

    def handle(uuid: str) -> str:
        if uuid != "GPU-abc":
            raise NvmlError
        return "handle"

    doors = {
        "NVMLError": NvmlError,
        "NVML_CLOCK_SM": "sm",
        "NVML_CLOCK_MEM": "memory",
        "NVML_TEMPERATURE_GPU": 0,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByUUID": handle,
        "nvmlDeviceGetClockInfo": lambda handle, which: {"sm": 1980, "memory": 3201}[which],
        "nvmlDeviceGetPowerUsage": lambda handle: 643_500,
        "nvmlDeviceGetTemperature": lambda handle, sensor: 61,
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda handle: 0x4 | 0x20 | 0x1,
    }
    return SimpleNamespace(**(doors | changes))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="abc"))
    return torch.device("cuda", 0)


def test_a_reading(gpu: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", stand_in())
    assert read_clocks(gpu) == Clocks(1980, 3201, 643.5, 61, ("software power cap", "software thermal slowdown"))


def test_idleness_and_chosen_clocks_are_no_throttling() -> None:
    assert throttle_names(0x1 | 0x2 | 0x100) == ()
    assert throttle_names(0x8 | 0x80) == ("hardware slowdown", "hardware power brake")


def test_no_reading_where_nothing_answers(gpu: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise NvmlError

    monkeypatch.setitem(sys.modules, "pynvml", stand_in(nvmlInit=fail))
    assert read_clocks(gpu) is None
    monkeypatch.setitem(sys.modules, "pynvml", stand_in(nvmlDeviceGetHandleByUUID=fail))
    assert read_clocks(gpu) is None
    monkeypatch.setitem(sys.modules, "pynvml", stand_in(nvmlDeviceGetPowerUsage=fail))
    assert read_clocks(gpu) is None
    monkeypatch.setitem(sys.modules, "pynvml", None)  # not installed
    assert read_clocks(gpu) is None


def test_a_cpu_has_no_clocks() -> None:
    assert read_clocks(torch.device("cpu")) is None


@pytest.mark.gpu
def test_the_real_thing() -> None:
    if torch.version.hip:
        pytest.skip("NVML is NVIDIA's")
    clocks = read_clocks(torch.device("cuda", 0))
    assert clocks is not None
    assert clocks.sm_mhz > 0
    assert clocks.watts > 0
