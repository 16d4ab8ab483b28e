"""Processes forked from one that has imported torch and weft and has called nothing: they begin in milliseconds.

Ranks, first calls and scripts that cross-compile run in such. Triton is imported in none of them beforehand, so each
may tell it to interpret or not. Functions are found by name, so they stand in a file of `tests/` itself.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import runpy
import sys
import traceback
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(["torch", "torch.distributed.tensor", "weft", "weft.distributed", "numba"])


def start(function: Callable[..., Any], *args: Any, **environment: str) -> tuple[BaseProcess, Connection]:
    """`function(connection, *args)` in another process, in this one's environment and `environment`; its other end."""
    receiver, sender = _server.Pipe()
    process = _server.Process(target=_begin, args=(function, sender, args, {**os.environ, **environment}), daemon=True)
    process.start()
    sender.close()  # so that reading ends where the process did
    return process, receiver


def _begin(
    function: Callable[..., Any], sender: Connection, args: tuple[Any, ...], environment: dict[str, str]
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    function(sender, *args)


def answered(function: Callable[..., Any], *args: Any, limit: float = 240.0, **environment: str) -> Any:
    """What `function(*args)` returns in a process of its own; fails with what it raises."""
    process, receiver = start(_answer, function, args, **environment)
    try:
        assert receiver.poll(limit), f"{function.__name__} took more than {limit} s"
        value, raised = receiver.recv()
    except EOFError:
        process.join(10)
        raise AssertionError(f"the process of {function.__name__} ended with {process.exitcode}") from None
    finally:
        receiver.close()
        process.join(0.1 if sys.exc_info()[0] else 10)
        if process.is_alive():
            process.kill()
    assert raised is None, raised
    return value


def _answer(sender: Connection, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        answer = function(*args), None
    except BaseException:
        answer = None, traceback.format_exc()[-3000:]
    with suppress(BrokenPipeError):
        sender.send(answer)


def printed(script: Path, *arguments: str, limit: float = 500.0, **environment: str) -> str:
    """What a script prints that is run with `arguments`, where Triton compiles; fails where it does."""
    return str(answered(_run, str(script), arguments, limit=limit, **{"TRITON_INTERPRET": "0", **environment}))


def _run(script: str, arguments: tuple[str, ...]) -> str:
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))
    output = io.StringIO()
    with redirect_stdout(output):
        runpy.run_path(script, run_name="__main__")
    return output.getvalue()


def said(code: str, *arguments: str, limit: float = 240.0, **environment: str) -> str:
    """What `code` prints, where Triton compiles; fails where it does."""
    return str(answered(_execute, code, arguments, limit=limit, **{"TRITON_INTERPRET": "0", **environment}))


def _execute(code: str, arguments: tuple[str, ...]) -> str:
    sys.argv = ["-c", *arguments]
    output = io.StringIO()
    with redirect_stdout(output):
        exec(code, {"__name__": "__main__"})
    return output.getvalue()
