"""The machine and software that a stored figure or schedule is valid for. Its code: `weft.planner.keys`.

Also the state that calls of this process depend on without saying so: the count that grows whenever something is stored
that plans depend on, and the precision of calls that name none.
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Literal

import torch

from weft.errors import ArgumentError
from weft.machine.stamp import device_stamp
from weft.planner.schedule import Target

_generation = 0

DefaultPrecision = Literal["ieee", "ieee_bound"]
_everywhere: DefaultPrecision = "ieee"
_here: ContextVar[DefaultPrecision | None] = ContextVar("precision", default=None)


def generation() -> tuple[int, int]:
    """The state that plans depend on and no call says: how often it has changed, and the number of torch's threads.

    What has changed are stored schedules, fitted coefficients, or the families that have failed. Schedules for the CPU
    are made for a number of threads; asking for it takes 20 ns.
    """
    return _generation, torch.get_num_threads()


def call_state() -> tuple[int, int, str]:
    """The state that calls depend on and do not say: `generation`, and the default precision."""
    return _generation, torch.get_num_threads(), _here.get() or _everywhere


def default_precision() -> DefaultPrecision:
    """The precision of calls that name none, as `set_precision` and `precision` set it."""
    return _here.get() or _everywhere


def set_precision(mode: DefaultPrecision) -> None:
    """Set the precision of every call of this process that names none: ``"ieee"``, as at first, or ``"ieee_bound"``.

    ``"ieee_bound"`` lets float32 products be made in any way whose proven error bound is not above that of an IEEE sum,
    see `weft.contract`. Plans and networks keep the precision that they were made with. Less exact modes are chosen
    call by call: they are an `ArgumentError` here.

    >>> import weft
    >>> weft.set_precision("ieee_bound")
    >>> weft.set_precision("ieee")
    """
    global _everywhere
    _everywhere = _checked(mode)


class precision:  # it is called as a function
    """The precision of calls within a `with` block that name none, in this thread or task; words as `set_precision`.

    >>> import torch, weft
    >>> a = torch.rand(4, 4)
    >>> with weft.precision("ieee_bound"):
    ...     d = weft.contract("ik,kj->ij", a, a)
    """

    def __init__(self, mode: DefaultPrecision) -> None:
        self._mode = _checked(mode)
        self._tokens: list[Token[DefaultPrecision | None]] = []

    def __enter__(self) -> None:
        self._tokens.append(_here.set(self._mode))

    def __exit__(self, *error: object) -> None:
        _here.reset(self._tokens.pop())


def _checked(mode: Any) -> DefaultPrecision:
    if not isinstance(mode, str) or mode not in ("ieee", "ieee_bound"):
        reason = "a less exact one is named by each call"
        raise ArgumentError(f"the precision of all calls is 'ieee' or 'ieee_bound', not {mode!r}: {reason}")
    return "ieee_bound" if mode == "ieee_bound" else "ieee"


def outdate() -> None:
    """Have everything planned anew at its next use: what plans depend on has changed."""
    global _generation
    _generation += 1


@lru_cache
def environment(target: Target) -> dict[str, Any]:
    """The machine and the software that a stored schedule belongs to.

    Of a CPU the threads are those that the target was made for, whatever number torch has now.
    """
    threads = {"threads": target.processors} if target.kind == "cpu" else {}
    facts = {"kind": target.kind, "capability": target.capability, "processors": target.processors}
    return device_stamp(target.device) | threads | facts


def here(target: Target) -> bool:
    """Whether a target is a device of this machine."""
    if target.kind not in ("cuda", "hip"):
        return True
    return torch.cuda.is_available() and torch.cuda.get_device_name(target.index) == target.name


def can_build(target: Target) -> bool:
    """Whether kernels are compiled and loaded for a target now: it is here, and no CUDA graph is being captured."""
    return here(target) and not torch.cuda.is_current_stream_capturing()


def now() -> str:
    """The date as it is stored."""
    return datetime.now(UTC).isoformat(timespec="seconds")
