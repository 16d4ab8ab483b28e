"""The state of torch around a call, as the recording of a function sees it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple, TypeVar

import torch
from torch import _C
from torch._ops import _len_torch_dispatch_stack_pre_dispatch
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import _disable_current_modes

from weft.base.arrays import grad_mode

Returned = TypeVar("Returned")

#: Modules of torch whose exceptions steer torch itself: they are not the function's.
_STEERING = ("torch._dynamo.", "torch._subclasses.", "torch.fx.experimental.", "torch.utils.checkpoint")


def set_aside(work: Callable[[], Returned]) -> Returned:
    """The work, which no mode, gradient or cast of autocast reaches, and no hook of the caller's its saved tensors;
    anomaly detection does not read its gradients, and what it makes is on the CPU, whatever torch's default device is.

    A function still sees whether autocast is on: torch asks one flag for that and for the casts. A signal may cut the
    work off anywhere, within torch's own modes too: the state of torch is put back in any case. Twice, as it may cut
    off the first time.
    """
    before = _State.now()
    try:
        try:
            for _ in before.modes:
                _C._pop_torch_dispatch_stack(None)
            for _ in before.functions:  # those of an exporter would write down that a function turns gradients off
                _C._pop_torch_function_stack()
            # Elsewhere than in an exporter none of torch's generators is used: one that a signal has cut off would push
            # its modes when it is collected. Transforms of torch.func allow no hooks, and let none in; those that do
            # nothing are made anew, as they are told from those of another recording.
            with (
                _disable_current_modes() if _len_torch_dispatch_stack_pre_dispatch() else nullcontext(),
                grad_mode(False),
                saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)
                if _C._autograd._saved_tensors_hooks_is_enabled()  # type: ignore[attr-defined]
                else nullcontext(),
                _Uncast() if _C._is_any_autocast_enabled() else nullcontext(),
                torch.autograd.set_detect_anomaly(False) if torch.is_anomaly_enabled() else nullcontext(),
                torch.device("cpu") if torch.get_default_device().type != "cpu" else nullcontext(),
            ):
                return work()
        finally:
            before.put_back()
    finally:
        before.put_back()


class _State(NamedTuple):
    """The state of this thread that a recording changes."""

    modes: list[Any]
    functions: list[Any]
    flags: dict[str, bool]
    hooks: Any
    grad: bool

    @classmethod
    def now(cls) -> _State:
        modes = [_C._get_dispatch_stack_at(at) for at in range(_C._len_torch_dispatch_stack())]
        functions = [_C._get_function_stack_at(at) for at in range(_C._len_torch_function_stack())]
        flags = {name: getattr(_python_dispatch, name) for name in _FLAGS if hasattr(_python_dispatch, name)}
        return cls(modes, functions, flags, _top_hooks(), torch.is_grad_enabled())

    def put_back(self) -> None:
        now = _State.now()
        if now == self:
            return
        for _ in now.modes:
            _C._pop_torch_dispatch_stack(None)
        for mode in self.modes:
            _C._push_on_torch_dispatch_stack(mode)
        for _ in now.functions:
            _C._pop_torch_function_stack()
        _C._set_grad_enabled(self.grad)  # as no mode of an exporter sees it
        for mode in self.functions:
            _C._push_on_torch_function_stack(mode)
        vars(_python_dispatch).update(self.flags)
        if (outer := self.flags.get(_FLAGS[-1])) is not None:
            _python_dispatch.set_is_in_mode_without_ignore_compile_internals(outer)
        while (hooks := _top_hooks()) is not None and hooks != self.hooks:
            _C._autograd._pop_saved_tensors_default_hooks()


#: Of `torch.utils._python_dispatch`, by its version; the last one has a copy in C.
_FLAGS = (
    "_is_in_torch_dispatch_mode", "_is_in_non_infra_torch_dispatch_mode",
    "_is_in_any_mode_without_ignore_compile_internals",
)  # fmt: skip


def _top_hooks() -> Any:
    return _C._autograd._top_saved_tensors_default_hooks(True)


def steers_torch(error: Exception) -> bool:
    """Whether torch raised it to end its own work: a checkpoint that has what it needs, a graph that ends."""
    return type(error).__module__.startswith(_STEERING)


class _Uncast(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with _C._DisableAutocast():
            return func(*args, **(kwargs or {}))
