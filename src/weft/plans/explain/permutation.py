"""The sections of `explain` that are a permutation's own: what moves where, its modes, types, function and cost."""

from __future__ import annotations

from dataclasses import replace

from weft.base.figures import duration, si
from weft.machine.ceilings import Ceilings
from weft.machine.counts import Work, permutation_work
from weft.machine.roofline import Floor, work_floor
from weft.planner.request import Request
from weft.plans.explain.lines import function_name, mode_table, source_of
from weft.spec import Layout
from weft.spec.dtypes import dtype_name
from weft.spec.notation import term_text
from weft.spec.permutation import Permutation

HOOKS = ("fn",)
_KINDS = {
    "copy": "a copy: no mode passes another",
    "transpose": "a transposition of matrices: the two innermost modes change places",
    "general": "a permutation of {} modes",
}


def floor(permutation: Permutation, known: Ceilings) -> Floor:
    return work_floor(needed(permutation), known, in_graph=True)


def tensors(permutation: Permutation) -> list[tuple[str, int, Layout]]:
    """Names, places among a mode's strides, and layouts."""
    return [("X", 0, permutation.x), ("D", 3, permutation.d)]


def operation(request: Request, permutation: Permutation) -> tuple[str, str]:
    (term,), output = request.moved.inputs, request.moved.output
    value = f"conj(X[{term_text(term)}])" if permutation.conjugate else f"X[{term_text(term)}]"
    value = f"fn({value})" if permutation.fn is not None else value
    value = f"alpha * {value}" if permutation.scaled else value
    total = f"{value} + beta * D[{term_text(output)}]" if permutation.c is not None else value
    return f"{term_text(term)}->{term_text(output)}", f"D[{term_text(output)}] = {total}"


def modes(permutation: Permutation) -> list[str]:
    """One line for each canonical mode: extent and strides ("." where X repeats itself)."""
    lines = mode_table(permutation.modes, tensors(permutation)) if permutation.modes else []
    return [*lines, f"together {_KINDS[permutation.kind].format(len(permutation.modes))}"]


def types(permutation: Permutation) -> list[str]:
    text = f"X {dtype_name(permutation.x.dtype)}, D {dtype_name(permutation.d.dtype)}"
    if permutation.is_move:
        return [f"{text}; bits are moved as they are"]
    return [f"{text}; scaled in {dtype_name(permutation.scale)}" if permutation.scaled else text]


def fused(request: Request, permutation: Permutation) -> list[str]:
    fn = request.functions.a
    if fn is None:
        return []
    flops = f", {fn.flops} flops an element" if fn.flops else ""
    return [f"fn = {function_name(request.functions.raw[0])}, in {dtype_name(request.a.dtype)}{flops}"]


def work(permutation: Permutation) -> list[str]:
    counted = needed(permutation)
    read = f"read X {si(counted.read_a, 'B')}" + (f" + D {si(counted.read_c, 'B')}" if counted.read_c else "")
    return [f"{si(counted.traffic, 'B')} at least: {read}, write D {si(counted.write_d, 'B')}"]


def roof(permutation: Permutation, known: Ceilings, floor: Floor) -> list[str]:
    rates = f"read {si(known.best_read, 'B/s')}, write {si(known.best_write, 'B/s')}"
    return [
        f"floor {duration(floor.seconds)}: {floor.binds} binds",
        f"ceilings of {known.device}, {source_of(known)}: {rates}",
    ]


def needed(permutation: Permutation) -> Work:
    """Compulsory bytes of a permutation: each element that it needs read once, each of D written once.

    Unlike the layouts of whole tensors this leaves out what a diagonal passes by, and counts D once more where it is
    added to.
    """
    own = [mode for mode in permutation.modes if mode.strides.a]
    x = Layout(tuple(mode.extent for mode in own), tuple(mode.strides.a for mode in own), permutation.x.dtype)
    work = permutation_work(x, permutation.d, permutation.fn)
    return replace(work, read_c=work.write_d) if permutation.c is not None else work
