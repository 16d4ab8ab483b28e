"""Passes over the blocks of S, and what each computes.

    one pass    reductions are accumulated from block to block, and no element of S needs their results
    running     some do, but in a way that sums can be rescaled by: one pass, too (`weft.cascades.lowering`)
    whole       one pass; a block has all of the modes that are reduced, and reductions are made within it
    passes      S is made again, once for each level of reductions

A `Stage` is a pass. Its targets are values of the graph that blocks store, accumulate, or multiply with C. The values
of a `tail` follow from those alone: they are as small as the reductions, and exist whole between two passes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx

from weft.cascades.between import Between
from weft.cascades.frame import CascadeFrame
from weft.cascades.lowering import PEAK, NotRunning, lowered, running
from weft.fn.reductions import is_reduction
from weft.spec import Label

Values = dict[fx.Node, Tensor]
Tensors = tuple[Tensor, Tensor, Any]  # A, B and C, None where there is no C

#: What D stands under among values: the value that meets C may be a result itself. D is without the factor then.
PRODUCT = fx.Graph().placeholder("product")

#: D where a kernel has multiplied it with its factor and rounded it.
FINISHED = fx.Graph().placeholder("finished")

_LEAST_ROWS = 16  # of a block that has all of the reduced modes


@dataclass(frozen=True, slots=True, eq=False)
class CascadeTarget:
    """A value that blocks make: a "product" with C, something to "store", or a kind of reduction of `node`.

    `gives` is the node that has the value then: the reduction itself, or `node` where it is stored. A sum with a
    `scale` is one over that peak, which grows from block to block.
    """

    node: fx.Node
    kind: str
    gives: fx.Node
    scale: fx.Node | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """One pass over the blocks: `nodes` to run in each, from S, operands and `known` values; `tail` to run after it.

    `peaks` are reductions that are known as far as the blocks go; `first` are the nodes that they need.
    """

    targets: tuple[CascadeTarget, ...]
    peaks: tuple[fx.Node, ...]
    first: tuple[fx.Node, ...]
    nodes: tuple[fx.Node, ...]
    known: tuple[fx.Node, ...]
    tail: tuple[fx.Node, ...]

    @property
    def selects(self) -> bool:
        """Whether gradients go to elements that equal the largest or the smallest."""
        return any(target.kind in ("amax", "amin") for target in self.targets)


@dataclass(frozen=True, slots=True, eq=False)
class CascadeProgram:
    """A `prelude` of small values, and stages in order; `known` are the labels of coordinates.

    `product` is the node that meets C, and D their product times `factor`, where there is one. `whole` are the labels
    that a block has all indices of; `why` says why the form is what it is.
    """

    between: Between
    frame: CascadeFrame
    known: Mapping[fx.Node, Label]
    product: fx.Node | None
    factor: fx.Node | None
    form: str
    prelude: tuple[fx.Node, ...]
    stages: tuple[Stage, ...]
    whole: frozenset[Label]
    why: str


def program_of(between: Between, frame: CascadeFrame, limit: int) -> CascadeProgram:
    """The program of a function, with blocks of at most `limit` elements of S."""
    extents, inner = frame.extents, _inner(between, between.outputs[0] if frame.meets else None)
    if not inner:
        return _staged(lowered(between, extents), frame, "one pass", "no element of S needs what is reduced")
    results = between.outputs[frame.meets :]
    again = between.ancestors([node for node in results if node in between.elementwise], frozenset())
    try:
        if frame.algebra is not None:
            raise NotRunning(f"sums in the algebra {frame.algebra.name} are not rescaled")
        summed = {*frame.columns, *(label for node in inner for label in between.reduced(node))}
        if any(extents[label] == 0 for label in summed):  # a sum of nothing is 0, whatever it is multiplied with
            raise NotRunning("there is nothing to sum")
        if again & inner:
            raise NotRunning("a result that has all modes of S needs what is reduced")
        found, factor = running(between, frame)
        return _staged(found, frame, "running", "sums over a peak are rescaled where it grows", factor=factor)
    except NotRunning as error:
        against = str(error)
    whole = frozenset(label for node in inner for label in between.reduced(node))
    size = math.prod(extents[label] for label in whole)
    rows = math.prod(extents[label] for label in between.notation.s if label not in whole)
    modes = ", ".join(sorted(map(str, whole)))
    if size * min(_LEAST_ROWS, max(rows, 1)) <= limit:
        why = f"a block has all indices of {modes}; no running form: {against}"
        inside = frozenset() if frame.device.type == "cpu" else whole  # whose own reductions are sums and peaks, too
        return _staged(lowered(between, extents, inside), frame, "whole", why, whole)
    why = f"no running form: {against}; blocks with all {size} indices of {modes} are too large"
    return _staged(lowered(between, extents), frame, "passes", why)


def _inner(between: Between, product: fx.Node | None) -> frozenset[fx.Node]:
    """The reductions of elements that elements need again."""
    large = [node for node in (product, *between.outputs) if node is not None and node in between.elementwise]
    every = between.ancestors([*between.outputs], frozenset())
    large += [node.all_input_nodes[0] for node in every if between.large(node)]
    if product is not None:
        large.append(product)
    found = between.ancestors(large, frozenset())
    return frozenset(node for node in found if between.large(node))


def _staged(
    between: Between, frame: CascadeFrame, form: str, why: str, whole: frozenset[Label] = frozenset(),
    factor: fx.Node | None = None,
) -> CascadeProgram:  # fmt: skip
    product, results = between.outputs[0] if frame.meets else None, between.outputs[frame.meets :]
    if factor is not None:
        results = (*results, factor)
    inside = frozenset(
        node for node in between.reductions if between.large(node) and set(between.reduced(node)) <= whole
    )
    order = _StepOrder(between, inside, results, product)
    prelude, stages = order.tail(-1, results), []
    for level in range(order.last + 1):
        known = tuple(node for node in between.calls if node in order.small and order.level[node] <= level)
        peaks = tuple(node for node in known if node in order.peaks and order.level[node] == level)
        known = tuple(node for node in known if node not in peaks)
        given = frozenset((*known, *peaks))
        targets = [_scaled(between, each, given, peaks) for each in order.targets if order.level[each.node] == level]
        first = _sorted(between, between.ancestors([node.all_input_nodes[0] for node in peaks], given), given)
        nodes = _sorted(between, between.ancestors([target.node for target in targets], given), given)
        tail = order.tail(level, results if level == order.last else ())
        stages.append(Stage(tuple(targets), peaks, first, nodes, known, tail))
    pairs = zip(between.names, between.inputs[1:], strict=True)
    indices = {node: frame.indices[name] for name, node in pairs if name in frame.indices}
    return CascadeProgram(between, frame, indices, product, factor, form, prelude, tuple(stages), whole, why)


def _scaled(
    between: Between, target: CascadeTarget, given: frozenset[fx.Node], peaks: Collection[fx.Node]
) -> CascadeTarget:
    """A target with the peak that its sum is over."""
    behind = between.ancestors([target.node], given)
    scale = next((peak for peak in peaks if peak in behind), None)
    return CascadeTarget(target.node, target.kind, target.gives, scale)


class _StepOrder:
    """The level of each value: the number of passes that come before it is known.

    `small` are values that follow from reductions over whole tensors and exist whole; `local` are small ones that
    follow from reductions within a block, and are known in that block alone until they are stored.
    """

    def __init__(
        self, between: Between, inside: frozenset[fx.Node], results: Collection[fx.Node], product: fx.Node | None
    ) -> None:
        self.between, self.inside = between, inside
        self.level: dict[fx.Node, int] = dict.fromkeys(between.inputs, 0)
        self.small: set[fx.Node] = set()
        self.local: set[fx.Node] = set()
        self.peaks: set[fx.Node] = set()
        self.needed = between.ancestors([*results, *([] if product is None else [product])], frozenset())
        for node in between.calls:
            self._place(node)
        reduced = [node for node in between.reductions if between.large(node) and node in self.needed]
        stored = [node for node in results if node in between.elementwise or node in self.local]
        for node in between.calls:  # that a tail begins with
            if node in self.small and node in self.needed:
                stored += [source for source in node.all_input_nodes if source in self.local]
        #: The values that passes make from their blocks.
        self.targets = [
            CascadeTarget(node.all_input_nodes[0], str(node.args[1]), node)
            for node in reduced
            if node not in self.inside and node not in self.peaks
        ]
        self.targets += [CascadeTarget(node, "store", node) for node in dict.fromkeys(stored)]
        self.targets += [] if product is None else [CascadeTarget(product, "product", product)]
        #: The last pass that anything is needed of.
        self.last = max((self.level[each.node] for each in self.targets), default=0)

    def _place(self, node: fx.Node) -> None:
        sources = node.all_input_nodes
        level = max([self.level[each] for each in sources], default=0)
        large = node in self.between.elementwise
        local = any(each in self.local for each in sources)
        if is_reduction(node):
            (self.local if node in self.inside else self.small).add(node)
            if node in self.small and node.args[1] == PEAK and self.between.large(node):
                self.peaks.add(node)
            elif node in self.small:
                level += self.between.large(node) or local
        elif not large:
            if local:
                self.local.add(node)
            elif any(each in self.small for each in sources):
                self.small.add(node)
                level = max(level, *(self.level[each] + (each in self.peaks) for each in sources))
        self.level[node] = level

    def tail(self, level: int, outputs: Collection[fx.Node]) -> tuple[fx.Node, ...]:
        """Small values that are known after a pass and not before; with the last one whatever is returned besides."""
        made = {each.gives for each in self.targets if each.kind != "product" and self.level[each.node] <= level}
        wanted = [
            node
            for node in self.small
            if self.level[node] == level + 1 and node in self.needed and node not in self.peaks
        ]
        wanted += [
            node
            for node in outputs
            if level >= 0 and node not in self.between.elementwise and node not in self.local and node not in self.small
        ]
        known = frozenset(made | {node for node in self.small if self.level[node] <= level} | self.local)
        wanted = [node for node in wanted if node not in made]
        return _sorted(self.between, self.between.ancestors(wanted, known), known)


def _sorted(between: Between, nodes: Collection[fx.Node], known: Collection[fx.Node]) -> tuple[fx.Node, ...]:
    return tuple(node for node in between.calls if node in nodes and node not in known)
