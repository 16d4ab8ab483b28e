"""`weft bench --list`: the suites, or the cases of one."""

from __future__ import annotations

from typing import Any

from weft_bench.cli.own_suites import OWN_SUITES
from weft_bench.cli.tables import print_table

_LIST_IN_WORDS = "Each row is one case: what is computed, at which extents, in which number types (of A, B and D)."


def list_cases(suite: str | None, pairs: tuple[str, ...], only: tuple[str, ...]) -> None:
    """The suites, or the cases of one."""
    from weft_bench.report.page import Cell, Table
    from weft_bench.suites import SUITES, entries

    if suite is None:
        known = [(Cell(name), Cell(str(len(entries(name)))), Cell(each.about)) for name, each in SUITES.items()]
        known += [(Cell(name), Cell(str(own.cases())), Cell(own.about)) for name, own in OWN_SUITES.items()]
        said = "Each row is a suite that `weft bench SUITE` measures; `weft bench SUITE --list` shows its cases."
        print_table(Table(("suite", "cases", "what"), known), "suites", said)
        return
    rows = [
        tuple(Cell(text) for text in (entry.group, entry.case.name, *_described(entry.case)))
        for entry in entries(suite, pairs, only)
    ]
    print_table(Table(("group", "case", "equation", "extents", "types", "functions"), rows), suite, _LIST_IN_WORDS)


def _described(case: Any) -> tuple[str, str, str, str]:
    """Equation, extents, number types and functions."""
    from weft_bench.cases import Case
    from weft_bench.cases.cascades import CascadeCase
    from weft_bench.cases.networks import NetworkCase
    from weft_bench.cases.scaling import PlacedCase, ScalingCase
    from weft_bench.cases.small import SmallCase

    if isinstance(case, PlacedCase):
        a, b, d = case.placements
        return case.equation, f"{case.extent} each; A along {a}, B along {b}, D along {d}", "float16 float32", ""
    if isinstance(case, ScalingCase):
        dtype = str(case.network.dtype).removeprefix("torch.")
        return case.slice.equation, f"{case.slices(1)} slices on 1 rank, {case.slices(4)} on 4", dtype, ""
    if isinstance(case, CascadeCase):
        sizes, passes = " ".join(f"{label}={extent}" for label, extent in case.extents), ", backward" * case.backward
        return case.equation, sizes, str(case.dtype).removeprefix("torch."), case.task + passes
    if isinstance(case, NetworkCase):
        return case.equation, f"{len(case.sliced)} sliced", str(case.dtype).removeprefix("torch."), ""
    if isinstance(case, SmallCase):
        sizes = " ".join(map(str, case.shape)) + (f", {len(case.extents)} in all" if len(case.extents) > 1 else "")
        return case.equation, sizes, str(case.dtype).removeprefix("torch."), ""
    extents: Any
    dtypes: tuple[Any, ...]
    functions: tuple[str | None, ...]
    if isinstance(case, Case):
        equation, extents, dtypes = str(case.notation), case.extents.items(), case.dtypes
        functions = (case.a_fn, case.b_fn, case.c_fn, case.epilogue)
    else:
        equation, dtypes, functions = case.equation, (case.dtype, case.d_dtype), (case.fn,)
        extents = zip(equation.partition("->")[0], case.shape, strict=True)
    return (
        equation,
        " ".join(f"{label}={extent}" for label, extent in extents),
        " ".join(str(dtype).removeprefix("torch.") for dtype in dtypes),
        " ".join(filter(None, functions)),
    )
