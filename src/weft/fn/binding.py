"""Which of the names that a call gives belong to which function, told by the functions' signatures."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import torch

from weft.errors import FunctionError
from weft.fn.pointwise import is_triton_function, signature_of


def parameters(fn: Callable[..., Any]) -> tuple[str, ...] | None:
    """The names that can be passed beside the value, in order; None where the signature cannot be read.

    Those are all parameters but the first, whether they have defaults or not; `*args` and `**kwargs` have no names.
    """
    found = signature(fn)
    if found is None:
        return None
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return tuple(parameter.name for parameter in list(found.parameters.values())[1:] if parameter.kind in named)


def signature(fn: Any) -> inspect.Signature | None:
    """The signature of a function; None where it cannot be read, as of a built-in."""
    target = fn.fn if is_triton_function(fn) else fn.forward if isinstance(fn, torch.nn.Module) else fn
    try:
        return inspect.signature(target)
    except (TypeError, ValueError):
        return None


def naming(names: Iterable[str], function: Callable[..., Any]) -> Callable[..., Any]:
    """That function, which takes whatever it is given, with the names of its parameters to be seen."""
    function.__signature__ = signature_of(names)  # type: ignore[attr-defined]
    return function


def bind(functions: Mapping[str, Callable[..., Any] | None], names: Collection[str]) -> dict[str, tuple[str, ...]]:
    """For each hook the names that its function takes, in the order of the function's parameters.

    One name may go to several functions. Raises `FunctionError` for a name that no function takes: it would have no
    effect. What a function is left without, `trace` tells.
    """
    given = {hook: parameters(fn) for hook, fn in functions.items() if fn is not None} if names else {}
    bound = {hook: tuple(name for name in given.get(hook) or () if name in names) for hook in functions}
    taken = {name for found in bound.values() for name in found}
    for name in names:
        if name not in taken:
            raise FunctionError(f"no function takes '{name}'{_instead(given)}")
    return bound


def _instead(given: Mapping[str, tuple[str, ...] | None]) -> str:
    """The names that the functions do take."""
    if not given:
        return ": there is none"
    texts = []
    for hook, names in given.items():
        if names is None:
            texts.append(f"{hook} has no signature that can be read (wrap it in a function)")
        else:
            texts.append(f"{hook} takes {', '.join(names)}" if names else f"{hook} takes nothing beside the value")
    return ": " + "; ".join(texts)
