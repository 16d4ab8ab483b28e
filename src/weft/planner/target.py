"""The device a plan is made for, read once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache

import torch

from weft.base.forks import computing
from weft.errors import UnsupportedError
from weft.planner.schedule import Target

BACKENDS = ("auto", "triton", "cpu", "reference")

_stood_for: ContextVar[Target | None] = ContextVar("the device that tensors on the CPU stand for", default=None)


def interpreting() -> bool:
    """Whether Triton kernels run in its interpreter, on the CPU (`TRITON_INTERPRET=1`, set before they are made)."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes")


def check_backend(backend: object) -> None:
    """`UnsupportedError` unless `backend` is one of `BACKENDS`."""
    if not isinstance(backend, str) or backend not in BACKENDS:
        raise UnsupportedError(f"backend {backend!r} is none of {', '.join(BACKENDS)}")


def resolve_backend(backend: str, device: torch.device) -> str:
    """The backend that serves `device`; a named backend is never exchanged for another."""
    check_backend(backend)
    if backend == "auto":
        if device.type not in ("cpu", "cuda"):
            raise UnsupportedError(f"no backend contracts tensors on device '{device}'")
        return "triton" if device.type == "cuda" else "cpu"
    if backend == "cpu" and device.type != "cpu":
        raise UnsupportedError(f"backend 'cpu' was asked for tensors on '{device}'")
    if backend == "triton" and device.type == "cpu" and not interpreting():
        raise UnsupportedError(
            "backend 'triton' was asked for tensors on the CPU; it runs there only in Triton's interpreter "
            "(set TRITON_INTERPRET=1 before importing weft)"
        )
    return backend


def target_of(backend: str, device: torch.device) -> Target:
    if (other := _stood_for.get()) is not None:
        return other
    if device.type == "cuda":
        return _gpu(device.index if device.index is not None else torch.cuda.current_device())
    computing()
    if backend == "triton":
        return Target("interpreter", name="Triton interpreter", capability=90, shared_memory=232448)
    return Target("cpu", name="CPU", processors=torch.get_num_threads())


@contextmanager
def standing_for(target: Target) -> Iterator[None]:
    """Within, tensors on the CPU stand for those of a device that this process cannot touch, to compile for it."""
    token = _stood_for.set(target)
    try:
        yield
    finally:
        _stood_for.reset(token)


@lru_cache
def _gpu(index: int) -> Target:
    properties = torch.cuda.get_device_properties(index)
    kind = "hip" if torch.version.hip else "cuda"
    return Target(
        kind=kind,
        index=index,
        name=properties.name,
        capability=10 * properties.major + properties.minor,
        processors=properties.multi_processor_count,
        shared_memory=getattr(properties, "shared_memory_per_block_optin", 64 * 1024),
    )
