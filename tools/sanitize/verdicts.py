"""Findings that were judged, kept as data in `verdicts.json`: a new one stands out.

Each verdict names a tool; the kernel, the kind of report and every region of shared memory (or, where there is none,
every file and line) that it is for, as regular expressions that must match whole; what was concluded, and why.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).with_name("verdicts.json")


class Verdict(NamedTuple):
    """The verdict on a finding."""

    tool: str
    kernel: str
    kind: str
    where: str
    verdict: str  # "false report" or "harmless": what is an error is mended, not judged
    reason: str

    def covers(self, tool: str, kernel: str, kind: str, where: Sequence[str]) -> bool:
        """Whether it is about all of a finding."""
        return (
            tool == self.tool
            and re.fullmatch(self.kernel, kernel) is not None
            and re.fullmatch(self.kind, kind) is not None
            and bool(where)
            and all(re.fullmatch(self.where, each) for each in where)
        )


def known() -> list[Verdict]:
    """All verdicts."""
    return [Verdict(**each) for each in json.loads(FILE.read_text())]
