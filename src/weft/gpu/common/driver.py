"""CUDA's driver, for what neither torch nor Triton asks of it."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any


@cache
def loaded_driver() -> Any:
    """The driver's library, which has long been loaded where a kernel has; None where there is none."""
    for name in ("libcuda.so.1", "nvcuda.dll"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


@cache
def driver_version() -> int | None:
    """The version of CUDA that the driver is for, 12030 for 12.3; None where there is none."""
    driver, version = loaded_driver(), ctypes.c_int(0)
    if driver is None or driver.cuDriverGetVersion(ctypes.byref(version)) != 0:
        return None
    return version.value
