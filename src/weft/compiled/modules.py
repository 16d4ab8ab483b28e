"""Modules as functions (`epilogue=torch.nn.GELU()`) in code that dynamo reads: torch 2.11 takes none for a constant.

It does take its address for one, and guards that the module stays the same.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch


def constant_of(function: Any) -> Any:
    """What dynamo takes for a constant in the place of a function. Dynamo reads this."""
    return ("module at", id(function)) if isinstance(function, torch.nn.Module) else function


def function_of(constant: Any) -> Any:
    """The function again. The module lives: its address was taken within the same call."""
    if isinstance(constant, tuple):
        return ctypes.cast(constant[1], ctypes.py_object).value
    return constant
