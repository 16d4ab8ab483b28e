"""The settings of a network, read and checked once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import torch

from weft.algebra import NAMED, Algebra
from weft.base.figures import read_limit
from weft.errors import ArgumentError, DTypeError, NotationError, UnsupportedError, WeftError
from weft.fn.algebra import Early
from weft.networks.tree import Tree
from weft.planner.options import Options
from weft.planner.schedule import Target
from weft.planner.target import resolve_backend, target_of
from weft.plans.intermediates import intermediate_type
from weft.plans.keywords import read_options
from weft.spec.arguments import read_flag
from weft.spec.dtypes import NEEDS_OUT_DTYPE, dtype_name, resolve, storage_type

MOST_NAMED = 8  # operands that a message names by their numbers
GRAPHS = ("auto", True, False)


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
    flags = {name: keywords.get(name, False) for name in ("strip_exponent", "reuse", "check_finite", "progress")}
    for name, value in flags.items():
        read_flag(name, value)
    cuda_graph = keywords.get("cuda_graph", "auto")
    if not isinstance(cuda_graph, (bool, str)) or cuda_graph not in GRAPHS:
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


def is_given(functions: Any) -> bool:
    """Whether there are functions of nodes; `ArgumentError` for what is no mapping of them."""
    if functions is not None and not isinstance(functions, Mapping):
        raise ArgumentError(f"functions is a mapping from nodes to functions, not {type(functions).__name__}")
    return functions is not None and len(functions) > 0


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
    texts = [f"{dtype_name(dtype)}: {_places(numbers)}" for dtype, numbers in places.items()]
    return f"; {'; '.join(texts)}"


def _places(numbers: Sequence[str]) -> str:
    more = len(numbers) - MOST_NAMED
    named = ", ".join(numbers[:MOST_NAMED])
    return f"operand{'s' if len(numbers) > 1 else ''} {named}" + (f" and {more} more" if more > 0 else "")


def read_functions(tree: Tree, functions: Any) -> dict[int, Callable[..., Any]]:
    """Functions by node. A key is a node's number, or the labels of one intermediate (a set, a sequence, or text).

    `NotationError` lists what intermediates there are where a key is none of them.
    """
    if not is_given(functions):
        return {}
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
    matching = [
        step.node for step in whole.steps if {graph.names[label] for label in whole.nodes[step.node]} == names
    ]
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
    found: set[int] = set()
    below = tree.below()
    whole = tree.whole()
    for node in functions:
        under = {label for leaf in below[node] for label in whole.graph.terms[leaf]}
        if node != tree.root:
            found |= under - whole.nodes[node]
    return frozenset(found)
