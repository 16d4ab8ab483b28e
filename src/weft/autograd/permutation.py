"""A permutation as a contraction, whose derivatives are known: with a one that is repeated along new modes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from weft.base.arrays import outside_transforms
from weft.planner.options import Options
from weft.planner.request import Request
from weft.planner.target import target_of
from weft.plans.resolving import resolved
from weft.spec import Notation

_UNKNOWN = 1024  # an extent of which a tracer knows nothing

def as_contraction(request: Request) -> Request:
    """The request of a permutation as that of a contraction with that one."""
    options = Options(
        request.d_dtype, functions=(request.functions.a, None, None, None), workspace_limit=request.workspace_limit,
        tune=request.tune, specialize=request.specialize, backend="reference",
    )  # fmt: skip
    a, b = (torch.empty(layout.shape, dtype=layout.dtype, device="meta") for layout in (request.a, request.b))
    found = resolved(request.notation, request.text, a, b, options)
    return replace(found, backend=request.backend, device=request.device, target=request.target)


def meta_request(
    notation: Notation, text: str, a: torch.Tensor, b: torch.Tensor, options: Options, device: torch.device
) -> Request:
    """The request of a call, of tensors without memory: those inside a transform have no address.

    The backend is the reference's, which takes them; `device` is where the tensors are.
    """
    operands = {name: (modes, meta(tensor)) for name, (modes, tensor) in options.operands.items()}
    asked = replace(options, operands=operands, backend="reference", schedule=None)
    found = resolved(notation, text, meta(a), meta(b), asked)
    return replace(found, schedule=options.schedule, device=device, target=target_of("reference", device))


def meta(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's shape and type without memory. An extent that a tracer leaves open is what it is at present."""
    with outside_transforms():
        return torch.empty([present(extent) for extent in tensor.shape], dtype=tensor.dtype, device="meta")


def present(extent: Any) -> int:
    """The extent itself, or what stands for it in a program that is traced for any: plans are chosen by it."""
    if type(extent) is int:
        return extent
    hint = extent.node.hint
    return int(hint) if hint is not None else _UNKNOWN
