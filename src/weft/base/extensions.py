"""Commands and public names that another distribution, weft-tensor-bench, adds to weft.

It names them as entry points: ``weft.commands`` adds commands to the `weft` program, ``weft.names`` are attributes of
the package `weft`, ``weft.tuning`` serves options of `weft tune`. What reads the kernels of a plan, and draws networks,
weft asks for by the name of a module when a user does.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any, NoReturn

from weft.errors import UnsupportedError

DISTRIBUTION = "weft-tensor-bench"
COMMANDS = ("accuracy", "bench", "demo", "ladder", "micro", "occupancy", "profile", "report")
NAMES = ("energy", "ladder", "profile")


def found(group: str, name: str) -> Any | None:
    """The object of an entry point; None where no distribution names it, or one without files."""
    for entry in entry_points(group=group, name=name):
        if find_spec(entry.module.partition(".")[0]) is not None:
            return entry.load()
    return None


def hint(what: str) -> str:
    """The sentence that says what to install."""
    return f"{what} comes with the distribution {DISTRIBUTION}, which is not installed: pip install {DISTRIBUTION}"


def provided(group: str, name: str, what: str) -> Any:
    """The object of an entry point. `UnsupportedError` where its distribution is not installed."""
    if (there := found(group, name)) is None:
        raise UnsupportedError(hint(what))
    return there


def reader(module: str, what: str) -> Any:
    """A module of `weft_bench`, by its name there. `UnsupportedError` where weft-tensor-bench is not installed."""
    try:
        return import_module(f"weft_bench.{module}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "weft_bench":
            raise
    raise UnsupportedError(hint(what))


def public(name: str) -> Any:
    """The attribute `name` of the package: without weft-tensor-bench a function that raises `UnsupportedError`."""
    if (there := found("weft.names", name)) is not None:
        return there

    def absent(*_: Any, **__: Any) -> NoReturn:
        raise UnsupportedError(hint(f"weft.{name}"))

    absent.__name__ = name
    return absent
