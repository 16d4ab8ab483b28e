"""Reports of what kernels compile to: scripts print them, in processes that `forked` begins, and tests look at them.

Triton compiles only where it was not told to interpret. A quick run compiles few of a script's cases, one for each
thing that is looked at; the rest are compiled where a test asks for one by name, and by slow tests.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from forked import printed

REST = "--rest"


def slow(*values: Any) -> Any:
    """Parameters that only a slow run takes."""
    return pytest.param(*values, marks=pytest.mark.slow)


#: Of a fixture that looks at few cases, and in slow runs at the rest.
PARTS = [pytest.param(False, id="few"), pytest.param(True, id="rest", marks=pytest.mark.slow)]


def print_report(cases: Mapping[str, Callable[[], object]]) -> None:
    """Of the cases whose names match the script's arguments, or of all others after `--rest`; of all without any."""
    rest, patterns = sys.argv[1:2] == [REST], tuple(sys.argv[1:])
    wanted = [name for name in cases if not patterns or _matches(name, patterns) != rest]
    json.dump({name: cases[name]() for name in wanted}, sys.stdout)


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


class Report(Mapping[str, Any]):
    """One part of a script's report, the few or the rest, that finds the other part's cases too."""

    def __init__(self, script: str, few: tuple[str, ...], rest: bool) -> None:
        self._script, self._few, self._rest = script, few, rest

    def __getitem__(self, name: str) -> Any:
        return _part(self._script, self._few, not _matches(name, self._few))[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_part(self._script, self._few, self._rest))

    def __len__(self) -> int:
        return len(_part(self._script, self._few, self._rest))


@cache
def _part(script: str, few: tuple[str, ...], rest: bool) -> dict[str, Any]:
    return reported(script, *([REST] if rest else []), *few)


def reported(script: str, *arguments: str) -> dict[str, Any]:
    """What a script beside this file prints."""
    return dict(json.loads(printed(Path(__file__).with_name(script), *arguments)))
