"""Tensors that outlive the call that makes them: constants of launches, and tables that a device reads.

What is made while a CUDA graph is captured lies in the graph's memory, and holds nothing until the graph is replayed.
Nothing that is made there is kept. Plans have their constants made when they are built; a call finds them here, and
makes one for itself alone where the plan was built within a capture.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeAlias, TypeVar

import torch

from weft.base.arrays import dispatch_modes, outside_inference, outside_transforms
from weft.errors import UnsupportedError

Value = TypeVar("Value")
_Key: TypeAlias = tuple[int, torch.dtype, torch.device]

_constants: dict[_Key, torch.Tensor] = {}
_read_by_graphs: dict[int, torch.Tensor] = {}  # by address


def is_capturing(device: torch.device) -> bool:
    """Whether what is launched on a device now goes into a CUDA graph, and runs when that is replayed."""
    if device.type != "cuda":
        return False
    if device.index is None or device.index == torch.cuda.current_device():
        return torch.cuda.is_current_stream_capturing()
    with torch.cuda.device(device):
        return torch.cuda.is_current_stream_capturing()


def constant(value: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A number as a 0-d tensor: the kept one, but for a graph that is captured and for modes of torch, which have
    their own until there is one."""
    if dispatch_modes():
        return torch.full((), value, dtype=dtype, device=device)
    known = _constants.get((value, dtype, device))
    return _made((value, dtype, device)) if known is None else known


def prepare(value: int, dtype: torch.dtype, device: torch.device) -> None:
    """Make a constant now, for the calls of a plan that is being built; nothing where the device is not here."""
    if device.type != "cuda" or torch.cuda.is_available():
        constant(value, dtype, device)


class Kept(Generic[Value]):
    """A value on a device, made once, now; within the capture of a CUDA graph made each time, for that graph alone."""

    def __init__(self, make: Callable[[], Value], device: torch.device) -> None:
        self._make: Callable[[], Value] | None = make
        self._device = device
        self._known: Value | None = None
        self._settle()

    @property
    def value(self) -> Value:
        if self._make is not None:
            self._settle()
        if self._make is None:
            return self._known  # type: ignore[return-value]
        with outside_inference():
            return self._make()

    def _settle(self) -> None:
        """Make the value for good, but within a capture."""
        if self._make is not None and not is_capturing(self._device):
            with outside_inference():
                self._known, self._make = self._make(), None


def refuse_capture(device: torch.device, what: str) -> None:
    """`UnsupportedError` while a CUDA graph is being captured on the current stream: nothing is timed there."""
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise UnsupportedError(f"{what} while a CUDA graph is being captured")


def await_making(device: torch.device) -> None:
    """Wait for what is being made on the current stream: others read what is kept, and wait for nothing. What goes into
    a CUDA graph is nothing to wait for."""
    if device.type == "cuda" and not is_capturing(device):
        torch.cuda.current_stream(device).synchronize()


def keep_if_captured(device: torch.device, *tensors: torch.Tensor) -> bool:
    """Keep for good what a CUDA graph will read that is captured now: nobody hears when the graph is gone.

    Outside of a capture nothing is kept, which False says.
    """
    captured = is_capturing(device)
    if captured:
        _read_by_graphs.update((tensor.data_ptr(), tensor) for tensor in tensors)
    return captured


def forget() -> None:
    """Forget all constants; graphs keep what they read."""
    _constants.clear()


def _made(key: _Key) -> torch.Tensor:
    value, dtype, device = key
    with outside_transforms():  # so that any call may have it, whatever this one is in
        made = torch.full((), value, dtype=dtype, device=device)
    if is_capturing(device):
        return made
    await_making(device)
    return _constants.setdefault(key, made)
