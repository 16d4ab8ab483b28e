"""What a call was given, in one line for error messages."""

from __future__ import annotations

from typing import Any

import torch


def describe_call(call: str, equation: object, **arrays: Any) -> str:
    """One line for error messages: the call, its equation, and shape, strides and dtype of each array."""
    texts = [f"{name}: {_describe(value)}" for name, value in arrays.items() if value is not None]
    asked = _describe(equation) if hasattr(equation, "shape") else repr(equation)
    return f"{call}({asked}; {', '.join(texts)})" if texts else f"{call}({asked})"


def _describe(value: Any) -> str:
    try:
        shape, dtype = value.shape, value.dtype
    except (AttributeError, RuntimeError):  # the latter for nested tensors
        return type(value).__name__
    text = f"{'x'.join(map(str, shape)) or '0-d'} {str(dtype).removeprefix('torch.')}"
    if isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_contiguous():
        text += f" strides {value.stride()}"
    return text
