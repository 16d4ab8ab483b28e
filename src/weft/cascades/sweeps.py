"""A stage on one row of a block after another: sweeps along the columns, and what a row is reduced to between them.

    sweep      x[j] = where(j <= i, s[j], -inf)      kept for the row
    between    m = max x
    sweep      w[j] = exp(x[j] - m)                  in place of s[j], where it meets C
    between    l = sum w

Columns are the labels that all reductions of the stage reduce. A value is `wide` where it moves along them; others are
one number for each row.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from torch import fx

from weft.cascades.frame import CascadeFrame
from weft.cascades.lowering import PEAK
from weft.cascades.program import CascadeProgram, CascadeTarget, Stage
from weft.fn.reductions import is_reduction
from weft.spec import Label

KINDS = (PEAK, "sum", "amax", "amin", "argmax", "argmin")


class NotInRows(Exception):
    """A stage that does not run by rows; the text says what stands against it."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """Numbers of the row that are made first, then the wide values that are stored, then what is reduced."""

    numbers: tuple[fx.Node, ...]
    stored: tuple[fx.Node, ...]
    reductions: tuple[CascadeTarget, ...]


@dataclass(frozen=True, slots=True)
class Sweeps:
    """All sweeps of a stage; `given` are the nodes that a row is given, `inside` reductions that are a row's own."""

    columns: tuple[Label, ...]
    sweeps: tuple[Sweep, ...]
    given: tuple[fx.Node, ...]
    inside: frozenset[fx.Node]
    product: CascadeTarget | None
    stores: tuple[CascadeTarget, ...]


def sweeps_of(program: CascadeProgram, stage: Stage, frame: CascadeFrame, in_memory: bool) -> Sweeps:
    """The sweeps of a stage, where S is `in_memory` or made element by element. Raises `NotInRows`."""
    between = program.between
    s, given = between.inputs[0], frozenset((*between.inputs[1:], *stage.known))
    inside = [node for node in dict.fromkeys((*stage.first, *stage.nodes)) if is_reduction(node)]
    found = [CascadeTarget(node.all_input_nodes[0], PEAK, node) for node in stage.peaks]
    found += [CascadeTarget(node.all_input_nodes[0], str(node.args[1]), node) for node in inside]
    found += [each for each in stage.targets if each.kind not in ("product", "store")]
    for each in found:
        if each.kind not in KINDS:
            raise NotInRows(f"rows have no '{each.kind}'")
    columns = _columns(program, frame, found)
    rows = frozenset(frame.order) - set(columns)
    wide = {node for node, modes in between.modes.items() if modes & set(columns)}
    for each in found:
        if each.node not in wide or between.modes[each.gives] != rows:
            raise NotInRows("a reduction is not of all of the rows and columns")
    product = next((each for each in stage.targets if each.kind == "product"), None)
    stores = tuple(each for each in stage.targets if each.kind == "store")
    for store in stores:
        if between.modes[store.node] != (frozenset(frame.order) if store.node in wide else rows):
            raise NotInRows("a stored value lacks a mode of S")
    if product is not None and (product.node not in wide or product.node.meta["dtype"] != s.meta["dtype"]):
        raise NotInRows("what meets C has no columns, or another type than sums")
    made = {each.gives for each in found}
    ends = [each.node for each in (*stores, *([product] if product else []))]
    wanted = [each.node for each in found] + ends
    level = _levels(program, wanted, given, made)
    count = max(level.values(), default=0) + 1
    sources = dict.fromkeys(each.node for each in found if not (in_memory and each.node is s))
    results = dict.fromkeys(node for node in ends if node in wide)
    sweeps = []
    for at in range(count):
        stored = tuple(node for node in {**sources, **results} if level[node] == at)
        numbers = tuple(
            node for node in between.calls
            if level.get(node) == at and node not in wide and node not in made and node not in given
        )  # fmt: skip
        sweeps.append(Sweep(numbers, stored, tuple(each for each in found if level[each.node] == at)))
    if in_memory and product is not None and product.node is s and not found and not stores:
        raise NotInRows("there is nothing but products")
    ordered = tuple(each for each in between.graph.nodes if each in given)
    return Sweeps(columns, tuple(sweeps), ordered, frozenset(inside), product, stores)


def _columns(program: CascadeProgram, frame: CascadeFrame, found: Collection[CascadeTarget]) -> tuple[Label, ...]:
    """The labels that every reduction reduces, which are the last of S; the last one where nothing is reduced."""
    if not frame.order:
        raise NotInRows("S is a number")
    if not found:
        return frame.order[-1:]
    groups = {frozenset(program.between.reduced(each.gives)) for each in found}
    (columns, *others) = groups
    if others or set(frame.order[-len(columns) :]) != columns:
        raise NotInRows("reductions are not over the same modes, the last ones of S")
    return frame.order[-len(columns) :]


def _levels(
    program: CascadeProgram, wanted: list[fx.Node], given: frozenset[fx.Node], made: Collection[fx.Node]
) -> dict[fx.Node, int]:
    """The sweep in which each value that enters the wanted ones is known."""
    between = program.between
    needed = between.ancestors(wanted, given)
    level = dict.fromkeys((*between.inputs, *given), 0)
    for node in between.calls:
        if node in needed and node not in level:
            level[node] = max((level[each] for each in node.all_input_nodes), default=0) + (node in made)
    return level
