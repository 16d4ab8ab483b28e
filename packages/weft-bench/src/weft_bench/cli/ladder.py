"""`weft ladder`: kernels made fast step by step, checked and measured.

python -m weft ladder all --out out/ladder
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.arguments import read_device, read_dtype, shortened, span
from weft.cli.terminal import WRONG, console, device_ceilings, end, errors_in_a_line, progress
from weft.errors import NotationError, UnsupportedError

if TYPE_CHECKING:
    from weft_bench.ladder.climbing import How
    from weft_bench.ladder.record import Climb
    from weft_bench.ladder.rung import Ladder


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command()(ladder)


def ladder(
    names: Annotated[
        list[str] | None, typer.Argument(help="multiply, transpose, tensor, reduce, cpu, all; without one a list.")
    ] = None,
    rung: Annotated[str | None, typer.Option(help="Some rungs, by number: 3 or 1,4,8-11.")] = None,
    show: Annotated[bool, typer.Option("--show", help="Print idea, picture and kernel, run nothing.")] = False,
    profile: Annotated[bool, typer.Option("--profile", help="Read counters K1 to K10 with Nsight Compute.")] = False,
    energy: Annotated[bool, typer.Option("--energy", help="Measure joules, too.")] = False,
    size: Annotated[int | None, typer.Option(min=1, help="Extent of every mode; as in the sources by default.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Of operands, where a flight leaves a choice.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...; a GPU where there is one.")] = None,
    budget: Annotated[float, typer.Option(min=0, help="Seconds of samples for each rung.")] = 0.3,
    out: Annotated[Path | None, typer.Option(help="Folder for JSON files and index.html.", file_okay=False)] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the ladders in the folder, if any.")] = False,
    page: Annotated[Path | None, typer.Option(help="Write the page of such a folder anew.", exists=True)] = None,
) -> None:
    """Climb a ladder of kernels: each is checked, timed, and held against the roof and the one before."""
    with errors_in_a_line():
        if page is not None:
            from weft_bench.ladder.page import write_page

            typer.echo(f"wrote {write_page(page)}")
            return
        wanted = _ladders(names)
        numbers = _numbers(rung)
        if not names:
            _listing(wanted)
            return
        if rung is not None and len(wanted) > 1:
            raise UnsupportedError("--rung is of one ladder: name it")
        if show:
            _shown(wanted[0] if len(wanted) == 1 else None, numbers)
            return
        if resume and out is None:
            raise UnsupportedError("--resume goes on with ladders in a folder: name it with --out")
        found = _climbed(wanted, numbers, _how(device, size, dtype, budget, profile, energy), out, resume)
        if wrong := [f"{each.ladder} {step.number}" for each in found for step in each.steps if step.wrong]:
            end(f"wrong: {', '.join(wrong)}", WRONG)


def _ladders(names: list[str] | None) -> list[Ladder]:
    from weft_bench.ladder.ladders import LADDERS
    from weft_bench.ladder.ladders import ladder as named

    if not names or "all" in names:
        return list(LADDERS.values())
    return [named(name) for name in dict.fromkeys(names)]


def _numbers(text: str | None) -> tuple[int, ...]:
    """``1,4,8-11`` as numbers."""
    found: list[int] = []
    for part in (text.split(",") if text is not None else ()):
        numbers = span(part.strip(), "--rung")
        if numbers is None:
            raise NotationError(f"'{shortened(part.strip())}' in --rung is not of the form 3 or 8-11")
        found += numbers
    return tuple(dict.fromkeys(found))


def _how(
    device: str | None, size: int | None, dtype: str | None, budget: float, profile: bool, energy: bool
) -> How:  # fmt: skip
    from weft_bench.ladder.climbing import How
    from weft_bench.ladder.rung import Size

    place = read_device(device)
    if place.type == "cpu":
        for switch in ("NUMBA_ENABLE_CUDASIM", "TRITON_INTERPRET"):  # read when kernels are first imported
            os.environ.setdefault(switch, "1")
    if profile and place.type != "cuda":
        raise UnsupportedError("--profile reads hardware counters of a GPU, and there is none")
    if energy and place.type != "cuda":
        raise UnsupportedError("--energy reads the sensor of a GPU, and there is none")
    stored = read_dtype(dtype) if dtype is not None else None
    known = device_ceilings(place) if place.type == "cuda" else None
    return How(Size(size, stored), place, known, budget, profile, energy)


def _climbed(
    wanted: list[Ladder], numbers: tuple[int, ...], how: How, out: Path | None, resume: bool
) -> list[Climb]:  # fmt: skip
    """Each is printed before the next one begins, and written after every rung where that is asked."""
    from dataclasses import replace

    from weft_bench.ladder.climbing import climb
    from weft_bench.ladder.page import save
    from weft_bench.ladder.record import begun

    found = []
    for each in wanted:
        before = begun(out, each.name, how.device) if resume and out is not None else None
        with progress(f"ladder {each.name}", len(numbers or each.rungs)) as step:
            at = replace(how, begun=step)
            if out is not None:
                at = replace(at, kept=lambda climb: save([climb], out))
            found.append(climb(each, at, numbers, before))
        _printed(found[-1])
        if out is not None:
            typer.echo(f"wrote {save(found[-1:], out)}")
    return found


def _printed(climb: Climb) -> None:
    from weft_bench.ladder import text

    screen = console()
    for flight in text.flights(climb):
        heads, *rows = (tuple(row[at] for at in text.SHORT) for row in (text.HEADS, *text.rows(climb, flight)))
        _table(f"{climb.ladder}, {flight}: {climb.device}", heads, rows)
    for said in text.remarks(climb):
        screen.print(said, markup=False, highlight=False, soft_wrap=True)
    for step in climb.steps:
        if step.profile.get("counters"):
            screen.print(f"{step.number} {step.name}: {step.profile['sentence']}", markup=False, soft_wrap=True)
    if not climb.measured:
        screen.print(text.NOT_MEASURED, markup=False, soft_wrap=True)


def _listing(wanted: list[Ladder]) -> None:
    from weft_bench.ladder import text

    for each in wanted:
        console().print(f"{each.name}: {each.says}", markup=False, highlight=False, soft_wrap=True)
        for flight in each.flights:
            _table(f"{flight.name}: {flight.says}", text.LIST_HEADS, text.listed(each, flight))


def _shown(one: Ladder | None, numbers: tuple[int, ...]) -> None:
    from weft_bench.ladder import text

    if one is None:
        raise UnsupportedError("--show prints rungs of one ladder: name it")
    count = len(one.rungs)
    if strangers := [number for number in numbers if not 1 <= number <= count]:
        raise UnsupportedError(f"ladder '{one.name}' has rungs 1 to {count}, no {strangers[0]}")
    for part in text.plain(one, numbers or range(1, count + 1)):
        typer.echo(part)


def _table(title: str, heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    from rich.table import Table
    from rich.text import Text

    drawn = Table(title=Text(title), title_justify="left")
    for head in heads:
        drawn.add_column(Text(head))
    for row in rows:
        drawn.add_row(*(Text(cell) for cell in row))
    console().print(drawn)
