"""`weft occupancy`: how many blocks of a kernel an SM holds, from what the kernel takes. Asks no device."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.arguments import once, shortened, split, whole
from weft.cli.terminal import errors_in_a_line
from weft.errors import NotationError

if TYPE_CHECKING:
    from weft.machine.datasheets import SmLimits
    from weft_bench.machine.occupancy import Occupancy

_FREE = ("registers", "warps", "shared", "blocks", "processors")  # what --limits may say
_POWERS = {"": 0, "K": 1, "KB": 1, "KIB": 1, "M": 2, "MB": 2, "MIB": 2}


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command()(occupancy)


def occupancy(
    registers: Annotated[int, typer.Option(help="32-bit registers of a thread.")],
    warps: Annotated[int, typer.Option(help="Of a block; 32 threads each.")],
    shared: Annotated[str, typer.Option(help="Bytes of shared memory of a block: 48000, 64K.")] = "0",
    target: Annotated[str, typer.Option(help="h200, a100, rtx4090, sm_90, sm_120, ...")] = "h200",
    limits: Annotated[
        str | None, typer.Option(help="Of another SM: registers=1024,warps=16,shared=48K,blocks=8,processors=10.")
    ] = None,
    programs: Annotated[int | None, typer.Option(min=0, help="Of a grid: then its waves are told, too.")] = None,
    barriers: Annotated[int, typer.Option(help="Named barriers that the kernel uses.")] = 1,
    carveout: Annotated[int | None, typer.Option(help="Per cent of the first cache asked as shared memory.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Say how many blocks of a kernel an SM holds at once, what limits them, and how a grid falls into waves."""
    with errors_in_a_line():
        from weft.machine.datasheets import find_sm
        from weft_bench.machine.occupancy import occupancy as computed
        from weft_bench.machine.occupancy import waves

        sm, processors = find_sm(target)
        if limits is not None:
            sm, processors = _with(sm, limits, processors)
        size = read_bytes(shared, "--shared")
        found = computed(sm, registers=registers, shared=size, warps=warps, barriers=barriers, carveout=carveout)
        run = waves(programs, processors or 1, found.blocks) if programs is not None else None
        if as_json:
            typer.echo(json.dumps({**asdict(found), "waves": asdict(run) if run is not None else None}, indent=1))
            return
        typer.echo(_text(found, sm, registers, warps))
        if run is not None:
            on = f"{processors} SMs" if processors else "one SM (no product is named)"
            typer.echo(f"{programs} programs on {on}: {run}")


def _with(sm: SmLimits, text: str, processors: int | None) -> tuple[SmLimits, int | None]:
    """Limits of the architecture with those numbers in their place, and the SMs of the device."""
    given: dict[str, int] = {}
    for part in split(text):
        name, _, value = part.partition("=")
        if name not in _FREE:
            raise NotationError(f"'{part}' in --limits is no number of {', '.join(_FREE)}: registers=1024,warps=16")
        once(given, name, read_bytes(value, "--limits"), "--limits")
    processors = given.pop("processors", processors)
    if "shared" in given:
        sm = replace(sm, sizes=(-(-given["shared"] // 1024),))
    if "registers" in given:
        sm = replace(sm, partitions=1)
    changed: dict[str, Any] = dict(given)
    return replace(sm, **changed), processors


def read_bytes(text: str, option: str) -> int:
    """A size as people write it: 49152, 48K, 48KiB; K is 1024."""
    found = re.fullmatch(r"(\d+)\s*([KM]?I?B?)", text.strip().upper())
    number = None if found is None or found[2] not in _POWERS else whole(found[1])
    if found is None or number is None:
        raise NotationError(f"{option} takes a number of bytes (49152, 48K), not '{shortened(text)}'")
    return number * 1024 ** _POWERS[found[2]]


def _text(found: Occupancy, limits: SmLimits, registers: int, warps: int) -> str:
    """One line a resource: what a block is given, what there is, how many blocks that makes."""
    asked: dict[str, tuple[Any, Any]] = {
        "warps": (warps, limits.warps),
        "registers": (f"{found.registers} ({registers} a thread)", limits.registers),
        "shared memory": (f"{found.shared} B ({limits.reserved} the driver's)", f"{limits.shared} B"),
        "block slots": (1, limits.blocks),
        "barriers": ("", limits.barriers * limits.blocks),
    }
    lines = [str(found)]
    for name, blocks in found.by.items():
        mine, all_ = asked[name]
        mark = "  <- binds" if name in found.binds else ""
        lines.append(f"{name:>14}: {mine} of {all_} -> {blocks}{mark}" if mine != "" else f"{name:>14}: {blocks}{mark}")
    return "\n".join(lines)
