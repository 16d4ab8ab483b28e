"""How many flops an operation has, for `torch.utils.flop_counter.FlopCounterMode`.

They are those of `weft.machine.counts`: multiply-adds, two each; four times as many of complex numbers. Functions are
not counted: torch counts no pointwise operation either.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from weft.compiled.text import read
from weft.machine.counts import contraction_work
from weft.spec import Layout

_COUNTER = "torch.utils.flop_counter"


def contraction_flops(call: str, tensors: list[torch.Tensor], *others: Any, **named: Any) -> int:
    """Flops of `torch.ops.weft.contract` on these arguments."""
    request = read(call).request([_bare(tensor) for tensor in tensors])
    shape = [request.extents[label] for label in request.notation.output]
    return contraction_work(request.contraction(None, Layout.contiguous(shape, request.d_dtype))).flops


#: By the name of an operation; other files add theirs.
FORMULAS: dict[str, Callable[..., int]] = {"contract": contraction_flops, "contract_out": contraction_flops}


def _bare(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that has this one's layout and no memory."""
    shape, strides = ([int(each) for each in of] for of in (tensor.shape, tensor.stride()))
    return torch.empty_strided(shape, strides, dtype=tensor.dtype, device="meta")


def announce_flops() -> None:
    """Tell torch's flop counter of weft's operations, where it is there: its import takes a quarter of a second.

    A counter copies what is known when it is made: those that are on get it, too.
    """
    counter = sys.modules.get(_COUNTER)
    if counter is None:
        return
    packets = {getattr(torch.ops.weft, name): formula for name, formula in FORMULAS.items()}
    for packet, formula in packets.items():
        if packet not in counter.flop_registry:
            counter.register_flop_formula(packet, get_raw=True)(formula)
    for mode in _get_current_dispatch_mode_stack():
        registry = getattr(getattr(mode, "counter", mode), "flop_registry", {})
        for packet in packets:
            registry.setdefault(packet, counter.flop_registry[packet])
