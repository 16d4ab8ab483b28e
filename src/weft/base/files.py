"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path


def hand_out(file: Path, content: str | bytes) -> None:
    """Write a file that a user has named, whole and for all to read; where a link leads, it is written there.

    A device or a pipe, as /dev/stdout is, takes the content and stays what it is. Raises `OSError`.
    """
    if file.exists() and not file.is_file():
        with open(file, "wb") as stream:
            stream.write(content.encode() if isinstance(content, str) else content)
    else:
        write_whole(Path(os.path.realpath(file)), content, mode=0o644)


def write_whole(file: Path, content: str | bytes, *, mode: int = 0o600, folder: int | None = None) -> None:
    """Write `file` so that nobody ever sees a part of it: a temporary file beside it, fsync, rename.

    `mode`: its permissions; by default its owner alone may read it. `folder`: the descriptor of the folder that `file`
    is named in. Raises `OSError`; what was there before is untouched then.
    """
    temporary = file.with_name(f"{file.stem}{secrets.token_hex(4)}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    handle = os.open(temporary, flags, 0o600, dir_fd=folder)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content.encode() if isinstance(content, str) else content)
            stream.flush()
            os.fsync(stream.fileno())
        if mode & 0o077:
            os.chmod(temporary, mode, dir_fd=folder)  # whatever the umask is
        os.replace(temporary, file, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise
