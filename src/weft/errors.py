"""The errors weft raises. All derive from `WeftError`; each also derives from the built-in it specialises.

What it warns of derives from `WeftWarning`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

#: Whether dynamo, which knows no context variables, reads this code: `weft.base.dispatch` brings torch's word for it.
is_dynamo_compiling: Callable[[], bool] = bool
_within: ContextVar[bool] = ContextVar("within a public call of weft", default=False)


class WeftError(Exception):
    """Base of every error that weft raises on purpose."""


class NotationError(WeftError, ValueError):
    """The equation cannot be read, or names labels inconsistently."""


class ShapeError(WeftError, ValueError):
    """Extents, ranks, strides or memory overlap do not fit the equation."""


class DTypeError(WeftError, TypeError):
    """Element types do not fit each other or the requested precision."""


class FunctionError(WeftError, TypeError):
    """A user function cannot be fused; the message names the operation and says what to write instead."""


class ArgumentError(WeftError, TypeError):
    """A keyword that a call does not take, arguments in the wrong order, or a flag that is neither True nor False."""


class UnsupportedError(WeftError, NotImplementedError):
    """The request is well formed, but this backend or version cannot serve it."""


class WorkspaceError(WeftError, MemoryError):
    """No plan fits the workspace limit, or the workspace could not be had."""


class AccuracyError(WeftError, ArithmeticError):
    """An element of a result is further from the exact one than rounding explains (`validate=True`)."""


class RankError(WeftError, RuntimeError):
    """A rank of a process group failed, ended, did not come in time, or is at another call than the others."""


class WeftWarning(RuntimeWarning):
    """Something is not as it should be, and weft goes on: a family of kernels that fails its self-test, say."""


class CallContext:
    """Append what the public call was given to any `WeftError` that leaves it.

    Inside the library errors are raised short; the sentence with equation, shapes and dtypes is added here, once, by
    the outermost call: einsum describes itself and not the contractions it is made of. `describe` runs only when
    there is an error.
    """

    __slots__ = ("_describe", "_token")

    def __init__(self, describe: Callable[[], str]) -> None:
        self._describe = describe

    def __enter__(self) -> None:
        self._token = None if is_dynamo_compiling() or _within.get() else _within.set(True)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._token is None:
            return
        try:
            if isinstance(error, WeftError):
                _in_context(error, self._describe)
            elif isinstance(error, (RuntimeError, MemoryError)) and is_out_of_memory(error):
                found = WorkspaceError(f"out of memory: {str(error).partition(chr(10))[0]}")
                raise _in_context(found, self._describe) from error
        finally:
            _within.reset(self._token)


call_context = CallContext


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory could not be had: torch's on a GPU or the CPU, NumPy's, or Python's own, or more than is counted.
    """
    if isinstance(error, WeftError):
        return False
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # of torch, not imported here
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and any(words in text for words in _OF_MEMORY)


#: What torch says of sizes that it cannot allocate, or cannot count.
_OF_MEMORY = ("can't allocate memory", "size calculation overflowed", "integer multiplication overflow", "bad_alloc")


def _in_context(error: WeftError, describe: Callable[[], str]) -> WeftError:
    """The error with what the public call was given."""
    if getattr(error, "context", None) is None:
        context = describe()
        error.context = context  # type: ignore[attr-defined]
        error.args = (f"{error.args[0] if error.args else ''}\n  in {context}", *error.args[1:])
    return error
