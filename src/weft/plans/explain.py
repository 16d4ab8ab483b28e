"""What a plan does and why, in plain text: the operation, its cost, the roof above it, and the choice that was made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from weft.base.figures import duration, share, si
from weft.errors import UnsupportedError
from weft.fn import Pointwise
from weft.machine.ceilings import Ceilings, ceilings, from_datasheet, rate_name
from weft.machine.counts import Work, contraction_work
from weft.machine.floor import contraction_floor
from weft.machine.roofline import Floor
from weft.planner.planner import Choice
from weft.planner.request import Request
from weft.planner.schedule import Target
from weft.spec import Contraction, Layout, Mode, Role
from weft.spec.dtypes import dtype_name
from weft.spec.notation import term_text

MODES_SHOWN = 10
CANDIDATES_SHOWN = 4
EXCLUSIONS_SHOWN = 6
_INDENT = 12  # columns for the name of each part

_ROLES = {Role.BATCH: "batch", Role.M: "m", Role.N: "n", Role.K: "k (summed)"}


@dataclass(frozen=True, slots=True)
class _Hook:
    """Where a function stands in the operation."""

    name: str  # the argument of `weft.contract`
    function: Pointwise | None
    raw: object  # what the user passed
    place: str


def explain(request: Request, contraction: Contraction, choice: Choice | None) -> str:
    """The text of `Plan.explain`, at most forty lines.

    `contraction` is the canonical form that was planned; `choice` is None for the reference backend, which chooses
    nothing. Nothing is measured here: ceilings are those kept from an earlier measurement, or a datasheet's.
    """
    hooks = _hooks(request, contraction)
    work = contraction_work(contraction)
    known, unknown = known_ceilings(request.target)
    floor = contraction_floor(contraction, known, in_graph=True) if known is not None else None
    parts = (
        _operation(request, contraction),
        section("modes", _modes(contraction)),
        section("types", _types(contraction)),
        section("fused", [*_fused(hooks), *_aux(contraction)]),
        section("work", _work(work)),
        section("roof", _roof(contraction, known, floor) if known is not None and floor is not None else [unknown]),
        section("plan", chosen(request.workspace_limit, choice, floor)),
        section("candidates", candidates(choice)),
        section("excluded", excluded(choice, request.workspace_limit)),
    )
    return "\n".join(line for part in parts for line in part)


def known_ceilings(target: Target) -> tuple[Ceilings | None, str]:
    """What is known of a device without measuring anything, else the sentence that says why nothing is."""
    if target.kind == "interpreter":
        return None, "Triton's interpreter has no ceilings"
    try:
        if target.kind == "cpu":
            return ceilings(target.device, may_measure=False), ""
        if torch.cuda.is_available() and torch.cuda.get_device_name(target.index) == target.name:
            return ceilings(target.device, may_measure=False), ""
        return from_datasheet(target.name), ""
    except UnsupportedError:
        return None, f"no ceilings are known for {target.name}, so no floor is given: `weft info` measures them"


def _operation(request: Request, contraction: Contraction) -> list[str]:
    a, b = request.notation.inputs
    head = f"{term_text(a)},{term_text(b)}->{term_text(request.notation.output)}"
    where = request.target.name if request.backend != "reference" else str(request.device)
    return [f"{head}  by the {request.backend} backend on {where}", f"  {_formula(request, contraction)}"]


def _formula(request: Request, contraction: Contraction) -> str:
    """The operation as it is written down, with the functions and modes it has."""

    def applied(hook: str, function: object, args: Sequence[int], text: str) -> str:
        aux_args = "".join(f", {contraction.aux[at].name}" for at in args)
        return f"{hook}({text}{aux_args})" if function is not None else text

    def factor(
        name: str, labels: Sequence[object], hook: str, function: object, args: Sequence[int], conjugate: bool = False
    ) -> str:
        text = f"{name}[{term_text(tuple(labels))}]"
        return applied(hook, function, args, f"conj({text})" if conjugate else text)

    first, second = request.notation.inputs
    output = request.notation.output
    a = factor("A", first, "a_fn", contraction.a_fn, contraction.a_args, contraction.conjugate_a)
    b = factor("B", second, "b_fn", contraction.b_fn, contraction.b_args, contraction.conjugate_b)
    summed = tuple(label for label in dict.fromkeys((*first, *second)) if label not in output)
    c = factor("C", output, "c_fn", contraction.c_fn, contraction.c_args) if contraction.c is not None else ""
    if contraction.algebra is None:
        total = f"alpha * {f'sum[{term_text(summed)}] ' if summed else ''}{a} * {b}{f' + beta * {c}' if c else ''}"
    else:
        total = f"{f'reduce[{term_text(summed)}] ' if summed else ''}combine({a}, {b})"
        total = f"reduce({total}, {c})" if c else total
    total = applied("epilogue", contraction.epilogue, contraction.epilogue_args, total)
    results = "".join(f", {contraction.aux[at].name}" for at in contraction.outputs)
    algebra = f"  in the algebra {contraction.algebra.name}" if contraction.algebra is not None else ""
    return f"D[{term_text(output)}]{results} = {total}{algebra}"


def _modes(contraction: Contraction) -> list[str]:
    """One line for each canonical mode: extent, role, and its stride in each tensor ("." where it is absent)."""
    tensors = [name for name, layout in zip("ABCD", _layouts(contraction), strict=True) if layout is not None]
    rows = [("", "extent", "role", *(f"{name} stride" for name in tensors))]
    shown = contraction.modes[:MODES_SHOWN]
    rows += [_mode_row(mode, tensors) for mode in shown]
    lines = aligned(rows, left=(0, 2))
    if len(contraction.modes) > len(shown):
        lines.append(f"... and {len(contraction.modes) - len(shown)} more")
    sizes = [("batch", contraction.batch)] if contraction.batch != 1 else []
    sizes += [("M", contraction.m), ("N", contraction.n), ("K", contraction.k)]
    return [*lines, "together " + ", ".join(f"{name} = {size}" for name, size in sizes)]


def _mode_row(mode: Mode, tensors: Iterable[str]) -> tuple[str, ...]:
    strides = [mode.strides["ABCD".index(name)] for name in tensors]
    return (mode.name, str(mode.extent), _ROLES[mode.role], *(str(stride) if stride else "." for stride in strides))


def _types(contraction: Contraction) -> list[str]:
    arithmetic = contraction.arithmetic
    named = [(name, layout) for name, layout in zip("ABCD", _layouts(contraction), strict=True) if layout is not None]
    stored = ", ".join(f"{name} {dtype_name(layout.dtype)}" for name, layout in named)
    how = "3m" if arithmetic.three else arithmetic.precision
    return [
        f"stored {stored}; products {dtype_name(arithmetic.product)} ({how}), "
        f"summed in {dtype_name(arithmetic.accumulate)}"
    ]


def _hooks(request: Request, contraction: Contraction) -> list[_Hook]:
    placed = (
        ("a_fn", contraction.a_fn, "on values of A as they are read"),
        ("b_fn", contraction.b_fn, "on values of B as they are read"),
        ("c_fn", contraction.c_fn, "on values of C as they are added"),
        ("epilogue", contraction.epilogue, "on the sums before they are stored"),
    )
    return [
        _Hook(name, function, raw, place)
        for (name, function, place), raw in zip(placed, request.functions.raw, strict=True)
        if function is not None
    ]


def _fused(hooks: Sequence[_Hook]) -> list[str]:
    lines = []
    for hook in hooks:
        assert hook.function is not None
        flops = hook.function.flops
        cost = f", {flops} flops an element" if flops else ""
        lines.append(
            f"{hook.name} = {function_name(hook.raw)}, {hook.place}, in {dtype_name(hook.function.dtypes[0])}{cost}"
        )
    return lines


def _aux(contraction: Contraction) -> list[str]:
    """One line for each operand, coordinate and further result."""
    lines = []
    for at, each in enumerate(contraction.aux):
        along = [mode.name for mode in contraction.modes if mode.strides.aux[at]]
        where = f"along {', '.join(along)}" if along else "the same everywhere"
        kind = "coordinate" if each.kind == "index" else "operand"
        text = f"{each.name}, a further result" if each.kind == "output" else f"{each.name}, {kind} {where}"
        lines.append(f"{text}, {dtype_name(each.dtype)}")
    return lines


def function_name(raw: object) -> str:
    name = getattr(raw, "__name__", None) or type(raw).__name__
    return "a lambda" if name == "<lambda>" else str(name)


def _work(work: Work) -> list[str]:
    reads = [("A", work.read_a), ("B", work.read_b), ("C", work.read_c), ("operands", work.read_aux)]
    read = " + ".join(f"{name} {si(size, 'B')}" for name, size in reads if size or name in "AB")
    further = f" and further results {si(work.write_aux, 'B')}" if work.write_aux else ""
    functions = f", and {si(work.function_flops, 'FLOP')} in functions" if work.function_flops else ""
    return [
        f"{si(work.flops, 'FLOP')} of products and sums{functions}",
        f"{si(work.traffic, 'B')} at least: read {read}, write D {si(work.write_d, 'B')}{further}",
        f"operational intensity {si(work.intensity, 'FLOP/B')}",
    ]


def _roof(contraction: Contraction, known: Ceilings, floor: Floor) -> list[str]:
    arithmetic = contraction.arithmetic
    name = rate_name(arithmetic.product, arithmetic.accumulate, arithmetic.precision)
    peak = known.rate(name)
    read, write = (si(rate, "B/s") for rate in (known.best_read, known.best_write))
    of_copy = " (a copy's)" if known.best_write > known.write else ""
    rates = f"read {read}, write {write}{of_copy}, "
    rates += f"{name} products {si(peak, 'FLOP/s')}" if peak else f"no rate known for {name} products"
    source = f"measured {known.date[:10]}" if known.source == "measured" else "from the datasheet, not measured"
    launch = duration(floor.launch) if floor.launch else "unknown"
    return [
        f"floor {duration(floor.seconds)}: {floor.binds} binds (compute {duration(floor.compute)}, "
        f"memory {duration(floor.memory)}, launch {launch})",
        f"ceilings of {known.device}, {source}:",
        rates,
    ]


def chosen(workspace_limit: int | None, choice: Choice | None, floor: Floor | None) -> list[str]:
    if choice is None:
        return ["the oracle in float64, complex128 or int64: nothing is chosen and no time is predicted"]
    best = choice.best
    predicted = f"predicted {duration(best.seconds)}{' (not tuned)' if choice.origin.source == 'model' else ''}"
    if floor is not None and floor.seconds > best.seconds:
        predicted += " (under the floor: the model or the ceilings are off on this machine)"
    elif floor is not None:
        predicted += f", of which the floor is {share(floor.efficiency(best.seconds))}"
    limit = f" (limit {si(workspace_limit, 'B')})" if workspace_limit is not None else ""
    predicted += f"; workspace_bytes = {best.schedule.workspace_bytes}{limit}"
    if choice.origin.source == "model":
        return [str(best.schedule), predicted]
    return [str(best.schedule), predicted, _measured(choice, floor)]


def _measured(choice: Choice, floor: Floor | None) -> str:
    """What a tuning found of the chosen schedule, and when."""
    seconds, origin = choice.best.measured, choice.origin
    how = "tuned just now" if origin.source == "tuned" else f"stored by the tuning of {origin.date[:10]}"
    if seconds is None:
        return how
    part = f", of which the floor is {share(floor.efficiency(seconds))}" if floor is not None else ""
    return f"measured {duration(seconds)}{part}; {how}"


def candidates(choice: Choice | None) -> list[str]:
    if choice is None:
        return []
    shown = choice.ranked[:CANDIDATES_SHOWN]
    times = [duration(candidate.seconds) for candidate in shown]
    if any(candidate.measured is not None for candidate in shown):
        found = [duration(each.measured) if each.measured is not None else "unknown" for each in shown]
        times = [f"{time} predicted, {measured} measured" for time, measured in zip(times, found, strict=True)]
    width = max(map(len, times))
    lines = [f"{time:>{width}}  {candidate.schedule}" for time, candidate in zip(times, shown, strict=True)]
    rest = len(choice.ranked) - len(shown)
    return [*lines, f"... and {rest} {'slower ones' if choice.origin.source == 'model' else 'more'}"] if rest else lines


def excluded(choice: Choice | None, workspace_limit: int | None) -> list[str]:
    if choice is None:
        return []
    sentences = list(choice.excluded)
    if workspace_limit is not None:
        sentences.insert(0, f"schedules that need more than {workspace_limit} bytes of workspace")
    rest = len(sentences) - EXCLUSIONS_SHOWN
    return [*sentences[:EXCLUSIONS_SHOWN], f"... and {rest} more"] if rest > 0 else sentences


def _layouts(contraction: Contraction) -> tuple[Layout | None, ...]:
    return (contraction.a, contraction.b, contraction.c, contraction.d)


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
