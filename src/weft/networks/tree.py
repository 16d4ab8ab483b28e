"""A contraction tree: which two tensors meet in each step, what each intermediate holds, in which order steps run; and
what a step costs by weft's count: a launch, and whichever takes longer of its products and its bytes.

Nodes are numbered as in static single assignment: the operands first, then every step's result in turn. Paths and
slices are ranked by that cost long before a step is planned. Rates are those of the cost models (`data/costs`): of
cuBLAS and of memory on a GPU, of torch's library on the CPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from operator import attrgetter
from typing import Any

import torch

from weft.base.figures import counted, dtype_name
from weft.cpu.host import costs as cpu_costs
from weft.errors import NotationError
from weft.networks.graph import Graph, dims_of
from weft.planner.coefficients import fitted
from weft.planner.schedule import Target
from weft.planner.split_schemes import BF16X6, RATES, refusal
from weft.spec.dtypes import PRECISIONS, read_mode

Labels = frozenset[int]


@dataclass(frozen=True, slots=True)
class TreeStep:
    """One contraction of two nodes."""

    node: int  # of the result
    left: int
    right: int


@dataclass(frozen=True)
class Tree:
    """A graph with a path through it. `sliced` labels have one index at a time and stand in no node.

    Where a slice has several indices of a label, the graph has that label cut in two, and one of the two is sliced.
    """

    graph: Graph
    steps: tuple[TreeStep, ...]  # in the order in which they run
    sliced: tuple[int, ...] = ()
    nodes: dict[int, Labels] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, graph: Graph, pairs: Sequence[tuple[int, int]], sliced: Iterable[int] = ()) -> Tree:
        """The tree of a path in static single assignment, its steps in an order that needs little memory."""
        sliced = tuple(sliced)
        count = len(graph.operands)
        steps = [TreeStep(count + at, left, right) for at, (left, right) in enumerate(pairs)]
        nodes = _node_labels(graph, steps, frozenset(sliced))
        return cls(graph, tuple(_postorder(graph, steps, nodes)), sliced, nodes)

    def with_slices(self, sliced: Iterable[int]) -> Tree:
        """A tree of this path with other labels sliced."""
        return Tree.of(self.graph, self.pairs, sliced)

    def in_stretches(self, label: int, length: int) -> Tree:
        """A tree with `length` indices of a sliced label in each slice; `length` divides its extent."""
        graph = self.graph.cut(label, length)
        outer = len(graph.extents) - 1
        return Tree.of(graph, self.pairs, [outer if each == label else each for each in self.sliced])

    def whole(self) -> Tree:
        """The tree without slices, its labels whole."""
        return Tree.of(self.graph.together(), self.pairs) if self.sliced else self

    @property
    def sliced_labels(self) -> tuple[int, ...]:
        """The sliced labels, by their numbers in the whole network."""
        inner = {cut.outer: cut.inner for cut in self.graph.cuts}
        return tuple(inner.get(label, label) for label in self.sliced)

    @property
    def stretches(self) -> tuple[int, ...]:
        """How many indices of each sliced label a slice has."""
        length = {cut.outer: cut.length for cut in self.graph.cuts}
        return tuple(length.get(label, 1) for label in self.sliced)

    @cached_property
    def leaves(self) -> int:
        return len(self.graph.operands)

    @cached_property
    def root(self) -> int:
        return self.leaves + len(self.steps) - 1 if self.steps else 0

    @cached_property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """The path in static single assignment."""
        return tuple([(step.left, step.right) for step in sorted(self.steps, key=attrgetter("node"))])

    @property
    def path(self) -> tuple[tuple[int, int], ...]:
        """The path as `opt_einsum` has it: places in a list from which operands go and to whose end results come."""
        from opt_einsum.paths import ssa_to_linear

        return tuple([(first, second) for first, second in ssa_to_linear(self.pairs)])

    @cached_property
    def slices(self) -> int:
        """How many there are."""
        return math.prod([self.graph.extents[label] for label in self.sliced])

    @property
    def summed(self) -> int:
        """How many slices in a row add to one part of the result, which has one for each index of its sliced labels."""
        return math.prod([self.graph.extents[label] for label in self.sliced if label not in self.graph.output])

    @cached_property
    def once(self) -> frozenset[int]:
        """Nodes that no sliced label is under, which are the same in every slice; none where nothing is sliced."""
        if not self.sliced:
            return frozenset()
        found = {leaf for leaf, term in enumerate(self.graph.terms) if not frozenset(self.sliced) & frozenset(term)}
        for step in sorted(self.steps, key=attrgetter("node")):
            if step.left in found and step.right in found:
                found.add(step.node)
        return frozenset(found)

    @property
    def ordered(self) -> list[TreeStep]:
        """Steps as they run: first those of no slice."""
        return sorted(self.steps, key=lambda step: step.node not in self.once)

    def size(self, node: int) -> int:
        """Elements of a node."""
        return self.graph.size(self.nodes[node])

    def macs(self, step: TreeStep) -> int:
        """Multiply-adds of a step of one slice."""
        return self.graph.size(self.nodes[step.left] | self.nodes[step.right])

    def reduced(self, step: TreeStep) -> Labels:
        """Labels that the step sums over."""
        return (self.nodes[step.left] | self.nodes[step.right]) - self.nodes[step.node]

    def consumers(self) -> dict[int, TreeStep]:
        """The step that takes each node."""
        return {child: step for step in self.steps for child in (step.left, step.right)}

    def below(self) -> dict[int, frozenset[int]]:
        """The operands that each node is made of."""
        found = {leaf: frozenset((leaf,)) for leaf in range(self.leaves)}
        for step in sorted(self.steps, key=lambda step: step.node):
            found[step.node] = found[step.left] | found[step.right]
        return found


@dataclass(frozen=True)
class Folded:
    """A tree after folding: `given` operands of the caller come first, then `made` nodes of the whole tree."""

    tree: Tree
    given: tuple[int, ...]  # operands of the whole tree that a call brings
    made: tuple[int, ...]  # its nodes that are made of constants alone, or constants as they are
    steps: tuple[TreeStep, ...]  # of the whole tree: what makes them, in order
    nodes: Mapping[int, int]  # of the whole tree, to ours

    @classmethod
    def of(cls, whole: Tree, constants: Collection[int], orders: Mapping[int, tuple[int, ...]]) -> Folded:
        """The tree without what is made of constants alone, whose layouts are `orders`: those of the whole tree."""
        if not constants:
            return cls(whole, tuple(range(whole.leaves)), (), (), {node: node for node in whole.nodes})
        below = whole.below()
        fixed = {node for node, leaves in below.items() if leaves <= set(constants)}
        if whole.steps and whole.root in fixed:
            fixed.discard(whole.root)  # the last step stays: every call has a result of its own
        made = [
            child for step in sorted(whole.steps, key=lambda step: step.node) if step.node not in fixed
            for child in (step.left, step.right) if child in fixed
        ] if whole.steps else sorted(fixed)  # fmt: skip
        given = [leaf for leaf in range(whole.leaves) if leaf not in constants]
        nodes = {node: at for at, node in enumerate([*given, *made])}
        pairs = []
        for step in sorted(whole.steps, key=lambda step: step.node):
            if step.node not in fixed:
                pairs.append((nodes[step.left], nodes[step.right]))
                nodes[step.node] = len(given) + len(made) + len(pairs) - 1
        graph = whole.graph
        operands = [graph.operands[leaf] for leaf in given]
        operands += [
            dims_of(orders[node], graph.extents) if node >= whole.leaves else graph.operands[node] for node in made
        ]
        tree = Tree.of(replace(graph, operands=tuple(operands)), pairs)
        return cls(tree, tuple(given), tuple(made), tuple(step for step in whole.steps if step.node in fixed), nodes)

    def ours(self, of_whole: Mapping[int, Any]) -> dict[int, Any]:
        """Facts about the whole tree's nodes, restricted to the nodes that are left."""
        return {ours: of_whole[node] for node, ours in self.nodes.items() if node in of_whole}


def pairs_of_path(path: Sequence[Sequence[int]], operands: int, *, ssa: bool = False) -> tuple[tuple[int, int], ...]:
    """A path of any form as pairs in static single assignment.

    `path` has places in a shrinking list, as `opt_einsum` writes it, or node numbers with `ssa`. An entry of more than
    two is taken from left to right, one alone is left out, and what remains at the end is multiplied. `NotationError`
    names an entry that does not fit.
    """
    left = list(range(operands))
    found: list[tuple[int, int]] = []
    for entry in path:
        taken = _taken(tuple(entry), left, ssa)
        left = [node for node in left if node not in taken]
        left.append(_merged(taken, operands, found))
    if len(left) > 1:
        _merged(left, operands, found)
    return tuple(found)


def _taken(entry: tuple[int, ...], left: Sequence[int], ssa: bool) -> list[int]:
    """The nodes that an entry of a path names."""
    if len(set(entry)) != len(entry) or not entry or not all(isinstance(place, int) for place in entry):
        raise NotationError(f"path entry {entry} is no list of different numbers")
    if ssa:
        if missing := [node for node in entry if node not in left]:
            raise NotationError(f"path entry {entry} names node {missing[0]}, which is not there (any more)")
        return list(entry)
    if not all(-len(left) <= place < len(left) for place in entry):
        raise NotationError(f"path entry {entry} reaches past the {counted(len(left), 'tensor')} left")
    return [left[place] for place in entry]


def _merged(taken: Sequence[int], operands: int, found: list[tuple[int, int]]) -> int:
    node = taken[0]
    for other in taken[1:]:
        found.append((node, other))
        node = operands + len(found) - 1
    return node


def _node_labels(graph: Graph, steps: Sequence[TreeStep], sliced: Labels) -> dict[int, Labels]:
    """The labels of each node: those that somebody outside of it still has; all of them till the last step, where
    nothing may be reduced early."""
    uses = [0] * len(graph.extents)
    nodes = {leaf: frozenset(term) - sliced for leaf, term in enumerate(graph.terms)}
    for labels in (*nodes.values(), graph.output):
        for label in labels:
            uses[label] += 1
    for step in steps:
        left, right = nodes[step.left], nodes[step.right]
        for labels in (left, right):
            for label in labels:
                uses[label] -= 1
        late = graph.early.never and step is not steps[-1]
        kept = frozenset([label for label in left | right if late or uses[label] > 0])
        for label in kept:
            uses[label] += 1
        nodes[step.node] = kept
    return nodes


def _postorder(graph: Graph, steps: Sequence[TreeStep], nodes: dict[int, Labels]) -> list[TreeStep]:
    """Steps in depth first order; of two subtrees first the one that needs more beyond what it leaves behind.

    (R. Sethi, J. D. Ullman, "The Generation of Optimal Code for Arithmetic Expressions", J. ACM 17(4), 1970, with
    sizes in the place of registers.)
    """
    by_node = {step.node: step for step in steps}
    peak: dict[int, int] = {}
    size = {node: graph.size(labels) if node in by_node else 0 for node, labels in nodes.items()}
    first: dict[int, tuple[int, int]] = {}
    for step in steps:
        pair = sorted((step.left, step.right), key=lambda node: size[node] - peak.get(node, 0))
        one, two = pair
        first[step.node] = (one, two)
        peak[step.node] = max(peak.get(one, 0), size[one] + peak.get(two, 0), size[one] + size[two] + size[step.node])
    backwards: list[TreeStep] = []
    stack = [steps[-1].node] if steps else []
    while stack:
        node = stack.pop()
        if node in by_node:
            backwards.append(by_node[node])
            stack += first[node]
    return backwards[::-1]


_TILE = 64  # extent of a matrix product below which its rate falls in proportion
_GRAPH_LAUNCH = 2.0e-6  # seconds between two small kernels of a CUDA graph (H200, measured)
_CPU_TILE, _GPU_TILE = 16, 128
_MEMORY_SHARE = 0.85  # of the memory's rate, what a step that is bound by it gets


@dataclass(frozen=True, slots=True)
class Model:
    """The figures of one device and type; seconds, FLOP/s, bytes/s."""

    launch: float
    rate: float
    memory: float
    item: int  # bytes of an element
    factor: float  # flops of a multiply-add
    tile: int  # rows and columns of a product that the library computes at once

    def seconds(self, tree: Tree, step: TreeStep, size: Callable[[Labels], int] | None = None) -> float:
        """Seconds of one step of one slice; `size`: elements of a tensor of some labels, where it is not all of it."""
        size, nodes = size or tree.graph.size, tree.nodes
        left, right, out = nodes[step.left], nodes[step.right], nodes[step.node]
        union = left | right
        share = 1.0
        for own in (left - right, right - left):
            share *= min(1.0, size(own) / _TILE) ** 0.5
        flops = self.factor * size(union) / (self.rate * max(share, 1 / _TILE))
        moved = self.item * (size(left) + size(right) + size(out)) / self.memory
        return self.launch + max(flops, moved)

    def of_slice(self, tree: Tree) -> tuple[float, float]:
        """Seconds of the steps of one slice, and of those that all slices share."""
        found = [0.0, 0.0]
        for step in tree.steps:
            found[step.node in tree.once] += self.seconds(tree, step)
        return found[0], found[1]

    def total(self, tree: Tree) -> float:
        """Seconds of all slices; steps that are equal in every slice count once."""
        once, slices = tree.once, tree.slices
        return sum(self.seconds(tree, step) * (1 if step.node in once else slices) for step in tree.steps)


@lru_cache(maxsize=64)
def precision_word(precision: Any) -> str:
    """A call's `precision` as `model` takes it; what is none is refused where steps are planned."""
    return str(read_mode("precision", precision, PRECISIONS) or "ieee")


def model(target: Target, dtype: torch.dtype, precision: str = "ieee") -> Model:
    """The figures for products of that type."""
    name = dtype_name(dtype)
    factor = 8.0 if dtype.is_complex else 2.0
    if target.kind == "cpu":
        found = cpu_costs("blas")
        rates = found.table("rate")
        threads = max(target.processors, 1)
        rate = rates.get(name, rates["float32"]) * threads
        return Model(found("call"), rate, found("memory") * min(threads, 4), dtype.itemsize, factor, _CPU_TILE)
    library = fitted("blas")
    rates = library.table("rates")
    rate = rates.get(name, rates["float32"])
    if precision == "tf32":
        rate = library("tf32_rate")
    elif precision == "ieee_bound" and name in ("float32", "complex64") and refusal(target) is None:
        rate = RATES[BF16X6.name]
    return Model(_GRAPH_LAUNCH, rate, _MEMORY_SHARE * library("memory_rate"), dtype.itemsize, factor, _GPU_TILE)
