"""Products of matrices by torch with IEEE arithmetic and wide sums, whatever the process is set to allow.

What torch allows is asked of its core: the modules of `torch.backends` take microseconds for the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch

from weft.base.forks import free_in_child
from weft.machine.ceilings import float32_products

_SINGLE = (torch.float32, torch.complex64)
_HALVES = {torch.float16: "fp16", torch.bfloat16: "bf16"}


def guarded(call: Callable[..., Any], product: torch.dtype, result: torch.dtype, kind: str) -> Callable[..., Any]:
    """The call with IEEE products: torch's permissions for less exact ones are suspended meanwhile.

    `product` and `result` are the types of factors and of what is stored, `kind` that of the device.
    """
    if product in _SINGLE:
        if kind == "cpu":
            return _of_single_precision(call, _allowed, exact_products)
        return _of_single_precision(call, _allowed_on_a_gpu, partial(float32_products, tf32=False))
    if kind == "cpu" or product not in _HALVES:
        return call
    return _of_halves(call, _HALVES[product], split=result is product)


def _of_single_precision(
    call: Callable[..., Any], allowed: Callable[[], Any], ieee: Callable[[], AbstractContextManager[None]]
) -> Callable[..., Any]:
    def exactly(*args: Any, **options: Any) -> Any:
        if allowed() in _EXACT:
            return call(*args, **options)
        with ieee():
            return call(*args, **options)

    return exactly


def _of_halves(call: Callable[..., Any], name: str, split: bool) -> Callable[..., Any]:
    """`split`: sums of the parts of a product would be rounded to the result's type, which is that of the factors."""
    asked = getattr(torch._C, f"_get_cublas_allow_{name}_reduced_precision_reduction") if split else _no
    let = getattr(torch._C, f"_set_cublas_allow_{name}_reduced_precision_reduction")
    narrows = torch._C._get_cublas_allow_fp16_accumulation if name == "fp16" else _no

    def exactly(*args: Any, **options: Any) -> Any:
        given, narrow = asked(), narrows()
        rounds, *rest = given if isinstance(given, tuple) else (given,)  # and what is allowed of split sums
        if not rounds and not narrow:
            return call(*args, **options)
        if rounds:
            let(False, *rest)
        if narrow:
            torch._C._set_cublas_allow_fp16_accumulation(False)
        try:
            return call(*args, **options)
        finally:
            if rounds:
                let(True, *rest)
            if narrow:
                torch._C._set_cublas_allow_fp16_accumulation(True)

    return exactly


def _no() -> bool:
    return False


#: What torch may make of float32 products.
_allowed: Callable[[], Any] = partial(torch._C._get_fp32_precision_getter, "mkldnn", "matmul")
_allowed_on_a_gpu: Callable[[], Any] = partial(torch._C._get_fp32_precision_getter, "cuda", "matmul")
_EXACT = ("none", "ieee")  # where it may not round their factors


def shortened() -> bool:
    """Whether torch may round the factors of float32 products on the CPU (`torch.set_float32_matmul_precision`)."""
    return _allowed() not in _EXACT


class _Switch:
    """oneDNN, which alone shortens products on the CPU, switched off while anyone needs that; MKL takes over."""

    def __init__(self) -> None:
        self._lock = free_in_child(threading.Lock())
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
    """While this lasts, float32 matrix products on the CPU round their factors nowhere in the process."""
    _ONEDNN.off()
    try:
        yield
    finally:
        _ONEDNN.back()
