"""Tensors in memory of exactly their own size, filled from the host: what lies beside them is nobody's.

A copy from the host is a write that every tool sees. What a kernel of torch fills would look unwritten to a tool that
is told to look at weft's kernels alone.
"""

from __future__ import annotations

import torch

from weft.oracle.problem import Operands, span
from weft.planner.schedule import Description
from weft.spec import Layout
from weft.spec.permutation import Permutation


def operands(description: Description, device: torch.device) -> Operands:
    """Small whole numbers; the result is not written."""
    if isinstance(description, Permutation):
        return Operands(_filled(description.x, device), None, None, _unwritten(description.d, device))
    aux = []
    for each in description.aux:
        make = _unwritten if each.kind == "output" else _filled
        aux.append(make(each.layout, device) if each.layout is not None else None)
    c = _filled(description.c, device) if description.c is not None else None
    a, b = _filled(description.a, device), _filled(description.b, device)
    return Operands(a, b, c, _unwritten(description.d, device), tuple(aux))


def _filled(layout: Layout, device: torch.device) -> torch.Tensor:
    generator = torch.Generator().manual_seed(span(layout))
    values = torch.randint(0, 2, (span(layout),), generator=generator).to(layout.dtype)
    return values.to(device).as_strided(layout.shape, layout.strides)


def _unwritten(layout: Layout, device: torch.device) -> torch.Tensor:
    memory = torch.empty(span(layout), dtype=layout.dtype, device=device)
    return memory.as_strided(layout.shape, layout.strides)
