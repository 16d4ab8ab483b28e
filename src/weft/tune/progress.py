"""Progress of a tuning that a call requested: nothing for two seconds, then one line on a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

PATIENCE = 2.0  # seconds


def quiet(what: str, done: int, of: int) -> None:
    """Report nothing."""


@contextmanager
def shown(title: str) -> Iterator[Callable[[str, int, int], None]]:
    """A function that reports a step: a bar on standard error, where that is a terminal, once `PATIENCE` is over.

    Without rich it reports nothing.
    """
    try:
        from rich.console import Console
    except ModuleNotFoundError:
        yield quiet
        return
    errors = Console(stderr=True)
    if not errors.is_terminal:
        yield quiet
        return
    began = time.monotonic()
    bars: list[Any] = []

    def report(what: str, done: int, of: int) -> None:
        if not bars and time.monotonic() - began >= PATIENCE:
            bars.append(bar(errors, title))
            bars[0].start()
        if bars:
            bars[0].update(bars[0].task_ids[0], description=f"{title}: {what}", completed=done, total=of)

    try:
        yield report
    finally:
        if bars:
            bars[0].stop()


def bar(console: Any, title: str, total: int | None = None, *, counts: bool = True) -> Any:
    """A bar of progress with one task; `counts`: with how many of its steps are done."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False))
    steps = (BarColumn(), MofNCompleteColumn()) if counts else ()
    progress = Progress(*columns, *steps, TimeElapsedColumn(), console=console, transient=True)
    progress.add_task(title, total=total)
    return progress
