"""From a call to its launch: what was found of calls like it before.

A call's signature is all that planning and checking read off its tensors, so what was found for a signature holds for
the same signature again: which plan serves the call, and of a plain call the launch itself. Only where tensors lie
relative to one another must be looked at in each call.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from weft.base.arrays import is_transformed
from weft.plans.checks import fits

_STRIDED = torch.strided  # read in every call


def call_signature(*tensors: Any) -> tuple[Any, ...] | None:
    """What a call is known by: an entry for each tensor, None for one that is not given.

    An entry has shape, strides, dtype, device, the address modulo 16 bytes, and None, or what is special about the
    tensor and must be looked at in each call. The signature is None where something else than a strided tensor is
    given: it must be read first.
    """
    dual = forward_ad._current_level >= 0
    found: list[tuple[Any, ...] | None] = []
    for tensor in tensors:
        if tensor is None:
            found.append(None)
            continue
        if type(tensor) is not Tensor and not isinstance(tensor, Tensor):
            return None
        if tensor.layout is not _STRIDED or tensor.is_nested or is_transformed(tensor):
            return None
        special = None
        if dual or tensor.requires_grad or tensor.is_conj() or tensor.is_neg() or type(tensor) is not Tensor:
            special = _special(tensor, dual)
        address = tensor.data_ptr()
        if not address and tensor.numel():  # freed memory: what has no other fault is refused where it is read
            return None
        found.append((tensor.shape, tensor.stride(), tensor.dtype, tensor.device, address & 15, special))
    return tuple(found)


def _special(tensor: Tensor, dual: bool) -> tuple[Any, ...] | None:
    """What else a call must look at; None for a parameter while no gradient is asked for, which is like any tensor."""
    gradient = tensor.requires_grad and torch.is_grad_enabled()
    kind = Tensor if type(tensor) is Parameter else type(tensor)
    found = (kind, gradient, dual, tensor.is_conj(), tensor.is_neg())
    return None if found == (Tensor, False, False, False, False) else found


class KnownCall(NamedTuple):
    """What was found for one signature of a contraction: its plan, and where nothing is special its launch.

    Calls with C, operands or several results have no launch here: their plan checks them and finds it.
    """

    plan: Any
    launch: Callable[..., None] | None = None
    number: type = float  # of alpha and beta
    new: Any = None  # shape, dtype and device of the result, where `out` is not given
    reaches: tuple[int, int, int] = (0, 0, 0)  # bytes from the first to past the last element of A, B and D
    scaled: bool = True  # whether there are an alpha and a beta: only plus-times has them

    def run(self, a: Any, b: Any, alpha: Any, beta: Any, out: Any) -> Tensor | None:
        """The result of a call of that signature, or None where the call must be checked in full."""
        _, launch, number, new, reaches, scaled = self
        if launch is None or type(alpha) is not number or type(beta) is not number:
            return None
        if beta != 1 and (beta != 0 or not scaled):  # there is no C: a factor of it is a mistake
            return None
        if not scaled and alpha != 1:
            return None
        if number is int and not (fits(alpha) and fits(beta)):
            return None
        if out is None:
            shape, dtype, device = new
            try:
                out = torch.empty(shape, dtype=dtype, device=device)
            except RuntimeError:  # out of memory: the full way tells how much was asked for
                return None
        else:
            start, start_a, start_b = out.data_ptr(), a.data_ptr(), b.data_ptr()
            end = start + reaches[2]
            if (start < start_a + reaches[0] and start_a < end) or (start < start_b + reaches[1] and start_b < end):
                return None
        launch(a, b, None, out, alpha, beta)
        found: Tensor = out
        return found


class CallCache(dict[Hashable, KnownCall]):
    """Known calls by signature and options, at most `size` of them: the oldest goes first. Reading takes no lock."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size
        self._lock = Lock()

    def put(self, key: Hashable, call: KnownCall) -> None:
        with self._lock:
            while len(self) >= self._size and key not in self:
                del self[next(iter(self))]
            self[key] = call


def reach(tensor: Tensor) -> int:
    """Bytes from the first element to past the last."""
    last = sum(stride * (extent - 1) for stride, extent in zip(tensor.stride(), tensor.shape, strict=True))
    return (last + 1) * tensor.element_size() if tensor.numel() else 0
