"""How an SM divides its memory: what is not shared memory is its first cache, through which all reads come."""

from __future__ import annotations

import ctypes

from weft.gpu.common.driver import loaded_driver

_PREFERRED_CARVEOUT = 9  # CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT of CUDA's driver


def prefer_carveout(function: int, percent: int) -> bool:
    """Ask CUDA's driver that at most so much of what can be shared memory should be, whenever this loaded function (a
    `CUfunction`) runs; false where it refuses or is not there. A hint: results never depend on it.

    Left alone, the driver makes room for as many programs as fit; where these use much shared memory, little is left to
    hold what they are reading.
    """
    driver = loaded_driver()
    if driver is None:
        return False
    return bool(driver.cuFuncSetAttribute(ctypes.c_void_p(function), _PREFERRED_CARVEOUT, ctypes.c_int(percent)) == 0)
