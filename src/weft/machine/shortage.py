"""Errors that say that a machine has too little of something for now: memory, room on a disk, files, processes.

They say nothing about the code that met them, and nothing that is kept may be concluded from them.
"""

from __future__ import annotations

import errno
import re

import torch

_NUMBERS = (
    *(errno.ENOSPC, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.EROFS, errno.EACCES, errno.EPERM),
    *(errno.EIO, getattr(errno, "EDQUOT", errno.ENOSPC)),
)
_OF_MEMORY = "out of memory|cannot allocate|can't allocate|not enough memory|bad_alloc|can't start new thread"
_OTHERS = (
    "no space left|quota exceeded|read-only file system|too many open files|resource temporarily unavailable"
    r"|permission denied|input/output error|(error code|signal) -?(9|15|137|143)\b"
)
_MEMORY, _ANY = re.compile(_OF_MEMORY, re.IGNORECASE), re.compile(f"{_OF_MEMORY}|{_OTHERS}", re.IGNORECASE)


def is_of_memory(error: BaseException) -> bool:
    """Whether memory is short, by this error or one that it came of."""
    return any(
        isinstance(each, MemoryError | torch.OutOfMemoryError)
        or (isinstance(each, OSError) and each.errno == errno.ENOMEM)
        or _MEMORY.search(str(each))
        for each in causes_of(error)
    )


def is_shortage(error: BaseException) -> bool:
    """Whether anything is short, by this error or one that it came of."""
    return is_of_memory(error) or any(
        (isinstance(each, OSError) and each.errno in _NUMBERS) or says_shortage(str(each)) for each in causes_of(error)
    )


def says_shortage(text: str) -> bool:
    """Whether the text of an error, or of a process at its end, says that anything is short."""
    return _ANY.search(text) is not None


def causes_of(error: BaseException) -> list[BaseException]:
    """An error, and those that it came of."""
    found: list[BaseException] = []
    at: BaseException | None = error
    while at is not None and at not in found:
        found.append(at)
        at = at.__cause__ or at.__context__
    return found
