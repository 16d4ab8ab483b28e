"""A folder of files that weft keeps on disk, read and written as if everything could go wrong there.

Files are written whole and renamed. What is read must be a plain file that its owner alone may write: this user, or
root. Each use opens the folder anew by descriptors (`weft.machine.descent`); one that others may have made or changed
is not used, and a warning says why. What a file holds is checked by those who read it (`weft.machine.store`,
`weft.cpu.machine_code`).
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
from weft.machine.descent import BY_DESCRIPTOR, NotTrustedError, descend, mode_within, not_trusted

try:
    import fcntl
except ImportError:  # on Windows processes do not wait for one another
    fcntl = None  # type: ignore[assignment]
_LOCKS = fcntl is not None

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
            with self._opened():
                return None
        except NotTrustedError as error:
            return str(error)
        except OSError:
            return None

    def read(self, name: str) -> bytes | None:
        """The bytes of a file; None where it is absent, cannot be read, or others may have written it."""
        with contextlib.suppress(OSError), self._used() as folder:
            handle = os.open(self._name(name), os.O_RDONLY | _SAFELY, dir_fd=folder)
            with open(handle, "rb") as stream:
                found = os.fstat(handle)
                if stat.S_ISREG(found.st_mode) and not_trusted(found) is None:
                    return stream.read()
        return None

    def write(self, name: str, content: str | bytes) -> bool:
        """Put a file there, whole; False where that cannot be, with one warning for the whole cache of a process."""
        try:
            with self._used(make=True) as folder:
                mode = 0o600 if folder is None else mode_within(os.fstat(folder), 0o600) & 0o644
                write_whole(Path(self._name(name)), content, mode=mode, folder=folder)
                self._tidy(folder)
        except NotTrustedError:
            return False
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
        if not _LOCKS:
            return None
        with contextlib.suppress(OSError):
            with self._opened(make=True) as folder:
                handle = os.open(self._name(name), os.O_RDWR | os.O_CREAT | _SAFELY, 0o600, dir_fd=folder)
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

    def remove(self, name: str) -> bool:
        """A file of that name is no longer there: False where there was none, or nobody may change the folder."""
        try:
            with self._opened(others_write=True) as folder:
                os.unlink(self._name(name), dir_fd=folder)
        except OSError:
            return False
        return True

    def set_aside(self, name: str) -> None:
        """A file that is not understood gets another ending."""
        with contextlib.suppress(OSError), self._opened() as folder:
            aside = f"{name.rpartition('.')[0]}.broken"
            os.replace(self._name(name), self._name(aside), src_dir_fd=folder, dst_dir_fd=folder)

    def touch(self, name: str) -> None:
        """Count a file as used just now: see `bound`."""
        with contextlib.suppress(OSError), self._opened() as folder:
            os.utime(self._name(name), dir_fd=folder, follow_symlinks=False)

    def bound(self, suffix: str, most: int) -> None:
        """Remove what was longest unused of weft's files that end so."""
        with contextlib.suppress(OSError), self._opened() as folder:
            kept = sorted(self._ages(folder, suffix))
            for _, name in kept[: max(len(kept) - most, 0)]:
                os.unlink(self._name(name), dir_fd=folder)

    @contextlib.contextmanager
    def _opened(self, *, make: bool = False, others_write: bool = False) -> Iterator[int | None]:
        """The folder's descriptor; `OSError` where it is not there, or not trusted."""
        folder = descend(self.path, below=cache_directory(), make=make, others_write=others_write)
        try:
            yield folder
        finally:
            if folder is not None:
                os.close(folder)

    @contextlib.contextmanager
    def _used(self, *, make: bool = False) -> Iterator[int | None]:
        """`_opened`; a warning says why a folder is not used."""
        try:
            with self._opened(make=make) as folder:
                yield folder
        except NotTrustedError as error:
            _tell(error.place, f"weft does not use its cache in {error.place}: {error}")
            raise

    def _name(self, name: str) -> str:
        """A file's name beside the descriptor of its folder."""
        return name if BY_DESCRIPTOR else str(self.path / name)

    def _tidy(self, folder: int | None) -> None:
        """Remove temporary files and locks that were left behind, once in a process."""
        if str(self.path) not in _tidied:
            _tidied.add(str(self.path))
            for age, name in self._ages(folder, ".tmp", ".lock"):
                if age < time.time() - _LEFT_BEHIND:
                    with contextlib.suppress(OSError):
                        os.unlink(self._name(name), dir_fd=folder)

    def _ages(self, folder: int | None, *suffixes: str) -> list[tuple[float, str]]:
        """When each file that ends in one of these ways was last used, and its name."""
        found = []
        with contextlib.suppress(OSError), os.scandir(self.path if folder is None else folder) as entries:
            for entry in entries:
                if _OWN.match(entry.name) and entry.name.endswith(suffixes) and entry.is_file(follow_symlinks=False):
                    with contextlib.suppress(FileNotFoundError):  # another process has removed it
                        found.append((entry.stat(follow_symlinks=False).st_mtime, entry.name))
        return found


def _tell(place: Path, message: str) -> None:
    """Warn, once for each place in a process."""
    if str(place) not in _told:
        _told.add(str(place))
        warn(message)


_SAFELY = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
