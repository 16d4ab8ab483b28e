"""Triton's interpreter with less to do: what it has replaced in the language stays replaced until the launch ends."""

from __future__ import annotations

import functools
from typing import Any

import pytest

PARTS = ("GridExecutor", "_LangPatchScope", "_patch_lang", "tl")


def replace_once_per_launch(interpreter: Any, patch: pytest.MonkeyPatch) -> None:
    """Let a device function replace only what its launch, and the functions before it, have not.

    Triton 3.6 goes through every name of its language again whenever a device function is called, which takes a third
    of the time of an interpreted kernel and finds nothing left to replace. What is computed is the same. An
    interpreter without these parts is left as it is.
    """
    if not all(hasattr(interpreter, part) for part in PARTS):
        return
    run, replace = interpreter.GridExecutor.__call__, interpreter._patch_lang
    modules = (interpreter.tl, interpreter.tl.core)
    replaced: set[int] = set()  # within the launch under way

    @functools.cache
    def seen_by(fn: Any) -> frozenset[int]:
        return frozenset(at for at, module in enumerate(modules) if any(x is module for x in fn.__globals__.values()))

    def replace_the_rest(fn: Any) -> Any:
        if replaced and seen_by(fn) <= replaced:
            return interpreter._LangPatchScope()  # nothing to restore
        scope = replace(fn)
        replaced.update(seen_by(fn))
        return scope

    def launch(executor: Any, *args: Any, **kwargs: Any) -> None:
        replaced.clear()
        try:
            run(executor, *args, **kwargs)
        finally:
            replaced.clear()

    patch.setattr(interpreter, "_patch_lang", replace_the_rest)
    patch.setattr(interpreter.GridExecutor, "__call__", launch)
