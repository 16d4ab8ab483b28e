"""`@triton.jit` functions that the user wrote."""

from __future__ import annotations

import hashlib
import inspect
import itertools
import sys
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch

from weft.fn.pointwise import TritonFunction

_serial = itertools.count()
_interpreted: WeakKeyDictionary[Any, int] = WeakKeyDictionary()


def is_triton_function(fn: Any) -> bool:
    """Whether `fn` was made by `@triton.jit`, compiled or interpreted. Imports no Triton: it is there if so."""
    return type(fn).__module__ in ("triton.runtime.jit", "triton.runtime.interpreter") and hasattr(fn, "fn")


def triton_function(fn: Any, first: str, names: tuple[str, ...], dtypes: tuple[torch.dtype, ...]) -> TritonFunction:
    """A Triton function as a `Pointwise`; its inputs stand in the order of its own parameters."""
    given = dict(zip((first, *names), dtypes, strict=True))
    inputs = [name for name in inspect.signature(fn.fn).parameters if name in given]
    fn, key = _current(fn)
    text = ", ".join(f"{name}: {given[name]}".replace("torch.", "") for name in inputs)
    return TritonFunction(fn, f"triton {key}({text})", inputs, [given[name] for name in inputs])


def _current(fn: Any) -> tuple[Callable[..., Any], str]:
    """The function and a key of its source, of what it calls and of the globals it reads, as they are now.

    Triton computes a function's key once. Where a helper or a global constant changed since, a new function is made of
    the same Python, so that kernels compiled for the old one are not found under the new key.
    """
    jit = sys.modules["triton.runtime.jit"]
    if not isinstance(fn, jit.JITFunction):  # interpreted: nothing is compiled, the object itself is the key
        if fn not in _interpreted:
            _interpreted[fn] = next(_serial)
        return fn, f"interpreted {_interpreted[fn]} {hashlib.sha256(inspect.getsource(fn.fn).encode()).hexdigest()}"
    fresh = jit.JITFunction(fn.fn)
    return (fn if fresh.cache_key == fn.cache_key else fresh), fresh.cache_key
