"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
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


def write_whole(file: Path, content: str | bytes, *, mode: int | None = None) -> None:
    """Write `file` so that nobody ever sees a part of it: a temporary file beside it, fsync, rename.

    `mode`: its permissions; by default its owner alone may read it. Raises `OSError`; what was there before is
    untouched then.
    """
    handle, temporary = tempfile.mkstemp(prefix=file.stem, suffix=".tmp", dir=file.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content.encode() if isinstance(content, str) else content)
            stream.flush()
            os.fsync(stream.fileno())
        if mode is not None:
            os.chmod(temporary, mode)
        os.replace(temporary, file)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
