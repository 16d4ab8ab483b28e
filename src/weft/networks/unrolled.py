"""A step with a batch of few, run as so many matrix products: none of its tensors is moved for the batch's sake."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from weft.networks.fit import MOST_UNROLLED, StepRoles, fits
from weft.networks.order import LARGE
from weft.networks.slicing import least_aligned, part
from weft.networks.steps import ContractionCall, StepOptions, Terms, prepared
from weft.networks.tree import Tree, TreeStep


@dataclass(frozen=True)
class Unrolled:
    """The calls of all indices of the batch, which are one call on different parts."""

    call: ContractionCall
    terms: Terms
    places: tuple[dict[int, int], ...]  # the index of each batch label

    @classmethod
    def of(
        cls, nodes: tuple[int, int, int], terms: Terms, tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        asked: StepOptions, batch: Sequence[tuple[int, int]],
    ) -> Unrolled:  # fmt: skip
        """`batch` are its labels with their extents."""
        places: list[dict[int, int]] = [{}]
        for label, extent in batch:
            places = [{**known, label: index} for known in places for index in range(extent)]
        inner, (a, b, d) = one_of(terms, tensors, batch)
        return cls(prepared(nodes, inner, (a, b, None, d), asked), terms, tuple(places))

    @property
    def products(self) -> int:
        """That the step is run as."""
        return len(self.places)

    @property
    def settled(self) -> Unrolled:
        """The products with the kernels that serve now, which are not exchanged for others."""
        return replace(self, call=self.call.settled)

    def exchanged(self, launches: Mapping[int, Callable[..., None]]) -> Unrolled:
        """The products with another launch, where `launches` has one by the `id` of this one's."""
        return replace(self, call=self.call.exchanged(launches))

    def run(self, values: Sequence[Any]) -> None:
        call = self.call
        whole = (values[call.left], values[call.right], values[call.node])
        for where in self.places:
            a, b, d = (part(tensor, term, where) for tensor, term in zip(whole, self.terms, strict=True))
            call.launch(a, b, None, d, call.one, call.zero, call.aux)

    def bound(self, values: Sequence[Any]) -> Callable[[], None]:
        """The products on the values of their nodes, whose parts are seen in each run."""
        return partial(self.run, values)

    @property
    def left(self) -> int:
        return self.call.left

    @property
    def right(self) -> int:
        return self.call.right

    @property
    def node(self) -> int:
        return self.call.node

    @property
    def variant(self) -> Any:
        return self.call.variant

    @property
    def launch(self) -> Callable[..., None]:
        """The launch of one of the products."""
        return self.call.launch


def one_of(
    terms: Terms, tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor], batch: Sequence[tuple[int, int]]
) -> tuple[Terms, tuple[torch.Tensor, ...]]:
    """The terms of the product for one index of the batch, and its tensors where they are aligned the least."""
    labels = frozenset(label for label, _ in batch)
    first, second, third = (tuple(label for label in term if label not in labels) for term in terms)
    parts = [least_aligned(tensor, term, labels) for tensor, term in zip(tensors, terms, strict=True)]
    return (first, second, third), tuple(parts)


def unrolled_batch(tree: Tree, step: TreeStep, terms: Terms, item: int) -> tuple[tuple[int, int], ...]:
    """Labels of the batch with their extents, where a large step is a matrix product for each index and not else."""
    nodes = (step.left, step.right, step.node)
    sizes = [tree.size(node) * item for node in nodes]
    roles = StepRoles.of(*(tree.nodes[node] for node in nodes))
    if max(sizes) < LARGE or not 1 < tree.graph.size(roles.batch) <= MOST_UNROLLED:
        return ()
    large = [tuple(term) if size >= LARGE else None for term, size in zip(terms, sizes, strict=True)]
    extents = tree.graph.extents
    if fits(large, roles, extents) or not fits(large, roles, extents, unrolled=True):
        return ()
    return tuple((label, tree.graph.extents[label]) for label in sorted(roles.batch))
