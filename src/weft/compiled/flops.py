"""The flops of an operation, for `torch.utils.flop_counter.FlopCounterMode`.

They are those of `weft.machine.counts`: multiply-adds, two each; four times as many of complex numbers. Functions are
not counted: torch counts no pointwise operation either.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from weft.compiled.text import read

_COUNTER = "torch.utils.flop_counter"
#: How often an operation does what its text describes: a backward pass makes the cascade again, and two contractions
#: for each of its two.
_TIMES = {"contract": 1, "contract_out": 1, "cascade": 1, "cascade_backward": 3}


def announce_flops() -> None:
    """Tell torch's flop counter of weft's operations, where it is there: its import takes a quarter of a second.

    A counter copies what is known when it is made: those that are on get it, too.
    """
    counter = sys.modules.get(_COUNTER)
    if counter is None:
        return
    packets = {getattr(torch.ops.weft, name): times for name, times in _TIMES.items()}
    for packet, times in packets.items():
        if packet not in counter.flop_registry:
            counter.register_flop_formula(packet, get_raw=True)(_formula(times))
    for mode in _get_current_dispatch_mode_stack():
        registry = getattr(getattr(mode, "counter", mode), "flop_registry", {})
        for packet in packets:
            registry.setdefault(packet, counter.flop_registry[packet])


def _formula(times: int) -> Any:
    return lambda call, tensors, *others, **named: times * read(call).flops(tensors)
