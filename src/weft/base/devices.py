"""Devices as people name them."""

from __future__ import annotations

from typing import Any

import torch

from weft.errors import ArgumentError


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
