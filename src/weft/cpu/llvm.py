"""LLVM in this process, which it ends where it lacks memory: it is not begun without room for its work."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from weft.base.figures import si
from weft.base.memory import has_room
from weft.errors import WorkspaceError

ROOM = 192 << 20  # bytes that loading it takes, and compiling or linking a kernel


def need_room() -> None:
    """`WorkspaceError` where LLVM may lack memory: this process's limits count, not what others have taken."""
    if not has_room(ROOM):
        raise WorkspaceError(
            f"out of memory: compiling or loading a kernel for this CPU takes up to {si(ROOM, 'B')}, which this "
            "process may not have; backend='reference' does without"
        )


def binding() -> Any:
    """llvmlite's binding."""
    if "llvmlite.binding" not in sys.modules:
        need_room()
    return import_module("llvmlite.binding")
