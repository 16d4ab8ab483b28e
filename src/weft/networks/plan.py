"""The plan of a network: all that is decided before tensors come, and what follows from it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from weft.base.figures import counted
from weft.errors import UnsupportedError, WorkspaceError
from weft.networks.arena import SMALL, Arena, ResultMemory, arena, gathered_bytes
from weft.networks.cost import Model, model, precision_word
from weft.networks.graph import Graph, graph_of
from weft.networks.order import Orders, orders_of
from weft.networks.path import as_it_is, find_path
from weft.networks.replay import may_replay
from weft.networks.settings import Settings, is_given, is_ordered, kept_whole, read_functions
from weft.networks.slicing import apart_within, fit_of, fitted_slices, read_slices
from weft.networks.steps import StepOptions
from weft.networks.tree import Folded, Tree
from weft.plans.intermediates import is_of_halves
from weft.spec import Notation

WORKSPACE = 4 << 20  # bytes that a kernel may take for packing whatever the limit: they stay in the caches


@dataclass(frozen=True, eq=False, repr=False)
class NetworkPlan:
    """Decisions of `weft.network`. Facts of nodes are of `tree`, but for those of the whole network."""

    graph: Graph  # labels, extents and operands
    leaves: tuple[torch.dtype, ...]  # the operands' types
    settings: Settings
    source: str  # of the path, in words
    whole: Tree
    whole_dtypes: Mapping[int, torch.dtype]  # operands first, then results in the order of the path
    whole_functions: Mapping[int, Callable[..., Any]]
    folded: Folded  # what is left where there are constants
    tree: Tree  # of a call: without what is made of constants alone, sliced
    model: Model  # rates that steps are priced with
    dtypes: Mapping[int, torch.dtype]
    functions: Mapping[int, Callable[..., Any]]
    orders: Orders  # of the labels of each node
    arena: Arena  # places of intermediates
    asked: StepOptions
    gathered: int  # bytes of operands that may be copied to where a CUDA graph of the steps reads them

    def shape(self, node: int) -> tuple[int, ...]:
        """Shape of a node of a slice."""
        return tuple([self.tree.graph.extents[label] for label in self.orders[node]])

    @property
    def path(self) -> tuple[tuple[int, int], ...]:
        """The path, as `opt_einsum` has it: places in a list from which operands go and to whose end results come."""
        return self.whole.path

    @property
    def slices(self) -> tuple[Any, ...]:
        """The labels that are sliced, as the caller named them; empty where nothing is."""
        return tuple(self.tree.graph.names[label] for label in self.tree.sliced)

    @property
    def dtype(self) -> torch.dtype:
        """The type of the result."""
        return self.dtypes[self.tree.root]

    @property
    def result_memory(self) -> ResultMemory:
        """The memory that a call holds in addition to operands and intermediates."""
        return ResultMemory(self.dtype, self.settings.strip_exponent)

    @property
    def result_bytes(self) -> int:
        """Bytes of the result."""
        return self.graph.size(self.graph.output) * self.dtype.itemsize

    def memory(self, program: Any = None) -> int:
        """Bytes that a call holds at once in addition to operands; `program`: that runs it, where there is one."""
        return self.arena.size + self.result_memory.bytes(self.tree) + self.copied(program)

    def copied(self, program: Any) -> int:
        """Bytes of operands that may be copied to where a CUDA graph of the steps reads them; 0 without one."""
        return self.gathered if program is None or program.replay is not None else 0

    @property
    def is_plain(self) -> bool:
        """Whether a call is its steps, one after the other, into the result. Signs are looked at in every call."""
        settings = self.settings
        special = settings.strip_exponent or settings.reuse or settings.check_finite or self.graph.early.unsigned
        return bool(self.tree.steps) and not (special or self.tree.sliced)

    def __repr__(self) -> str:
        operands, steps = counted(len(self.graph.operands), "operand"), counted(len(self.tree.steps), "step")
        return f"Network({operands}, {steps}, {counted(self.tree.slices, 'slice')}, {self.source})"


def plan_network(
    notation: Notation, shapes: Sequence[tuple[int, ...]], leaves: Sequence[torch.dtype], settings: Settings,
    optimize: Any = "auto", slices: Any = (), functions: Any = None, constants: Collection[int] = (),
) -> NetworkPlan:  # fmt: skip
    """The plan for operands of these shapes and types; the rest as given to `weft.network`, whose errors it raises."""
    options = settings.options
    graph = graph_of(notation, shapes, ordered=is_ordered(options.algebra), early=settings.early_of(leaves))
    price = model(settings.target, leaves[0], precision_word(options.precision))
    # Under a function sums must be whole: what may be sliced is known once the path is.
    free = is_given(functions) or (settings.memory_limit is None and slices == ())
    found = find_path(graph, optimize, price, as_it_is if free else fit_of(settings, leaves, price, slices))
    whole = Tree.of(graph, found.pairs)
    of_whole = read_functions(whole, functions)
    if settings.strip_exponent and of_whole:
        raise UnsupportedError("strip_exponent and functions do not go together: they would see scaled values")
    if graph.early.never and of_whole:
        raise UnsupportedError(f"functions of intermediates need sums before the last step: {graph.early.broken}")
    types = settings.node_dtypes(whole, leaves)
    result = types[whole.root]
    price = model(settings.target, result, precision_word(options.precision)) if result != leaves[0] else price
    sliced = read_slices(whole, slices) or found.sliced
    folded = Folded.of(whole, constants, orders_of(whole, types, price) if constants else {})
    dtypes, functions = folded.ours(types), folded.ours(of_whole)
    memory = ResultMemory(result, settings.strip_exponent)
    tree = _sliced(folded.tree, sliced, settings, functions, dtypes, memory, price)
    place, gathered, each = _places(tree, settings, dtypes, memory, price)
    asked, orders = StepOptions(each, is_of_halves(leaves)), orders_of(tree, dtypes, price)
    return NetworkPlan(
        graph, tuple(leaves), settings, found.source, whole, types, of_whole, folded, tree, price, dtypes, functions,
        orders, place, asked, gathered,
    )  # fmt: skip


def _sliced(
    tree: Tree, labels: Collection[int], settings: Settings, functions: Mapping[int, Any],
    dtypes: Mapping[int, torch.dtype], memory: ResultMemory, price: Model,
) -> Tree:  # fmt: skip
    """The tree of a call, with the slices that are requested or that the limit needs."""
    there = {label for term in tree.graph.terms for label in term}
    kept = kept_whole(tree, functions)
    asked = [label for label in labels if label in there]
    if wrong := kept & set(asked):
        raise UnsupportedError(
            f"'{tree.graph.text(sorted(wrong))}' cannot be sliced: a function is applied to sums over it, "
            "which are not complete in a slice"
        )
    if settings.reuse and asked:
        raise UnsupportedError("reuse keeps every intermediate, of which each slice has its own: do without slices")
    tree = tree.with_slices(asked) if asked else tree
    if settings.memory_limit is None or settings.reuse or not tree.steps:
        return tree
    return fitted_slices(tree, dtypes, memory, settings.memory_limit, price, kept)


def _places(
    tree: Tree, settings: Settings, dtypes: Mapping[int, torch.dtype], memory: ResultMemory, price: Model
) -> tuple[Arena, int, Any]:  # fmt: skip
    """The arena, the bytes of gathered operands, and the options of steps within the limit."""
    limit, options, gathered = settings.memory_limit, settings.of_steps, 0
    apart = SMALL if limit is None else apart_within(limit - memory.bytes(tree))
    found = arena(tree, dtypes, keep=settings.reuse, apart=apart)
    replays = settings.device.type == "cuda" and not settings.check_finite
    if replays and may_replay(tree, price, settings.cuda_graph):
        gathered = gathered_bytes(tree, dtypes)
    if limit is None:
        return found, gathered, options
    total = found.size + memory.bytes(tree)
    if total > limit:
        holds = "with every intermediate kept (reuse=True) the network" if tree.steps else "the result"
        raise WorkspaceError(
            f"memory_limit is {counted(limit, 'byte')}; {holds} still needs {counted(total, 'byte')}"
        )
    gathered = gathered if total + gathered <= limit else 0  # steps are launched one by one then
    return found, gathered, replace(options, workspace_limit=max(limit - total - gathered, WORKSPACE))
