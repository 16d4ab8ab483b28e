"""How the text of `explain` is set: sections, columns, and what several sections say alike."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from weft.errors import UnsupportedError
from weft.machine.ceilings import Ceilings, ceilings, from_datasheet
from weft.planner.request import Request
from weft.planner.schedule import Target
from weft.spec import Layout, Mode

MODES_SHOWN = 10
_INDENT = 12  # columns for the name of each section


def section(name: str, lines: Sequence[str]) -> list[str]:
    """Lines under one name: it stands before the first; nothing where there are none."""
    return [f"{name if at == 0 else '':<{_INDENT}}{line}".rstrip() for at, line in enumerate(lines)]


def aligned(rows: Sequence[tuple[str, ...]], left: tuple[int, ...]) -> list[str]:
    """Columns of text; those in `left` start together, the others end together."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if at in left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def mode_table(
    modes: Sequence[Mode], tensors: Sequence[tuple[str, int, Layout]], roles: Sequence[str] | None = None
) -> list[str]:
    """One line for each mode: extent, role where roles are given, and its stride in each tensor.

    `tensors` are names with their places among a mode's strides; "." stands for stride 0.
    """
    shown = modes[:MODES_SHOWN]
    rows = [("", "extent", *(("role",) if roles is not None else ()), *(f"{name} stride" for name, *_ in tensors))]
    for at, mode in enumerate(shown):
        strides = [mode.strides[place] for _, place, _ in tensors]
        role = (roles[at],) if roles is not None else ()
        rows.append((mode.name, str(mode.extent), *role, *(str(stride) if stride else "." for stride in strides)))
    more = len(modes) - len(shown)
    return aligned(rows, left=(0,) if roles is None else (0, 2)) + ([f"... and {more} more"] if more else [])


def device_of(request: Request) -> str:
    """Where a request runs."""
    return request.target.name if request.backend != "reference" else str(request.device)


def function_name(raw: object) -> str:
    """A function of the user's, by its name."""
    name = getattr(raw, "__name__", None) or type(raw).__name__
    return "a lambda" if name == "<lambda>" else str(name)


def source_of(known: Ceilings) -> str:
    """Where ceilings come from."""
    return f"measured {known.date[:10]}" if known.source == "measured" else "from the datasheet, not measured"


def known_ceilings(target: Target) -> tuple[Ceilings | None, str]:
    """Ceilings of a device that are known without measuring, else a sentence that says why none are."""
    if target.kind == "interpreter":
        return None, "Triton's interpreter has no ceilings"
    try:
        if target.kind == "cpu" or (
            torch.cuda.is_available() and torch.cuda.get_device_name(target.index) == target.name
        ):
            return ceilings(target.device, may_measure=False), ""
        return from_datasheet(target.name), ""
    except UnsupportedError:
        return None, f"no ceilings are known for {target.name}, so no floor is given: `weft info` measures them"
