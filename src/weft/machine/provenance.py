"""Which command and which commit a figure comes from."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

_UNDERLINES = re.compile(r"\x1b\[[0-9;]*m")  # and other signs to a terminal, which `nvidia-smi topo` prints anywhere


def command() -> str:
    """The command line of this process, without the directory of the program."""
    program = Path(sys.argv[0])
    named = ["python", "-m", program.parent.name] if program.name == "__main__.py" else [program.name]
    return shlex.join([*named, *sys.argv[1:]])


def commit() -> str | None:
    """The commit of the sources in use, with ``+changes`` when tracked files differ from it; None when unknown.

    `WEFT_COMMIT` says it for a copy of the sources without their history.
    """
    if named := os.environ.get("WEFT_COMMIT"):
        return named
    here = Path(__file__).resolve().parent
    head = output_of("git", "-C", str(here), "rev-parse", "HEAD")
    # A package installed into someone's environment may lie inside a repository that is not weft's.
    if head is None or output_of("git", "-C", str(here), "ls-files", "__init__.py") != "__init__.py":
        return None
    return head + ("+changes" if output_of("git", "-C", str(here), "status", "--porcelain", "-uno") else "")


def output_of(*arguments: str) -> str | None:
    """A program's output without signs to a terminal; None where it is absent, fails, or takes over ten seconds."""
    if shutil.which(arguments[0]) is None:
        return None
    try:
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return _UNDERLINES.sub("", done.stdout).strip() if done.returncode == 0 else None
