"""Folders opened part by part from the root on, each part by the descriptor of the one above.

Each part belongs to this user, to root, or to whoever has the root folder, and so does each link on the way: a folder
or link that somebody else has put there leads nowhere. The last folder is one that its owner alone may write. Where the
system has no such descriptors (Windows), a folder is its path.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

BY_DESCRIPTOR = os.open in os.supports_dir_fd and hasattr(os, "O_DIRECTORY")
_FOLDER = getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_PASSED = _FOLDER | getattr(os, "O_PATH", 0)  # what may be entered need not be readable
_MOST_LINKS = 40
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class NotTrustedError(OSError):
    """A part of a path may be somebody else's work."""

    def __init__(self, place: Path, why: str) -> None:
        super().__init__(why)
        self.place = place

    def __str__(self) -> str:
        return str(self.args[0])


def descend(path: Path, *, below: Path, make: bool = False, others_write: bool = False) -> int | None:
    """A descriptor of a folder; None where the system has none. `OSError` where it is not there, or not trusted.

    With `make`, missing parts are made for their owner alone, or, in folders of root's from `below` on, for those who
    may read the folder above. With `others_write`, the last folder may be one that others write.
    """
    if not BY_DESCRIPTOR:
        if make:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return None
    place = Path.cwd() / path
    rest, place = [*reversed(place.parts[1:])], Path(place.anchor)
    here, links, inner = os.open(place, _PASSED), 0, False
    owners = {0, os.geteuid(), os.fstat(here).st_uid}
    try:
        while rest:
            inner = inner or place == below
            name = rest.pop()
            text = _link(name, here, place, owners)
            if text is None:
                place /= name
                here = _replaced(here, _entered(name, here, inner if make else None, last=not rest))
                if (owner := os.fstat(here).st_uid) not in owners:
                    raise NotTrustedError(place, f"it belongs to user {owner}")
                continue
            if (links := links + 1) > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
            target = Path(text)
            rest += reversed(target.parts[1:] if target.is_absolute() else target.parts)
            if target.is_absolute():
                here, place = _replaced(here, os.open(target.anchor, _PASSED)), Path(target.anchor)
        why = not_trusted(os.fstat(here))
        if why is not None and not others_write:
            raise NotTrustedError(place, why)
    except BaseException:
        os.close(here)
        raise
    return here


def not_trusted(found: os.stat_result) -> str | None:
    """Why what lies there may be somebody else's work; None where it cannot be."""
    if not hasattr(os, "geteuid"):
        return None
    if found.st_uid not in (0, os.geteuid()):
        return f"it belongs to user {found.st_uid}"
    if found.st_mode & _OTHERS_WRITE:
        return f"others may write there (mode {stat.S_IMODE(found.st_mode):o}; `chmod 700` lets weft use it)"
    return None


def mode_within(folder: os.stat_result, mode: int) -> int:
    """The mode of what is made in a folder: in root's own, which serve other users, open to those who read it."""
    return mode | (folder.st_mode & 0o055 if folder.st_uid == 0 else 0)


def _link(name: str, here: int, place: Path, owners: set[int]) -> str | None:
    """The target of a link; None where the part is no link or is missing."""
    try:
        found = os.stat(name, dir_fd=here, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISLNK(found.st_mode):
        return None
    if found.st_uid not in owners:
        raise NotTrustedError(place / name, f"it is a link of user {found.st_uid}")
    holder = os.fstat(here).st_mode
    if holder & _OTHERS_WRITE and not holder & stat.S_ISVTX:
        raise NotTrustedError(place / name, "it is a link in a folder that others may write")
    return os.readlink(name, dir_fd=here)


def _entered(name: str, here: int, inner: bool | None, *, last: bool) -> int:
    """The descriptor of a part. A missing one is made, unless `inner` is None: as open as the folder above if true."""
    flags = _FOLDER | os.O_RDONLY if last else _PASSED
    try:
        return os.open(name, flags, dir_fd=here)
    except FileNotFoundError:
        if inner is None:
            raise
    with contextlib.suppress(FileExistsError):  # another process has made it
        os.mkdir(name, mode_within(os.fstat(here), 0o700) if inner else 0o700, dir_fd=here)
    return os.open(name, flags, dir_fd=here)


def _replaced(old: int, new: int) -> int:
    os.close(old)
    return new
