"""Products of matrices by torch with IEEE arithmetic and wide sums, whatever the process is set to allow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache, partial
from typing import Any

import torch

from weft.cpu.exactness import exact_products, shortened
from weft.machine.ceilings import float32_products

_SINGLE = (torch.float32, torch.complex64)
_SWITCHES = {  # process-wide permissions of torch for less exact sums of halves on a GPU
    torch.float16: ("allow_fp16_reduced_precision_reduction", "allow_fp16_accumulation"),
    torch.bfloat16: ("allow_bf16_reduced_precision_reduction",),
}


def guarded(call: Callable[..., Any], dtype: torch.dtype, kind: str) -> Callable[..., Any]:
    """The call with IEEE products: torch's permissions for less exact ones of that type are suspended meanwhile."""
    if kind == "cpu":
        return _of_single_precision(call, shortened, exact_products) if dtype in _SINGLE else call
    if dtype in _SINGLE:
        return _of_single_precision(call, _shortened_on_a_gpu, partial(float32_products, tf32=False))
    names = [name for name in _SWITCHES.get(dtype, ()) if _has(name)]
    return _of_halves(call, names) if names else call


def _of_single_precision(
    call: Callable[..., Any], shortens: Callable[[], bool], ieee: Callable[[], AbstractContextManager[None]]
) -> Callable[..., Any]:
    def exactly(*args: Any, **options: Any) -> Any:
        if shortens():
            with ieee():
                return call(*args, **options)
        return call(*args, **options)

    return exactly


def _shortened_on_a_gpu() -> bool:
    """Whether torch may make float32 products in TF32."""
    switches = torch.backends.cuda.matmul
    found = getattr(switches, "fp32_precision", None)  # torch before 2.9 has the other alone
    return bool(switches.allow_tf32) if found is None else found not in ("none", "ieee")


def _of_halves(call: Callable[..., Any], names: Sequence[str]) -> Callable[..., Any]:
    switches = torch.backends.cuda.matmul

    def exactly(*args: Any, **options: Any) -> Any:
        given = [name for name in names if getattr(switches, name)]
        if not given:
            return call(*args, **options)
        with _off(given):
            return call(*args, **options)

    return exactly


@contextmanager
def _off(names: Sequence[str]) -> Iterator[None]:
    for name in names:
        setattr(torch.backends.cuda.matmul, name, False)
    try:
        yield
    finally:
        for name in names:
            setattr(torch.backends.cuda.matmul, name, True)


@lru_cache
def _has(name: str) -> bool:
    try:
        getattr(torch.backends.cuda.matmul, name)
    except (AttributeError, RuntimeError):
        return False
    return True


@lru_cache
def multiplies_brains() -> bool:
    """Whether torch's products of bfloat16 on this CPU are by instructions that add in single precision."""
    has_bf16 = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return has_bf16 is not None and bool(has_bf16()) and torch.backends.mkldnn.is_available()


@lru_cache
def widens() -> bool:
    """Whether torch leaves products of halves in single precision on a GPU."""
    return (
        torch.version.hip is None
        and hasattr(torch.ops.aten.mm, "dtype_out")
        and hasattr(torch.ops.aten.bmm, "dtype_out")
    )
