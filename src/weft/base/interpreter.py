"""Another Python beside this one: its command line and its environment."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

_PYTHON = re.compile(r"(python|pypy|graalpy)[\w.-]*", re.IGNORECASE)


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
