"""`weft cache`: what is remembered on disk, listed, verified, exported, imported, cleared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from weft.base.figures import counted, si
from weft.base.files import hand_out
from weft.cli.arguments import split
from weft.cli.terminal import MISUSED, WRONG, console, end, errors_in_a_line
from weft.errors import UnsupportedError
from weft.machine.store import cache_directory
from weft.tune.cache import ABOUT, cleared, entries, exported, imported, known

Rooms = Annotated[str | None, typer.Option(help="Some rooms: schedules,tuning,ceilings,selftest,cpu, and so on.")]


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    cache = typer.Typer(help="What weft remembers on disk: tuned schedules, ceilings of devices.")
    cache.callback(invoke_without_command=True)(_default)
    for command, name in ((show, "list"), (verify, "verify"), (export, "export"), (take, "import"), (clear, "clear")):
        cache.command(name)(command)
    app.add_typer(cache, name="cache")


def _default(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        show()


def show(rooms: Rooms = None, entries: Annotated[bool, typer.Option(help="Every entry, too.")] = False) -> None:
    """List what is there, where, and how large it is."""
    with errors_in_a_line():
        found = _found(rooms)
        typer.echo(f"{cache_directory()} (WEFT_CACHE_DIR moves it)")
        for room in dict.fromkeys(entry.room for entry in found):
            own = [entry for entry in found if entry.room == room]
            size = si(sum(entry.size for entry in own), "B")
            typer.echo(f"  {room:<14}{len(own):>6} files  {size:>9}  {ABOUT.get(room, 'of another version')}")
            for entry in own if entries else []:
                console().print(f"    {entry.file.stem}  {entry.what}", markup=False, highlight=False, soft_wrap=True)
        if not found:
            typer.echo("  nothing")


def verify(rooms: Rooms = None) -> None:
    """Read every file and check its digests, its name and its folder; exit code 1 where any is at fault."""
    with errors_in_a_line():
        found = _found(rooms)
        faults = [entry for entry in found if entry.fault]
        for entry in faults:
            typer.echo(f"{entry.file}: {entry.fault}")
        typer.echo(f"{len(found) - len(faults)} of {len(found)} files are sound")
        if faults:
            end("files that are not sound count as absent; `weft cache clear` removes them", WRONG)


def export(
    file: Annotated[Path, typer.Argument(help="Where to.", dir_okay=False)],
    rooms: Rooms = None,
) -> None:
    """Write all entries to one JSON file."""
    with errors_in_a_line():
        document = exported(_named(rooms))
        hand_out(file, json.dumps(document, indent=1, allow_nan=False) + "\n")
        typer.echo(f"wrote {counted(len(document['entries']), 'entry', 'entries')} to {file}")


def take(file: Annotated[Path, typer.Argument(help="An exported file.", exists=True, dir_okay=False)]) -> None:
    """Take over the entries of an exported file. Tuned schedules serve where device and software are the same."""
    with errors_in_a_line():
        try:
            document: Any = json.loads(file.read_text())
        except (OSError, ValueError, RecursionError):
            raise UnsupportedError(f"{file} is no JSON file") from None
        count = imported(document)
        if count < (all_ := len(document["entries"])):
            end(f"took over {count} of {counted(all_, 'entry', 'entries')}: the cache cannot be written", MISUSED)
        typer.echo(f"took over {counted(count, 'entry', 'entries')}")


def clear(rooms: Rooms = None, yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False) -> None:
    """Remove weft's files; what else is stored there stays, and links are not followed."""
    with errors_in_a_line():
        found = _found(rooms)
        size = si(sum(entry.size for entry in found), "B")
        if found and not yes and not typer.confirm(f"Remove {counted(len(found), 'file')} ({size})?"):
            return
        count, _ = cleared(_named(rooms))
        typer.echo(f"removed {counted(count, 'file')}")


def _found(rooms: str | None) -> list[Any]:
    wanted = _named(rooms)
    return [entry for entry in entries() if not wanted or entry.room in wanted]


def _named(rooms: str | None) -> tuple[str, ...]:
    return known(split(rooms))
