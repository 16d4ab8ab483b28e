"""The plan of a network: its settings, read and checked once, and all else that is decided before tensors come."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import torch

from weft.algebra import NAMED, Algebra
from weft.base.arguments import read_limit
from weft.base.figures import counted
from weft.errors import ArgumentError, DTypeError, NotationError, UnsupportedError, WeftError, WorkspaceError
from weft.fn.algebra import Early
from weft.networks.graph import Graph, graph_of
from weft.networks.memory import (
    SMALL,
    Arena,
    ResultMemory,
    apart_within,
    arena,
    fitted_slices,
    gathered_bytes,
    read_slices,
)
from weft.networks.order import Orders, orders_of
from weft.networks.path import Fit, as_it_is, find_path
from weft.networks.steps import StepOptions, may_replay
from weft.networks.tree import Folded, Model, Tree, model, precision_word
from weft.planner.options import Options
from weft.planner.schedule import Target
from weft.planner.target import resolve_backend, target_of
from weft.plans.intermediates import intermediate_type, is_of_halves
from weft.plans.keywords import read_options
from weft.spec import Notation
from weft.spec.arguments import read_flag
from weft.spec.dtypes import NEEDS_OUT_DTYPE, dtype_name, resolve, storage_type

MOST_NAMED = 8  # operands that a message names by their numbers
FLAGS = ("strip_exponent", "reuse", "check_finite", "progress")


@dataclass(frozen=True)
class Settings:
    """The options of `weft.network`."""

    device: torch.device
    target: Target
    backend: str
    options: Options = field(default_factory=Options)  # of every step
    out_dtype: torch.dtype | None = None
    memory_limit: int | None = None
    strip_exponent: bool = False
    reuse: bool = False
    check_finite: bool = False
    progress: bool = False
    cuda_graph: bool | str = "auto"

    @property
    def of_steps(self) -> Options:
        """The options of every step. Those of a network that measures are planned as all others are, and then measured
        together, under one budget."""
        options = self.options
        if options.tune != "measure":
            return options
        specialize = "auto" if options.specialize in ("never", "library") else options.specialize
        return replace(options, tune=None, specialize=specialize)

    def early_of(self, types: Sequence[torch.dtype]) -> Early:
        """Whether operands of these types may be reduced before all of them have met."""
        options, algebra = self.options, self.options.algebra
        if algebra is None or len(types) < 3:
            return Early()
        try:
            both = reduce(torch.promote_types, types) if options.promote else types[0]
            return algebra.early(resolve(both, both, options.precision, options.accumulate, algebra.name).accumulate)
        except (WeftError, RuntimeError):  # types that do not fit are reported where their steps are planned
            return Early()

    def node_dtypes(self, tree: Tree, leaves: Sequence[torch.dtype]) -> dict[int, torch.dtype]:
        """The type of every node: an `intermediate_type` inside, at the root `out_dtype`, else its operands' type."""
        algebra, promote = self.options.algebra, self.options.promote
        found = dict(enumerate(leaves))
        for dtype in leaves:
            if len(leaves) > 2 and dtype in NEEDS_OUT_DTYPE:
                raise DTypeError(
                    f"a network of {len(leaves)} operands, one of them {dtype_name(dtype)}: intermediate results do "
                    "not fit their type; convert the operands, or contract two at a time"
                )
        for step in sorted(tree.steps, key=lambda step: step.node):
            try:
                found[step.node] = storage_type(found[step.left], found[step.right], algebra is not None, promote)
            except DTypeError as error:
                raise DTypeError(f"{error}{_which(leaves)}") from None
        for node in (step.node for step in tree.steps if step.node != tree.root):
            found[node] = intermediate_type(found[node], self.out_dtype, self.options.accumulate)
        if self.out_dtype is not None and tree.steps:
            found[tree.root] = self.out_dtype
        return found


def read_settings(device: torch.device, keywords: Mapping[str, Any]) -> Settings:
    """`ArgumentError` for a keyword that a network does not take, and for values that are none of theirs."""
    options = read_options("network", keywords)
    flags: dict[str, Any] = {name: read_flag(name, keywords.get(name, False)) for name in FLAGS}
    cuda_graph = keywords.get("cuda_graph", "auto")
    if not isinstance(cuda_graph, (bool, str)) or cuda_graph not in ("auto", True, False):
        raise ArgumentError(f"cuda_graph={cuda_graph!r} is none of 'auto', True, False")
    limit = read_limit(keywords.get("memory_limit"))
    found = replace(settings_of(device, options), memory_limit=limit, cuda_graph=cuda_graph, **flags)
    if found.strip_exponent and options.algebra is not None:
        raise UnsupportedError("strip_exponent is for sums of products, not for another algebra")
    if found.reuse and found.strip_exponent:
        raise UnsupportedError("reuse and strip_exponent do not go together: exponents would have to be kept too")
    return found


def settings_of(device: torch.device, options: Options) -> Settings:
    """The settings of a network whose steps and result have these options, and no others."""
    out_dtype = options.out_dtype
    if isinstance(out_dtype, tuple):
        raise DTypeError(f"out_dtype names {len(out_dtype)} types, a network has one result")
    machine = torch.device("cpu") if device.type == "meta" else device  # tensors without memory take a CPU's path
    chosen = resolve_backend(options.backend, machine)
    return Settings(device, target_of(chosen, machine), chosen, replace(options, out_dtype=None), out_dtype)


def is_ordered(algebra: Algebra | None) -> bool:
    """Whether operands must meet from left to right: of an algebra of the caller's own nothing is known."""
    return algebra is not None and algebra not in NAMED.values()


def _which(leaves: Sequence[torch.dtype]) -> str:
    """Which operands have which type, where several are about."""
    places: dict[torch.dtype, list[str]] = {}
    for at, dtype in enumerate(leaves):
        places.setdefault(dtype, []).append(str(at))
    if len(places) < 2:
        return ""
    texts = [f"{dtype_name(dtype)}: {_listed(numbers)}" for dtype, numbers in places.items()]
    return f"; {'; '.join(texts)}"


def _listed(numbers: Sequence[str]) -> str:
    more = len(numbers) - MOST_NAMED
    named = ", ".join(numbers[:MOST_NAMED])
    return f"operand{'s' if len(numbers) > 1 else ''} {named}" + (f" and {more} more" if more > 0 else "")


def read_functions(tree: Tree, functions: Mapping[Any, Any]) -> dict[int, Callable[..., Any]]:
    """Functions by node. A key is a node's number, or the labels of one intermediate (a set, a sequence, or text).

    `NotationError` lists what intermediates there are where a key is none of them.
    """
    found: dict[int, Callable[..., Any]] = {}
    for key, function in functions.items():
        node = _node_of(tree, key)
        if node in found:
            raise NotationError(f"two functions are given for node {node}, '{tree.graph.text(tree.nodes[node])}'")
        if not callable(function):
            raise ArgumentError(f"the function of node {node} is {type(function).__name__}, which cannot be called")
        found[node] = function
    return found


def _node_of(tree: Tree, key: Any) -> int:
    graph = tree.graph
    if isinstance(key, int) and not isinstance(key, bool):
        if tree.leaves <= key <= tree.root and tree.steps:
            return key
        raise NotationError(
            f"node {key} is no result of a step: operands are 0 to {tree.leaves - 1}, results {tree.leaves} to "
            f"{tree.root}"
        )
    if not isinstance(key, Iterable):
        raise NotationError(f"a node is named by its number or by labels, not by {key!r}")
    names = set(key)
    whole = tree.whole()
    matching = [step.node for step in whole.steps if {graph.names[label] for label in whole.nodes[step.node]} == names]
    if len(matching) == 1:
        return matching[0]
    there = ", ".join(f"{step.node}: '{graph.text(sorted(whole.nodes[step.node]))}'" for step in whole.steps[:12])
    problem = "several intermediates have" if matching else "no intermediate of this path has"
    raise NotationError(
        f"{problem} the labels {sorted(map(str, names))}; there are {there}. A path of your own (optimize=) decides "
        "which there are, a node's number names one of them"
    )


def kept_whole(tree: Tree, functions: Mapping[int, Any]) -> frozenset[int]:
    """Labels that are summed under a function: its sum must be complete, so they cannot be sliced."""
    if not functions:
        return frozenset()
    below, whole = tree.below(), tree.whole()
    return frozenset(
        label for node in functions if node != tree.root for leaf in below[node]
        for label in whole.graph.terms[leaf] if label not in whole.nodes[node]
    )  # fmt: skip


WORKSPACE = 4 << 20  # bytes that a kernel may take for packing whatever the limit: they stay in the caches


@dataclass(frozen=True, eq=False, repr=False)
class NetworkPlan:
    """Decisions of `weft.network`. Facts of nodes are of `tree`, but for those of the whole network."""

    graph: Graph  # labels, extents and operands
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
    functions = {} if functions is None else functions
    if not isinstance(functions, Mapping):
        raise ArgumentError(f"functions is a mapping from nodes to functions, not {type(functions).__name__}")
    # Under a function sums must be whole: what may be sliced is known once the path is.
    free = len(functions) > 0 or (settings.memory_limit is None and slices == ())
    found = find_path(graph, optimize, price, as_it_is if free else _fit_of(settings, leaves, price, slices))
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
        graph, settings, found.source, whole, types, of_whole, folded, tree, price, dtypes, functions,
        orders, place, asked, gathered,
    )  # fmt: skip


def _fit_of(settings: Settings, leaves: Sequence[torch.dtype], price: Model, slices: Any) -> Fit:
    """A function that gives a tree its slices: the labels `slices`, and as many as the limit of these settings needs.

    `leaves` are the operands' types.
    """

    def fit(tree: Tree) -> Tree:
        dtypes = settings.node_dtypes(tree, leaves)
        memory = ResultMemory(dtypes[tree.root], settings.strip_exponent)
        return _sliced(tree, read_slices(tree, slices), settings, {}, dtypes, memory, price)

    return fit


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
        raise WorkspaceError(f"memory_limit is {counted(limit, 'byte')}; {holds} still needs {counted(total, 'byte')}")
    gathered = gathered if total + gathered <= limit else 0  # steps are launched one by one then
    return found, gathered, replace(options, workspace_limit=max(limit - total - gathered, WORKSPACE))
