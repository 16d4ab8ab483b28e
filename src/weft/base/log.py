"""Lines of the logger `weft`, and warnings: all that weft tells a program.

The logger has which plan a call got and what planning, compiling and tuning took. It is silent unless a program
configures it, as any logger of `logging`, or `WEFT_LOG` names a level ("info", "debug"): then it writes to standard
error. "info" has a line for each plan and tuning, "debug" one for each candidate family.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings

from weft.errors import WeftWarning

_INSIDE = ("weft", "torch")  # packages through which a program's call comes here
log = logging.getLogger("weft")
log.addHandler(logging.NullHandler())


def start() -> None:
    """Write to standard error where `WEFT_LOG` asks for it; a level that does not exist is a warning."""
    asked = os.environ.get("WEFT_LOG", "").strip().upper()
    if not asked or asked in ("0", "OFF", "NONE"):
        return
    level = logging.getLevelNamesMapping().get("INFO" if asked in ("1", "ON") else asked)
    if level is None:
        warnings.warn(f"WEFT_LOG={asked.lower()} is no level: debug, info, warning or error", RuntimeWarning, 2)
        return
    if not any(isinstance(handler, logging.StreamHandler) for handler in log.handlers):
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s: %(message)s"))
        log.addHandler(handler)
    log.setLevel(level)


def warn(message: str) -> None:
    """Warn with a `WeftWarning` at the line of the program that called weft: no file of weft's is named."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _INSIDE:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, WeftWarning, stacklevel=level)
