"""A folder of files that weft keeps on disk, read and written as if everything could go wrong there.

Files are written whole and renamed. What is read must be a plain file that its owner alone may write: this user, or
root. Each use opens the folder anew; one that others may have made or changed is not used, and a warning says why. What
a file holds is checked by those who read it (`weft.machine.store`, `weft.cpu.machine_code`).

Folders are opened part by part from the root on, each part by the descriptor of the one above. Each part belongs to
this user, to root, or to whoever has the root folder, and so does each link on the way: a folder or link that somebody
else has put there leads nowhere. The last folder is one that its owner alone may write. Where the system has no such
descriptors (Windows), a folder is its path.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from weft.base.files import write_whole
from weft.base.log import warn

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
