"""The sections of `explain` that are a contraction's own: what it computes, its modes, types, functions and cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.base.figures import duration, si
from weft.machine.ceilings import Ceilings, rate_name
from weft.machine.counts import contraction_work
from weft.machine.roofline import Floor, contraction_floor
from weft.planner.request import HOOKS, Request
from weft.planner.schedule import Schedule
from weft.plans.explain.lines import function_name, mode_table, source_of
from weft.spec import Contraction, Layout, Role
from weft.spec.dtypes import dtype_name
from weft.spec.notation import term_text

_ROLES = {Role.BATCH: "batch", Role.M: "m", Role.N: "n", Role.K: "k (summed)"}
_PLACES = ("on values of A as they are read", "on values of B as they are read", "on values of C as they are added",
           "on the sums before they are stored")  # fmt: skip


needed = contraction_work


def floor(contraction: Contraction, known: Ceilings) -> Floor:
    return contraction_floor(contraction, known, in_graph=True)


def tensors(contraction: Contraction) -> list[tuple[str, int, Layout]]:
    """Names, places among a mode's strides, and layouts."""
    layouts = (contraction.a, contraction.b, contraction.c, contraction.d)
    return [(name, at, layout) for at, (name, layout) in enumerate(zip("ABCD", layouts, strict=True)) if layout]


def operation(request: Request, contraction: Contraction) -> tuple[str, str]:
    a, b = request.notation.inputs
    return f"{term_text(a)},{term_text(b)}->{term_text(request.notation.output)}", _formula(request, contraction)


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


def modes(contraction: Contraction) -> list[str]:
    """One line for each canonical mode: extent, role, and its stride in each tensor ("." where it is absent)."""
    lines = mode_table(contraction.modes, tensors(contraction), [_ROLES[mode.role] for mode in contraction.modes])
    sizes = [("batch", contraction.batch)] if contraction.batch != 1 else []
    sizes += [("M", contraction.m), ("N", contraction.n), ("K", contraction.k)]
    return [*lines, "together " + ", ".join(f"{name} = {size}" for name, size in sizes)]


def types(contraction: Contraction) -> list[str]:
    arithmetic = contraction.arithmetic
    stored = ", ".join(f"{name} {dtype_name(layout.dtype)}" for name, _, layout in tensors(contraction))
    how = "3m" if arithmetic.three else "ieee_bound" if arithmetic.split else arithmetic.precision
    return [
        f"stored {stored}; products {dtype_name(arithmetic.product)} ({how}), "
        f"summed in {dtype_name(arithmetic.accumulate)}"
    ]


def fused(request: Request, contraction: Contraction) -> list[str]:
    """One line for each function, then one for each operand, coordinate and further result."""
    functions = (contraction.a_fn, contraction.b_fn, contraction.c_fn, contraction.epilogue)
    lines = []
    for name, function, raw, place in zip(HOOKS, functions, request.functions.raw, _PLACES, strict=True):
        if function is not None:
            cost = f", {function.flops} flops an element" if function.flops else ""
            lines.append(f"{name} = {function_name(raw)}, {place}, in {dtype_name(function.dtypes[0])}{cost}")
    return lines + _aux(contraction)


def _aux(contraction: Contraction) -> list[str]:
    lines = []
    for at, each in enumerate(contraction.aux):
        along = [mode.name for mode in contraction.modes if mode.strides.aux[at]]
        where = f"along {', '.join(along)}" if along else "the same everywhere"
        kind = "coordinate" if each.kind == "index" else "operand"
        text = f"{each.name}, a further result" if each.kind == "output" else f"{each.name}, {kind} {where}"
        lines.append(f"{text}, {dtype_name(each.dtype)}")
    return lines


def work(contraction: Contraction) -> list[str]:
    """Flops and compulsory bytes."""
    counted = contraction_work(contraction)
    reads = [("A", counted.read_a), ("B", counted.read_b), ("C", counted.read_c), ("operands", counted.read_aux)]
    read = " + ".join(f"{name} {si(size, 'B')}" for name, size in reads if size or name in "AB")
    further = f" and further results {si(counted.write_aux, 'B')}" if counted.write_aux else ""
    functions = f", and {si(counted.function_flops, 'FLOP')} in functions" if counted.function_flops else ""
    return [
        f"{si(counted.flops, 'FLOP')} of products and sums{functions}",
        f"{si(counted.traffic, 'B')} at least: read {read}, write D {si(counted.write_d, 'B')}{further}",
        f"operational intensity {si(counted.intensity, 'FLOP/B')}",
    ]


def tiles(contraction: Contraction, schedule: Schedule) -> dict[str, Any]:
    """Extents that a schedule's tiles cover, the share of its products that is useful, and the bytes that padding to
    whole tiles would add; empty where it has no tiles of M, N and K."""
    covered = getattr(schedule, "covered", None)
    if covered is None or not contraction.m * contraction.n * contraction.k:
        return {}
    m, n, k = covered(contraction)
    sizes = [layout.dtype.itemsize for layout in (contraction.a, contraction.b, contraction.d)]
    matrices = ((contraction.m, contraction.k, m, k), (contraction.k, contraction.n, k, n),
                (contraction.m, contraction.n, m, n))  # fmt: skip
    padding = sum(size * (up * along - rows * columns)
                  for size, (rows, columns, up, along) in zip(sizes, matrices, strict=True))  # fmt: skip
    useful = contraction.m * contraction.n * contraction.k / (m * n * k)
    return {"covered": (m, n, k), "useful": useful, "padding": contraction.batch * padding}


def roof(contraction: Contraction, known: Ceilings, floor: Floor) -> list[str]:
    arithmetic = contraction.arithmetic
    name = rate_name(arithmetic.product, arithmetic.accumulate, arithmetic.fastest)
    peak = known.rate(name)
    read, write = (si(rate, "B/s") for rate in (known.best_read, known.best_write))
    of_copy = " (a copy's)" if known.best_write > known.write else ""
    rates = f"read {read}, write {write}{of_copy}, "
    rates += f"{name} products {si(peak, 'FLOP/s')}" if peak else f"no rate known for {name} products"
    launch = duration(floor.launch) if floor.launch else "unknown"
    return [
        f"floor {duration(floor.seconds)}: {floor.binds} binds (compute {duration(floor.compute)}, "
        f"memory {duration(floor.memory)}, launch {launch})",
        f"ceilings of {known.device}, {source_of(known)}:",
        rates,
    ]
