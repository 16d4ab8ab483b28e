"""Keywords of a contraction that do what `torch.autocast` does.

Within autocast torch casts floating operands of a product, but for float64, to autocast's type, and the result has it
(torch's documentation of automatic mixed precision, "CUDA Ops that can autocast to float16"). Here the operands are
converted as they are read, and no copies are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

_CAST = (torch.float16, torch.bfloat16, torch.float32)


def with_autocast(keywords: dict[str, Any], a: Any, b: Any, out: Any) -> dict[str, Any]:
    """`keywords` as autocast has them; unchanged where it does not apply, or where a type of products is named."""
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
        return keywords
    return autocast_keywords(keywords, a.device.type, (a.dtype, b.dtype), out is not None)


def autocast_keywords(
    keywords: dict[str, Any], kind: str, stored: tuple[torch.dtype, torch.dtype], given: bool
) -> dict[str, Any]:
    """`with_autocast` of operands stored in two types on a `kind` of device; `given`: the result has a place."""
    a, b = stored
    if kind == "meta" or not torch.is_autocast_enabled(kind) or a not in _CAST or b not in _CAST:
        return keywords
    if keywords.get("precision") is not None or keywords.get("algebra", "plus_times") != "plus_times":
        return keywords
    chosen = torch.get_autocast_dtype(kind)
    found = {**keywords, "precision": chosen}
    if a != b:
        found["promote"] = True
    if not given and keywords.get("out_dtype") is None:
        found["out_dtype"] = chosen
    return found


def cast_by_autocast(tensors: Sequence[torch.Tensor], precision: Any) -> list[torch.Tensor]:
    """The operands of calls that take them in one type, as torch casts them; as they are where `precision` names a type
    of products."""
    if precision is not None or not is_cast(*tensors):
        return list(tensors)
    return [tensor.to(torch.get_autocast_dtype(tensors[0].device.type)) for tensor in tensors]


def is_cast(*tensors: torch.Tensor) -> bool:
    """Whether torch would cast these operands of a product now."""
    kind = tensors[0].device.type if tensors else "meta"
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return False
    return all(tensor.dtype in _CAST for tensor in tensors)
