"""float32 products that stay float32 whatever torch is set to allow process-wide."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def shortened() -> bool:
    """Whether torch may round the factors of float32 products on the CPU (`torch.set_float32_matmul_precision`)."""
    matmul = getattr(torch.backends.mkldnn, "matmul", None)
    if matmul is None:  # torch before 2.9 has one setting for all devices
        return torch.get_float32_matmul_precision() != "highest"
    return matmul.fp32_precision not in ("none", "ieee")


class _Switch:
    """oneDNN, which alone shortens products on the CPU, switched off while anyone needs that; MKL takes over."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._enabled = True

    def off(self) -> None:
        with self._lock:
            if self._users == 0:
                self._enabled = torch.backends.mkldnn.set_flags(False, None, None, None)[0]
            self._users += 1

    def back(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                torch.backends.mkldnn.set_flags(self._enabled, None, None, None)


_ONEDNN = _Switch()


@contextmanager
def exact_products() -> Iterator[None]:
    """While this lasts, float32 matrix products round their factors nowhere in the process."""
    _ONEDNN.off()
    try:
        yield
    finally:
        _ONEDNN.back()
