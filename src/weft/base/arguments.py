"""Arguments that many calls share: devices, sizes in bytes, the factors of a sum; and calls described for errors."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from numbers import Number
from typing import Any

import torch

from weft.base.figures import dtype_name
from weft.errors import ArgumentError, ShapeError


def read_device(device: Any) -> torch.device:
    """A device of torch, or its name; a GPU with its number, by default the current one.

    `ArgumentError` for what is no device, and for a GPU that is not there.
    """
    try:
        found = torch.device(device)
    except Exception as error:  # whatever an object of somebody else raises
        reason = str(error).partition("\n")[0].removesuffix(", but expected one of:")
        raise ArgumentError(f"device={device!r} is no device: {reason}") from None
    if found.type != "cuda":
        return found
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        raise ArgumentError(f"device={device!r}: there is no GPU here")
    number = found.index if found.index is not None else torch.cuda.current_device()
    if number >= count:
        raise ArgumentError(f"device={device!r}: there are {count} GPUs here, cuda:0 to cuda:{count - 1}")
    return torch.device("cuda", number)


_PREFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SIZE = re.compile(r"((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?)([kmgt]i?|)(?:b|bytes?|)")


def read_limit(limit: Any) -> int | None:
    """Bytes: a number, or text such as "8GB", "1.5 GiB" or "64 bytes"; None where there is no limit.

    k, M, G and T are powers of 1000, Ki, Mi, Gi and Ti of 1024; upper and lower case are alike. `ArgumentError` for
    anything else.
    """
    if limit is None:
        return None
    if isinstance(limit, str):
        return _read_text(limit)
    if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not 0 <= limit < math.inf:
        raise ArgumentError(f"memory_limit={limit!r} is no number of bytes")
    return int(limit)


def _read_text(limit: str) -> int:
    found = _SIZE.fullmatch(limit.replace(" ", "").lower())
    size = float(found[1]) * _PREFIXES[found[2]] if found is not None else math.inf
    if size == math.inf:
        raise ArgumentError(
            f"memory_limit={limit!r} is no size: a number of bytes, or text such as '8GB', '1.5 GiB', '500 KiB', "
            "'64 bytes', '1e9' (kB, MB, GB, TB by 1000; KiB, MiB, GiB, TiB by 1024)"
        )
    return int(size)


def addition(c: Any, beta: Any, out: Any) -> tuple[Any, Any]:
    """The addend and its factor: C times `beta`, which is 1 where it is None; without a C `beta` adds to `out`.

    BLAS has factors that are not said, or are 0, so.
    """
    if beta is None:
        return c, 1.0
    if c is not None or out is None or is_zero(beta):
        return c, beta
    if isinstance(out, (tuple, list)):
        raise ArgumentError("beta without c adds to out, and here out is several tensors: pass c")
    return out, beta


def is_zero(factor: Any) -> bool:
    """Whether a factor is the number 0: what it multiplies is not read then."""
    return isinstance(factor, Number) and bool(factor == 0)  # type: ignore[comparison-overlap]


def check_dimensions(name: str, factor: torch.Tensor) -> None:
    """`ShapeError` for a tensor that is no number."""
    if factor.dim():
        raise ShapeError(f"{name} has shape {tuple(factor.shape)}: a factor is a number, or a tensor of no dimensions")


# -- calls in messages -------------------------------------------------------------------------------------------------

_MOST = 8  # operands that are described one by one
_LONGEST = 200  # characters of an equation


def describe_call(call: str, equation: object, **arrays: Any) -> str:
    """One line for error messages: the call, its equation, and shape, strides and dtype of each array."""
    texts = [f"{name}: {_describe(value)}" for name, value in arrays.items() if value is not None]
    asked = _shown(equation)
    return f"{call}({asked}; {', '.join(texts)})" if texts else f"{call}({asked})"


def _shown(equation: object) -> str:
    """An equation as it was typed, at most so long; of an array in its place how it lies."""
    try:
        array = isinstance(equation, torch.Tensor) or hasattr(equation, "shape")
        text = _describe(equation) if array else repr(equation)
    except Exception:  # whatever an object of somebody else raises
        return type(equation).__name__
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def describe_many(call: str, equation: object, operands: Sequence[Any]) -> str:
    """The arguments of a call on any number of operands in one line."""
    text = str(equation)
    asked = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
    return f"{call}({asked!r}; {describe_operands(operands)})" if operands else f"{call}({asked!r})"


def describe_operands(operands: Sequence[Any], places: Sequence[int] = ()) -> str:
    """Shape, strides and dtype of each, of the first few where there are many; `places` are their numbers."""
    numbers = places if len(places) == len(operands) else range(len(operands))
    texts = [f"operand {at}: {_describe(value)}" for at, value in zip(numbers, operands[:_MOST], strict=False)]
    more = len(operands) - _MOST
    return ", ".join([*texts, f"{more} more"] if more > 0 else texts)


def _describe(value: Any) -> str:
    if type(value) in (tuple, list) and all(isinstance(extent, int) for extent in value):
        return f"shape ({', '.join(map(str, value))})"
    try:
        text = f"{'x'.join(map(str, value.shape)) or '0-d'} {dtype_name(value.dtype)}"
    except Exception:  # nested tensors, and whatever an object of somebody else raises
        return type(value).__name__
    if isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_contiguous():
        text += f" strides {value.stride()}"
    return text
