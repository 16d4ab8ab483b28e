"""Suites with options of their own, as further words of `weft bench`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand

from weft_bench.cli.everyday import everyday
from weft_bench.cli.regret import regret
from weft_bench.cli.tuning import tuning


class OwnSuite(NamedTuple):
    """A suite that is a command."""

    run: Callable[..., None]
    cases: Callable[[], int]  # how many it has
    about: str


def _everyday_cases() -> int:
    from weft_bench.cases.everyday import everyday

    return len(everyday())


def _regret_workloads() -> int:
    from weft_bench.regret.workloads import workloads

    return len(workloads())


def _studied_cases() -> int:
    from weft_bench.tuning.study import CASES

    return len(CASES.split(","))


OWN_SUITES = {
    "everyday": OwnSuite(
        everyday, _everyday_cases, "contractions, permutations and groups as users write them, beside torch's plain way"
    ),
    "regret": OwnSuite(
        regret, _regret_workloads, "the time that calls take from the first of a fresh process on, over torch's"
    ),
    "tuning": OwnSuite(
        tuning, _studied_cases, "random schedules of eight cases of TCCG: their distribution, and when a peer is beaten"
    ),
}


@cache
def own_commands() -> dict[str, Any]:
    """The commands of these suites by name."""
    app = typer.Typer()
    for name, each in OWN_SUITES.items():
        app.command(name)(each.run)
    group: Any = typer.main.get_command(app)
    found: dict[str, Any] = group.commands
    return found


class SuiteCommand(TyperCommand):
    """`weft bench`: where its first word is one of these suites, that command takes the rest."""

    @property
    def commands(self) -> dict[str, Any]:
        return own_commands()

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        own = own_commands().get(args[0]) if args else None
        if own is None:
            return super().make_context(info_name, args, parent, **extra)
        return own.make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)
