"""Derivatives of networks: every step is a contraction that torch can go back through, so one backward sweep over the
tree makes the gradients of all operands, and environments are shared between them.

Going back needs all intermediates. Where a `memory_limit` is set they are not kept: each slice is made anew in the
backward sweep, and there are as many slices as the intermediates of one need to fit. Under transforms of `torch.func`
they are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from weft.algebra import Algebra
from weft.api.einsum import of_one
from weft.api.entry import contraction
from weft.base.arrays import is_transforming
from weft.base.figures import si
from weft.errors import UnsupportedError, WorkspaceError
from weft.networks.alone import scaled
from weft.networks.planned import Planned
from weft.networks.settings import kept_whole
from weft.networks.slicing import indices, lengthened, part, sliceable
from weft.networks.steps import StepOptions
from weft.networks.tree import Tree
from weft.planner.options import Options
from weft.plans.intermediates import WIDER
from weft.spec import Notation
from weft.spec.dtypes import REAL_OF


def differentiable(network: Planned, operands: Sequence[torch.Tensor]) -> torch.Tensor:
    """The result, connected to its operands for torch's autograd in any of its modes."""
    if network.settings.strip_exponent:
        raise UnsupportedError("strip_exponent has no derivative: take the logarithm of a result that is in range")
    tree = network.backward = network.backward or _tree(network)
    scheme = network.scheme
    if not tree.steps:
        return _moved(network, tree, [tree.graph.operands[0].view(operands[0])])
    views = [operand.view(tensor) for operand, tensor in zip(tree.graph.operands, operands, strict=True)]
    if not tree.sliced and network.settings.memory_limit is None:
        return _slice(network, tree, views)
    if tree.slices > 1 and tree.root in scheme.functions:
        raise UnsupportedError("the derivative of a function of the whole result, in slices: apply it to the result")
    partial: dict[tuple[int, ...], list[torch.Tensor]] = {}
    outer = [label for label in tree.graph.output if label in tree.sliced]
    algebra = network.settings.options.algebra
    for where in indices(tree):
        parts = [part(view, term, where) for view, term in zip(views, tree.graph.terms, strict=True)]
        if is_transforming():  # they take no checkpoints
            found = _slice(network, tree, parts)
        else:
            found = checkpoint(lambda *given: _slice(network, tree, given), *parts, use_reentrant=False)
        known = partial.setdefault(tuple(where[label] for label in outer), [])
        if known and algebra is None:
            known[0] = known[0] + found
        else:
            known.append(found)
    sums = {place: _reduced(algebra, known) for place, known in partial.items()}
    return _assembled(network, tree, outer, sums)


def as_operations(network: Planned, operands: Sequence[torch.Tensor], out: torch.Tensor | None) -> Any:
    """The result of a call that torch wants to see, in `out` where that is given."""
    if not network.settings.strip_exponent:
        found = differentiable(network, operands)
        return found if out is None else out.copy_(found)
    mantissa, exponent = _scaled(network, operands)
    return (mantissa if out is None else out.copy_(mantissa)), exponent


def _scaled(network: Planned, operands: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """The result over 10**exponent, and the exponent; every intermediate is scaled by a pass of its own."""
    tree = network.tree
    views = [operand.view(tensor) for operand, tensor in zip(tree.graph.operands, operands, strict=True)]
    outer = [label for label in tree.graph.output if label in tree.sliced]
    slices = []
    for where in indices(tree):
        exponents: list[torch.Tensor] = []

        def strip(tensor: torch.Tensor, into: list[torch.Tensor] = exponents) -> torch.Tensor:
            value, exponent = scaled(tensor)
            into.append(exponent)
            return value

        parts = [strip(part(view, term, where)) for view, term in zip(views, tree.graph.terms, strict=True)]
        value = _slice(network, tree, parts, strip) if tree.steps else _moved(network, tree, parts)
        slices.append((tuple(where[label] for label in outer), value, torch.stack(exponents).sum()))
    whole = torch.stack([exponent for _, _, exponent in slices]).amax()
    sums: dict[tuple[int, ...], torch.Tensor] = {}
    for place, value, exponent in slices:
        found = value * torch.pow(10.0, exponent - whole).to(REAL_OF.get(value.dtype, value.dtype))
        sums[place] = sums[place] + found if place in sums else found
    return _assembled(network, tree, outer, sums), whole


def _moved(network: Planned, tree: Tree, operands: Sequence[torch.Tensor]) -> torch.Tensor:
    """The result of a network of one operand, which is moved or reduced."""
    (seen,) = tree.graph.operands
    moved: torch.Tensor = of_one(Notation((seen.term,), tree.graph.output), operands[0], network.settings.options)
    return moved


def _tree(network: Planned) -> Tree:
    """The tree with so many slices that all intermediates of one fit in the limit together with two gradients."""
    tree, limit = network.tree, network.settings.memory_limit
    if limit is None:
        return tree
    items = {node: dtype.itemsize for node, dtype in network.scheme.dtypes.items()}
    whole = kept_whole(tree, network.scheme.functions)

    def fits(each: Tree) -> bool:
        return _kept(each, items) + network.result_bytes <= limit

    while not fits(tree):
        more = [tree.with_slices((*tree.sliced, label)) for label in sliceable(tree, whole)]
        if not more:
            needed = _kept(tree, items) + network.result_bytes
            raise WorkspaceError(
                f"memory_limit is {limit} bytes ({si(limit, 'B')}); going back through the network needs "
                f"{needed} bytes ({si(needed, 'B')}) with all that may be sliced"
            )
        tree = min(more, key=lambda each: (_kept(each, items), each.slices))
    added = set(tree.sliced) - set(network.tree.sliced)
    return lengthened(tree, added, fits, network.model)


def _kept(tree: Tree, items: Mapping[int, int]) -> int:
    sizes = [tree.size(step.node) * items[step.node] for step in tree.steps]
    return sum(sizes) + 2 * max(sizes, default=0)


def _slice(
    network: Planned, tree: Tree, views: Sequence[torch.Tensor],
    finish: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> torch.Tensor:  # fmt: skip
    """The steps of one slice as contractions of their own, each result passed through `finish`."""
    scheme, sliced = network.scheme, frozenset(tree.sliced)
    orders = {node: tuple(label for label in order if label not in sliced) for node, order in scheme.orders.items()}
    for leaf, term in enumerate(tree.graph.terms):
        orders[leaf] = tuple(label for label in term if label not in sliced)
    values: dict[int, Any] = dict(enumerate(views))
    for step in tree.steps:
        left, right = values.pop(step.left), values.pop(step.right)
        common = StepOptions(network.settings.of_steps, scheme.asked.halves)
        asked = common.having(epilogue=scheme.functions.get(step.node))
        terms = (orders[step.left], orders[step.right], orders[step.node])
        kind = scheme.dtypes[step.node]
        if step.node == tree.root and tree.summed > 1:
            kind = WIDER.get(kind, kind)
        options = replace(asked.of(left.dtype, right.dtype), out_dtype=kind)
        made = contraction(terms, left, right, options)
        values[step.node] = made if finish is None else finish(made)
    found: torch.Tensor = values[tree.root]
    return found


def _reduced(algebra: Algebra | None, partial: Sequence[torch.Tensor]) -> torch.Tensor:
    """The sum of partial sums in an algebra."""
    if len(partial) == 1:
        return partial[0]
    stacked = torch.stack(list(partial))
    labels = tuple(range(stacked.dim()))
    options = Options(stacked.dtype, algebra=algebra, specialize="auto")
    return of_one(Notation((labels,), labels[1:]), stacked, options)


def _assembled(
    network: Planned, tree: Tree, outer: Sequence[int], sums: Mapping[tuple[int, ...], torch.Tensor]
) -> torch.Tensor:
    """The result of its parts, which come by the indices of its sliced labels."""
    parts = dict(sums)
    for at in reversed(range(len(outer))):
        extent = tree.graph.extents[outer[at]]
        heads = dict.fromkeys(place[:at] for place in parts)
        parts = {head: torch.stack([parts[(*head, index)] for index in range(extent)]) for head in heads}
    rest = [label for label in tree.graph.output if label not in outer]
    stacked = [*outer, *rest]
    whole = parts[()].permute([stacked.index(label) for label in tree.graph.output])
    return whole.reshape(network.graph.shape).to(network.dtype)
