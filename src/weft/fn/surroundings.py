"""The state of torch around a call, as the recording of a function sees it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from weft.base.arrays import grad_mode

#: Modules of torch whose exceptions steer torch itself: they are not the function's.
_STEERING = ("torch._dynamo.", "torch._subclasses.", "torch.fx.experimental.", "torch.utils.checkpoint")


@contextmanager
def set_aside() -> Iterator[None]:
    """No mode, gradient or cast of autocast reaches what is recorded, and no hook of the caller's its saved tensors;
    anomaly detection does not read its gradients, and what it makes is on the CPU, whatever torch's default device is.

    A function still sees whether autocast is on: torch asks one flag for that and for the casts.
    """
    with _disable_current_modes(), grad_mode(False), _own_hooks(), _uncast(), _unchecked(), _on_cpu():
        yield


def steers_torch(error: Exception) -> bool:
    """Whether torch raised it to end its own work: a checkpoint that has what it needs, a graph that ends."""
    return type(error).__module__.startswith(_STEERING)


def _own_hooks() -> AbstractContextManager[Any]:
    """Hooks that do nothing. Transforms of torch.func allow none, and let none in."""
    if torch._C._autograd._saved_tensors_hooks_is_enabled():  # type: ignore[attr-defined]
        return saved_tensors_hooks(_as_it_is, _as_it_is)
    return nullcontext()


def _uncast() -> AbstractContextManager[Any]:
    return _Uncast() if torch._C._is_any_autocast_enabled() else nullcontext()


def _unchecked() -> AbstractContextManager[Any]:
    return torch.autograd.set_detect_anomaly(False) if torch.is_anomaly_enabled() else nullcontext()


def _on_cpu() -> AbstractContextManager[Any]:
    return torch.device("cpu") if torch.get_default_device().type != "cpu" else nullcontext()


def _as_it_is(tensor: Any) -> Any:
    return tensor


class _Uncast(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C._DisableAutocast():
            return func(*args, **(kwargs or {}))
