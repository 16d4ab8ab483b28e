"""The terminal that the commands share: the console, progress, errors in one line, exit codes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, NoReturn

import typer
from rich.console import Console

from weft.errors import UnsupportedError, WeftError
from weft.tune.progress import bar

if TYPE_CHECKING:
    import torch

    from weft.machine.ceilings import Ceilings

WRONG, MISUSED, INTERRUPTED = 1, 2, 130  # exit codes
PATIENCE = 2.0  # seconds without a word, where standard error is no terminal
_PLAIN_WIDTH = 100  # columns of output that no terminal shows


def console() -> Console:
    """Standard output, of a fixed width where it is no terminal."""
    found = Console()
    return found if found.is_terminal else Console(width=_PLAIN_WIDTH)


@contextmanager
def progress(title: str, total: int | None) -> Iterator[Callable[[str], None]]:
    """A progress bar on standard error; call what it yields with the name of each step as that begins.

    Where standard error is no terminal, a line says the step that is running, every `PATIENCE` seconds at most.
    """
    errors = Console(stderr=True)
    if not errors.is_terminal:
        with _in_lines(title) as step:
            yield step
        return
    with bar(errors, title, total, counts=total is not None) as shown:
        begun = 0

        def step(name: str) -> None:
            nonlocal begun
            shown.update(shown.task_ids[0], description=f"{title}: {name}", completed=begun)
            begun += 1

        yield step


@contextmanager
def _in_lines(title: str) -> Iterator[Callable[[str], None]]:
    """Steps as lines of standard error, which another thread writes while this one is at work."""
    current, ended = "", Event()

    def step(name: str) -> None:
        nonlocal current
        current = name

    def report() -> None:
        said = ""
        while not ended.wait(PATIENCE):
            if current != said:
                said = current
                typer.echo(f"{title}: {said}", err=True)

    reporter = Thread(target=report, name="weft-progress", daemon=True)
    reporter.start()
    try:
        yield step
    finally:
        ended.set()
        reporter.join()


@contextmanager
def errors_in_a_line() -> Iterator[None]:
    """Errors that weft raises on purpose become one line and exit code 2; Ctrl-C ends without a traceback."""
    try:
        yield
    except WeftError as error:
        end(" ".join(str(error).split()), MISUSED)
    except OSError as error:  # a file that cannot be read or written
        end(str(error), MISUSED)
    except KeyboardInterrupt:
        end("interrupted", INTERRUPTED)


def end(message: str, code: int) -> NoReturn:
    """Say `message` on standard error and end the command with exit code `code`."""
    typer.echo(f"weft: {message}", err=True)
    raise typer.Exit(code)


def device_ceilings(device: torch.device, *, may_measure: bool = True, refresh: bool = False) -> Ceilings | None:
    """The device's ceilings, measured with a progress line where they must be; None where none are to be had."""
    from weft.machine.ceilings import ceilings

    with progress(f"ceilings of {device}", None) as step:
        try:
            return ceilings(device, refresh=refresh, may_measure=may_measure, progress=step)
        except UnsupportedError:
            return None
