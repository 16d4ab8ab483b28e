"""What commands read from their options: extents, number types, devices, functions by name, lists of cases."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from weft.errors import DTypeError, NotationError, UnsupportedError

if TYPE_CHECKING:
    import torch


def read_extents(text: str) -> dict[str, int]:
    """``a=16,b=8`` as a mapping from labels to extents."""
    found: dict[str, int] = {}
    for part in text.split(","):
        label, _, extent = (piece.strip() for piece in part.partition("="))
        if not label or not extent.isdecimal():
            raise NotationError(f"'{part.strip()}' in --extents is not of the form a=16")
        if found.setdefault(label, int(extent)) != int(extent):
            raise NotationError(f"--extents gives '{label}' twice: {found[label]} and {int(extent)}")
    return found


def read_dtype(name: str) -> torch.dtype:
    """A number type by its name in torch."""
    import torch

    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise DTypeError(f"'{name}' is no dtype of torch: float16, bfloat16, float32, float64, complex64, int8, ...")
    return found


def read_device(name: str | None, backend: str = "auto") -> torch.device:
    """A device by its name in torch; a GPU where none is named, there is one, and `backend` is not "cpu".

    `UnsupportedError` where it is not there, or `backend` does not serve it.
    """
    import torch

    from weft.planner.target import resolve_backend

    if name is None:
        name = "cuda" if torch.cuda.is_available() and backend != "cpu" else "cpu"
    try:
        found = torch.device(name)
    except RuntimeError:
        raise UnsupportedError(f"'{name}' is no device: cpu, cuda, cuda:1, ...") from None
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise UnsupportedError(f"device '{name}' is not there: torch sees {torch.cuda.device_count()} GPUs")
    resolve_backend(backend, found)
    return found


def read_precision(name: str | None) -> str | torch.dtype | None:
    """A way to make products by name, or the type to make them in."""
    return name if name in (None, "ieee", "tf32", "tf32x3", "3m") else read_dtype(name)


def read_function(name: str | None) -> Callable[..., Any] | None:
    """A function of torch.nn.functional, or of torch, by its name; None for none."""
    if name is None:
        return None
    import torch

    found = getattr(torch.nn.functional, name, None) or getattr(torch, name, None)
    if not callable(found):
        raise NotationError(f"neither torch.nn.functional nor torch has a function '{name}'")
    return found


def split(text: str | None) -> tuple[str, ...]:
    """The parts between commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip()) if text else ()


def split_cases(text: str | None) -> tuple[str, ...]:
    """Numbers, ranges of numbers spelled out, and names."""
    found: list[str] = []
    for part in split(text):
        first, dash, last = part.partition("-")
        if dash and first.isdecimal() and last.isdecimal():
            if int(first) > int(last):
                raise NotationError(f"'{part}' in --cases ends before it begins")
            found += [str(number) for number in range(int(first), int(last) + 1)]
        else:
            found.append(part)
    return tuple(found)
