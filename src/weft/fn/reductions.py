"""Reductions over modes, as words of a function that `weft.cascade` traces.

A value inside such a function has modes. ``weft.softmax(s, "k")`` is the softmax along mode k of the tensor that s is
an element of. A reduced value stands for all elements along the reduced mode again: it broadcasts without a word.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from weft.errors import FunctionError
from weft.fn.element import Element
from weft.fn.fingerprint import settled

_library = torch.library.Library("weft_fn", "DEF")
_library.define("reduce(Tensor value, str kind, str[] modes) -> Tensor")

#: Two shapes without an extent in common: what a function makes of its argument's shape differs between them.
SHAPES = ((5, 7), (3, 11, 2))
_PLACES = ("argmax", "argmin")


def _typed(value: torch.Tensor, kind: str, modes: list[str]) -> torch.Tensor:
    """A value of the type that the reduction has: a recording asks for that alone.

    Where torch's compiler reads a function its values are plain tensors of a recording's shape.
    """
    if tuple(value.shape) not in SHAPES:
        raise _misplaced(kind)
    if kind in _PLACES:
        return torch.zeros_like(value, dtype=torch.int64)
    if kind == "sum" and not (value.is_floating_point() or value.is_complex()):
        return value.to(torch.int64)
    return value.clone()


_library.impl("reduce", _typed, "CompositeExplicitAutograd")
#: The operation that stands for a reduction in a recorded graph: its arguments are a value, a kind and modes.
REDUCE = torch.ops.weft_fn.reduce.default


def is_reduction(node: Any) -> bool:
    """Whether a node of a recorded graph reduces over modes."""
    return node.op == "call_function" and node.target is REDUCE


@settled
def sum(value: torch.Tensor, modes: Any) -> torch.Tensor:
    """The sum along modes (text or a sequence of labels); of bool and whole numbers in int64."""
    return REDUCE(value, "sum", _read(value, "sum", modes))


@settled
def mean(value: torch.Tensor, modes: Any) -> torch.Tensor:
    """The mean along modes: the sum over the number of elements, masked ones among them."""
    return REDUCE(_floating(value, "mean"), "mean", _read(value, "mean", modes))


@settled
def amax(value: torch.Tensor, modes: Any) -> torch.Tensor:
    """The largest value along modes. Equal ones share its gradient."""
    return REDUCE(value, "amax", _read(value, "amax", modes))


@settled
def amin(value: torch.Tensor, modes: Any) -> torch.Tensor:
    """The smallest value along modes. Equal ones share its gradient."""
    return REDUCE(value, "amin", _read(value, "amin", modes))


@settled
def argmax(value: torch.Tensor, mode: Any) -> torch.Tensor:
    """The index along one mode where the value is largest, int64: the smallest of equal ones."""
    return REDUCE(value, "argmax", _one(_read(value, "argmax", mode), "argmax"))


@settled
def argmin(value: torch.Tensor, mode: Any) -> torch.Tensor:
    """The index along one mode where the value is smallest, int64: the smallest of equal ones."""
    return REDUCE(value, "argmin", _one(_read(value, "argmin", mode), "argmin"))


@settled
def logsumexp(value: torch.Tensor, modes: Any) -> torch.Tensor:
    """``log(sum(exp(value)))`` along modes; -inf where every value is -inf."""
    return REDUCE(_floating(value, "logsumexp"), "logsumexp", _read(value, "logsumexp", modes))


@settled
def softmax(value: torch.Tensor, modes: Any) -> torch.Tensor:
    """``exp(value)`` over its sum along modes; 0 where every value is -inf, as in rows that are masked out."""
    return REDUCE(_floating(value, "softmax"), "softmax", _read(value, "softmax", modes))


@settled
def log_softmax(value: torch.Tensor, modes: Any) -> torch.Tensor:
    """``value - logsumexp(value, modes)``; where every value is -inf it is NaN, as -inf less -inf is."""
    return value - logsumexp(value, modes)


def _read(value: Any, word: str, modes: Any) -> list[str]:
    if not isinstance(value, Element) and not is_dynamo_compiling():
        raise _misplaced(word)
    if isinstance(modes, str):
        found = [mode for mode in modes if not mode.isspace()]
    elif isinstance(modes, Iterable):
        found = [str(mode) for mode in modes]
    else:
        found = [str(modes)]
    if not found or len(set(found)) < len(found):
        raise FunctionError(f"weft.{word} takes the modes that it reduces, each once, not {modes!r}")
    return found


def _misplaced(word: str) -> FunctionError:
    return FunctionError(
        f"weft.{word} is a word of functions that weft.cascade and weft.contract(reduce=) trace: its modes have a "
        f"meaning there alone; of a tensor it is torch.{word}"
    )


def _one(modes: list[str], word: str) -> list[str]:
    if len(modes) > 1:
        raise FunctionError(f"weft.{word} reduces one mode, not {len(modes)}")
    return modes


def _floating(value: torch.Tensor, word: str) -> torch.Tensor:
    if not value.is_floating_point():
        raise FunctionError(f"weft.{word} takes floating values, not {value.dtype}")
    return value
