"""This Python and another beside it: the command line, the environment, and what was asked for by them."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

_PYTHON = re.compile(r"(python|pypy|graalpy)[\w.-]*", re.IGNORECASE)
_TOLD = frozenset({"--version", "--help"})


def only_tells() -> bool:
    """Whether it is `weft` or `python -m weft` with ``--help``, ``--version`` or nothing: it prints, and it ends."""
    program, *words = sys.argv or [""]
    if words and _TOLD.isdisjoint(words):
        return False
    if program == "-m":  # the module is being looked for
        return sys.orig_argv[-len(words) - 1].removeprefix("-m") == "weft"
    script = Path(program)
    return script.name == "weft" and script.resolve().parent == Path(sys.executable).parent.resolve()


def turns_off(value: str | None) -> bool:
    """Whether the value of an environment variable says no: 0, off, no or false; one that is not set does not."""
    return value is not None and value.lower() in ("0", "off", "no", "false")


def command(*words: str) -> list[str]:
    """The command line of this Python with these words; modules are not taken from the working folder.

    `OSError` where this process is a program with Python in it: that program would be started again.
    """
    if getattr(sys, "frozen", False) or not _PYTHON.fullmatch(Path(sys.executable or "").name):
        raise OSError("this program is no Python interpreter")
    return [sys.executable, "-P", *words]


def environment(**changes: str) -> dict[str, str]:
    """This process's environment, with its folders of modules, and changes."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))} | changes
