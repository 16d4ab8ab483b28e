"""What a permutation's plan does and why, in plain text, in the same parts as a contraction's."""

from __future__ import annotations

from dataclasses import replace

from weft.base.figures import duration, si
from weft.machine.ceilings import Ceilings
from weft.machine.counts import Work, permutation_work
from weft.machine.floor import work_floor
from weft.machine.roofline import Floor
from weft.planner.planner import Choice
from weft.planner.request import PermuteRequest
from weft.plans.explain import (
    MODES_SHOWN,
    aligned,
    candidates,
    chosen,
    excluded,
    function_name,
    known_ceilings,
    section,
)
from weft.spec import Layout, Mode
from weft.spec.dtypes import dtype_name
from weft.spec.notation import term_text
from weft.spec.permutation import Permutation

_KINDS = {
    "copy": "a copy: no mode passes another",
    "transpose": "a transposition of matrices: the two innermost modes change places",
    "general": "a permutation of {} modes",
}


def explain_permute(request: PermuteRequest, permutation: Permutation, choice: Choice | None) -> str:
    """The text of `PermutePlan.explain`. Nothing is measured here, as in `weft.plans.explain`."""
    work = described_work(permutation)
    known, unknown = known_ceilings(request.target)
    floor = work_floor(work, known, in_graph=True) if known is not None else None
    parts = (
        _operation(request, permutation),
        section("modes", _modes(permutation)),
        section("types", _types(permutation)),
        section("fused", _fused(request)),
        section("work", _work(work)),
        section("roof", _roof(known, floor) if known is not None and floor is not None else [unknown]),
        section("plan", chosen(request.workspace_limit, choice, floor)),
        section("candidates", candidates(choice)),
        section("excluded", excluded(choice, request.workspace_limit)),
    )
    return "\n".join(line for part in parts for line in part)


def described_work(permutation: Permutation) -> Work:
    """Compulsory bytes of a permutation: each element that it needs read once, each of D written once.

    Unlike the layouts of whole tensors this leaves out what a diagonal passes by, and counts D once more where it is
    added to.
    """
    own = [mode for mode in permutation.modes if mode.strides.a]
    x = Layout(tuple(mode.extent for mode in own), tuple(mode.strides.a for mode in own), permutation.x.dtype)
    work = permutation_work(x, permutation.d, permutation.fn)
    return replace(work, read_c=work.write_d) if permutation.c is not None else work


def _operation(request: PermuteRequest, permutation: Permutation) -> list[str]:
    (term,), output = request.notation.inputs, request.notation.output
    where = request.target.name if request.backend != "reference" else str(request.device)
    value = f"conj(X[{term_text(term)}])" if permutation.conjugate else f"X[{term_text(term)}]"
    value = f"fn({value})" if permutation.fn is not None else value
    value = f"alpha * {value}" if permutation.scaled else value
    total = f"{value} + beta * D[{term_text(output)}]" if permutation.c is not None else value
    return [
        f"{term_text(term)}->{term_text(output)}  by the {request.backend} backend on {where}",
        f"  D[{term_text(output)}] = {total}",
    ]


def _modes(permutation: Permutation) -> list[str]:
    """One line for each canonical mode: extent and strides ("." where X repeats itself)."""
    shown = permutation.modes[:MODES_SHOWN]
    rows = [("", "extent", "X stride", "D stride"), *(_mode_row(mode) for mode in shown)]
    more = len(permutation.modes) - len(shown)
    lines = aligned(rows, left=(0,)) if shown else []
    lines += [f"... and {more} more"] if more else []
    return [*lines, f"together {_KINDS[permutation.kind].format(len(permutation.modes))}"]


def _mode_row(mode: Mode) -> tuple[str, ...]:
    return (
        mode.name,
        str(mode.extent),
        *(str(stride) if stride else "." for stride in (mode.strides.a, mode.strides.d)),
    )


def _types(permutation: Permutation) -> list[str]:
    text = f"X {dtype_name(permutation.x.dtype)}, D {dtype_name(permutation.d.dtype)}"
    if permutation.is_move:
        return [f"{text}; bits are moved as they are"]
    return [f"{text}; scaled in {dtype_name(permutation.scale)}" if permutation.scaled else text]


def _fused(request: PermuteRequest) -> list[str]:
    if request.fn is None:
        return []
    flops = f", {request.fn.flops} flops an element" if request.fn.flops else ""
    return [f"fn = {function_name(request.raw)}, in {dtype_name(request.x.dtype)}{flops}"]


def _work(work: Work) -> list[str]:
    added = f" + D {si(work.read_c, 'B')}" if work.read_c else ""
    return [f"{si(work.traffic, 'B')} at least: read X {si(work.read_a, 'B')}{added}, write D {si(work.write_d, 'B')}"]


def _roof(known: Ceilings, floor: Floor) -> list[str]:
    source = f"measured {known.date[:10]}" if known.source == "measured" else "from the datasheet, not measured"
    return [
        f"floor {duration(floor.seconds)}: {floor.binds} binds",
        f"ceilings of {known.device}, {source}: read {si(known.best_read, 'B/s')}, write {si(known.best_write, 'B/s')}",
    ]
