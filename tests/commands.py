"""Commands of weft's as users give them, and Python in a process of its own: what they say."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from typer.testing import CliRunner

from weft.cli.main import app


def told(*arguments: Any, code: int = 0) -> str:
    """All that a command writes, which ends with this exit code; errors that are no sentence are raised."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, done.output
    return done.output


def python(code: str, *arguments: str, limit: float = 120.0, **environment: str) -> str:
    """What a fresh interpreter prints that is given `code`; fails where that does."""
    command, here = [sys.executable, "-c", code, *arguments], {**os.environ, **environment}
    here.pop("PYTHONDONTWRITEBYTECODE", None)  # imports are timed
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit, env=here)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
