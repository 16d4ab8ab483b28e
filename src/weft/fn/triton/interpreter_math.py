"""`libdevice` and `device_math` for Triton's interpreter, which cannot call device code: the same names on the host.

Only what is a call into a device library is replaced; the emitted expressions around it run as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime.interpreter import TensorHandle

from weft.fn.operations import FUNCTIONS
from weft.fn.triton.device_math import to_type


def _on_host(function: Callable[..., np.ndarray[Any, Any]]) -> Callable[..., Any]:
    def call(*operands: Any) -> Any:
        result = function(*(operand.handle.data for operand in operands))
        element = operands[0].type.scalar
        block = any(operand.type.is_block() for operand in operands)
        kind = tl.block_type(element, list(result.shape)) if block else element
        return tl.core.tensor(TensorHandle(result, element), kind)

    return call


def _by_torch(name: str, dtype: torch.dtype | None = None) -> Callable[..., np.ndarray[Any, Any]]:
    """A function of torch, computed in `dtype`."""
    function = getattr(torch, name)

    def call(*arrays: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        tensors = [torch.from_numpy(np.array(array)) for array in arrays]
        result: torch.Tensor = function(*(tensor.to(dtype) for tensor in tensors))
        return result.to(tensors[0].dtype).numpy()

    return call


# Computed in float64 and rounded: in float32 a process's first `torch.exp` is now and then off by 1.5e-4 of the value,
# as far as its second thread computes it (torch 2.13, x86).
_ELEMENTARY = {*FUNCTIONS, "pow"} - {"copysign", "nextafter"}

libdevice = SimpleNamespace(
    nearbyint=_on_host(np.rint),
    fmod=_on_host(np.fmod),  # torch's is NaN for the largest dividends
    **{name: _on_host(_by_torch(name, torch.float64)) for name in _ELEMENTARY},
    **{name: _on_host(_by_torch(name)) for name in ("trunc", "copysign", "nextafter")},
)


def _elu(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


_single_elu = _on_host(_elu)

device_math = SimpleNamespace(
    exp2=_on_host(np.exp2),
    reciprocal=_on_host(np.reciprocal),
    fma_to_one=_on_host(lambda x, y, z: np.clip(x * y + z, 0, 1)),
    elu=lambda x: _single_elu(x.to(tl.float32)).to(x.dtype),
    to_type=to_type,
)
