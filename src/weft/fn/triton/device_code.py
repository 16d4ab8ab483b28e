"""From source text to a Triton function: one object for each text in the whole process."""

from __future__ import annotations

import linecache
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any

from weft.base.forks import free_in_child

_compiled: dict[str, Any] = {}
_lock = free_in_child(threading.Lock())


def jit_function(source: str, names: Callable[[], Mapping[str, Any]] = dict) -> Any:
    """The first `@triton.jit` or `@gluon.jit` function of an emitted source text; `names` gives what else it names.

    The text is registered with `linecache`, so `inspect.getsource`, tracebacks and Triton itself (whose cache key is
    the text) see it; the file name is made of the function's name and is the same in every process. Under
    TRITON_INTERPRET=1 `libdevice` and `device_math` are replaced by functions that compute on the host.
    """
    with _lock:
        if source not in _compiled:
            _compiled[source] = _build(source, names())
        return _compiled[source]


def _build(source: str, names: Mapping[str, Any]) -> Any:
    import triton
    import triton.language as tl

    name = re.search(r"def (\w+)\(", source)[1]  # type: ignore[index]
    file = f"<weft {name}>"
    lines = source.splitlines(keepends=True)
    linecache.cache[file] = (len(source), None, lines, file)  # no modification time: never dropped
    namespace: dict[str, Any] = {"__name__": __name__, "triton": triton, "tl": tl, **names}
    exec(compile(source, file, "exec"), namespace)
    function = namespace[name]
    namespace |= _math_libraries(interpreted=not isinstance(function, triton.runtime.JITFunction))
    return function


def _math_libraries(interpreted: bool) -> dict[str, Any]:
    if interpreted:
        from weft.fn.triton import interpreter_math

        return {"libdevice": interpreter_math.libdevice, "device_math": interpreter_math.device_math}
    from triton.language.extra import libdevice

    from weft.fn.triton import device_math

    return {"libdevice": libdevice, "device_math": device_math}
