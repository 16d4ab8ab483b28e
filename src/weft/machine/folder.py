"""A folder of files that weft keeps on disk, read and written as if everything could go wrong there.

Files are written whole and renamed. What is read must be a plain file that its owner alone may write: this user, or
root. The same holds of the folder: another is not used, and a warning says why. What a file holds is checked by those
who read it (`weft.machine.store`, `weft.cpu.machine_code`).
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from weft.base.files import write_whole
from weft.base.log import warn

try:
    import fcntl
except ImportError:  # on Windows processes do not wait for one another
    fcntl = None  # type: ignore[assignment]

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_LEFT_BEHIND = 3600.0  # seconds after which the temporary file of a process that was killed is removed
_OWN = re.compile(r"[0-9a-f]{32}")  # how the names of weft's files begin
_IN_MEMORY = "kernels are kept in memory, for this process alone. WEFT_CACHE_DIR names another folder"
_told: set[str] = set()  # folders that a warning was given of
_tidied: set[str] = set()


def cache_directory() -> Path:
    """``WEFT_CACHE_DIR``, else ``weft`` in ``XDG_CACHE_HOME``, else ``~/.cache/weft``.

    A user without a home folder, as containers have them, has a place where nothing can be written.
    """
    if chosen := os.environ.get("WEFT_CACHE_DIR"):
        return Path(chosen)
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "weft"
    try:
        return Path.home() / ".cache" / "weft"
    except RuntimeError:
        return Path(os.devnull) / "weft"


class Folder:
    """Files of one folder, which need not exist."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fault(self) -> str | None:
        """Why the folder is not used; None where it is, or is not there yet."""
        try:
            return _not_trusted(os.stat(self.path))
        except OSError:
            return None

    def read(self, name: str) -> bytes | None:
        """The bytes of a file; None where it is absent, cannot be read, or others may have written it."""
        if self._at_fault():
            return None
        with contextlib.suppress(OSError):
            handle = os.open(self.path / name, os.O_RDONLY | _SAFELY)
            with open(handle, "rb") as stream:
                found = os.fstat(handle)
                if stat.S_ISREG(found.st_mode) and _not_trusted(found) is None:
                    return stream.read()
        return None

    def write(self, name: str, content: str | bytes) -> bool:
        """Put a file there, whole; False where that cannot be, with one warning for the whole cache of a process."""
        try:
            self._make()
            if self._at_fault():
                return False
            write_whole(self.path / name, content)
            self._tidy()
        except OSError as error:
            cache = cache_directory()
            place = cache if self.path.is_relative_to(cache) else self.path
            _tell(place, f"weft cannot write its cache in {place} ({error.strerror or error}): {_IN_MEMORY}")
            return False
        return True

    @contextlib.contextmanager
    def turn(self, name: str, patience: float) -> Iterator[None]:
        """Let one process at a time do what has this name; the next one finds what those before have put there.

        Where another takes longer than `patience` seconds, and where files cannot be locked, nobody is waited for.
        """
        handle = self._locked(f"{name}.lock", patience)
        try:
            yield
        finally:
            if handle is not None:
                self.remove(f"{name}.lock")
                os.close(handle)

    def _locked(self, name: str, patience: float) -> int | None:
        """The handle of a file that this process alone has locked; None where it has not."""
        if fcntl is None or self.fault() is not None:
            return None
        with contextlib.suppress(OSError):
            self._make()
            handle = os.open(self.path / name, os.O_RDWR | os.O_CREAT | _SAFELY, 0o600)
            until = time.monotonic() + patience
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return handle
                except OSError as error:
                    if not isinstance(error, BlockingIOError) or time.monotonic() > until:
                        os.close(handle)
                        return None
                time.sleep(0.01)
        return None

    def remove(self, name: str) -> None:
        """A file of that name is no longer there, unless nobody may change the folder."""
        with contextlib.suppress(OSError):
            os.unlink(self.path / name)

    def touch(self, name: str) -> None:
        """Count a file as used just now: see `bound`."""
        with contextlib.suppress(OSError):
            os.utime(self.path / name, follow_symlinks=False)

    def bound(self, suffix: str, most: int) -> None:
        """Remove what was longest unused of weft's files that end so."""
        kept = sorted(self._ages(suffix)) if self.fault() is None else []
        for _, name in kept[: max(len(kept) - most, 0)]:
            self.remove(name)

    def _at_fault(self) -> bool:
        """Whether the folder is not used; a warning says why."""
        if (fault := self.fault()) is None:
            return False
        _tell(self.path, f"weft does not use its cache in {self.path}: {fault}")
        return True

    def _tidy(self) -> None:
        """Remove temporary files and locks that were left behind, once in a process."""
        if str(self.path) not in _tidied:
            _tidied.add(str(self.path))
            for age, name in self._ages(".tmp", ".lock"):
                if age < time.time() - _LEFT_BEHIND:
                    self.remove(name)

    def _ages(self, *suffixes: str) -> list[tuple[float, str]]:
        """When each file that ends in one of these ways was last used, and its name."""
        found = []
        with contextlib.suppress(OSError), os.scandir(self.path) as entries:
            for entry in entries:
                if _OWN.match(entry.name) and entry.name.endswith(suffixes) and entry.is_file(follow_symlinks=False):
                    with contextlib.suppress(FileNotFoundError):  # another process has removed it
                        found.append((entry.stat(follow_symlinks=False).st_mtime, entry.name))
        return found

    def _make(self) -> None:
        """With what is above it; what is made, and what was made more open for reading, is its owner's alone."""
        missing = [self.path]
        while not missing[-1].parent.exists():
            missing.append(missing[-1].parent)
        for folder in reversed(missing):
            folder.mkdir(mode=0o700, exist_ok=True)
        found = os.stat(self.path)
        if _is_mine(found) and stat.S_IMODE(found.st_mode) & 0o077 and _not_trusted(found) is None:
            with contextlib.suppress(OSError):
                os.chmod(self.path, 0o700)


def _tell(place: Path, message: str) -> None:
    """Warn, once for each place in a process."""
    if str(place) not in _told:
        _told.add(str(place))
        warn(message)


_SAFELY = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


def _is_mine(found: os.stat_result) -> bool:
    return not hasattr(os, "geteuid") or found.st_uid == os.geteuid()


def _not_trusted(found: os.stat_result) -> str | None:
    """Why what lies there may be somebody else's work."""
    if not hasattr(os, "geteuid"):
        return None
    if not _is_mine(found) and found.st_uid != 0:
        return f"it belongs to user {found.st_uid}"
    if found.st_mode & _OTHERS_WRITE:
        return f"others may write there (mode {stat.S_IMODE(found.st_mode):o}; `chmod 700` lets weft use it)"
    return None
