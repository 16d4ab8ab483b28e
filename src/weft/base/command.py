"""Whether this process is the `weft` command, and asked for what needs no torch."""

from __future__ import annotations

import sys
from pathlib import Path

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
