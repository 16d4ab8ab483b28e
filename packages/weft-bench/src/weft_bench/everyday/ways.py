"""The contenders of the everyday set: each prepares a call of one case, checked, and says what it knows of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from weft.errors import WeftError
from weft_bench.cases.everyday import EverydayCase
from weft_bench.everyday.calls import Call, Planned, planned, torch_call, weft_call
from weft_bench.everyday.checking import check_alike, check_default, check_planned
from weft_bench.records import LIBRARY_TIER, NOW_TIER

DEFAULT, TORCH, COMPILE = "weft", "torch", "compile"
#: Plans by the name of the contender.
PLANS = {NOW_TIER: "now", LIBRARY_TIER: "library"}
PEERS = (TORCH, COMPILE)
#: Names in tables.
SAID = {DEFAULT: "default", NOW_TIER: "plan", LIBRARY_TIER: "library"}

Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True)
class Made:
    """A call that is ready to be timed, and plans of what it runs where weft runs it."""

    call: Call
    plans: Planned | None = None


def check_peers(names: Sequence[str]) -> None:
    """`WeftError` for a peer that this suite does not have."""
    for name in names:
        if name not in PEERS:
            raise WeftError(f"no peer of everyday is called '{name}': there are {', '.join(PEERS)}")


def make(name: str, case: EverydayCase, tensors: Tensors, calls: int, settled: Callable[[], None]) -> Made:
    """The contender called `name`, right on `tensors`. `settled` waits for the device.

    What a contender raises says why it has no time: `UnsupportedError` where it has no way, `AssertionError` where its
    result is wrong.
    """
    if name == DEFAULT:
        return _default(case, tensors, calls, settled)
    if name in PLANS:
        plans = planned(case, tensors, PLANS[name])
        check_planned(case, plans, tensors)
        return Made(plans.call, plans)
    plain = torch_call(case)
    if name == COMPILE:
        plain = _compiled(plain)
    check_alike(weft_call(case), plain, tensors)
    return Made(plain)


def _default(case: EverydayCase, tensors: Tensors, calls: int, settled: Callable[[], None]) -> Made:
    """The plain call, after `calls` of it."""
    check_default(case, tensors)
    call = weft_call(case)
    for _ in range(calls):
        call(*tensors)
    settled()
    plans = None if case.task == "group" else planned(case, tensors, "auto")
    return Made(call, plans)


def _compiled(plain: Call) -> Call:
    import torch._dynamo

    torch._dynamo.reset()  # else the graphs of one case count against the limit of the next
    found: Call = torch.compile(plain, dynamic=False)
    return found
