"""A contraction of blocks that is planned: the tables of its launch, and the contractions that are its derivatives."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from weft.api.entry import contraction
from weft.base.arrays import outside_transforms
from weft.base.dispatch import is_traced
from weft.base.kept import is_capturing
from weft.blocks.meeting import Products
from weft.groups.launch import check_single, launch_of
from weft.planner.options import Options
from weft.planner.request import Request
from weft.plans.intermediates import part_options
from weft.plans.keywords import read_options
from weft.plans.resolving import resolved
from weft.spec.group import ONE, SIDES, GroupTable, contiguous_strides, group_form, group_table


class BlockPlan:
    """Call it with the buffers of A and B, of the types and device it was made for, for that of D."""

    def __init__(self, products: Products, x: torch.Tensor, y: torch.Tensor, keywords: dict[str, Any]) -> None:
        self.products, self.keywords = products, keywords
        self.options = read_options("blocks.contract", keywords)
        self._derivatives: dict[int, BlockPlan] = {}
        table = _table(products) if products.pairs else None
        longest = 0 if table is None else int(table.sizes[:, SIDES.index("k")].sum())  # of all, which is no less
        request = _request(products, x, y, self.options, longest)
        self.dtype, self._launch = request.d_dtype, None
        if table is None:  # nothing meets
            return
        with outside_transforms():
            self._launch = launch_of(table, request, y.dtype, False)

    def __call__(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if is_traced((x, y)):
            return block_by_block(self.products, self.options, x, y)
        d = self.products.d
        whole = len(self.products.pairs) == len(d.stored)
        made = (torch.empty if whole else torch.zeros)(d.size, dtype=self.dtype, device=x.device)
        x, y = (side.resolve_conj().resolve_neg().contiguous() for side in (x, y))  # a gradient may be any view
        if self._launch is not None:
            self._launch(x, y, made)
        else:  # types and functions that no kernel for groups takes
            one_by_one(self.products, x, y, self.options, made)
        return made

    def derivative(self, side: int, grad: torch.Tensor, other: torch.Tensor) -> BlockPlan:
        """The plan that makes the gradient of A or B (`side` 0, 1) from D's and the other operand; made once."""
        known = self._derivatives.get(side)
        if known is None:
            known = BlockPlan(self.products.derivative(side), grad, other, self.keywords)
            if not is_capturing(grad.device):  # where no group has a launch of its own
                self._derivatives[side] = known
        return known


def one_by_one(
    products: Products, x: torch.Tensor, y: torch.Tensor, options: Options, made: torch.Tensor | None = None
) -> list[torch.Tensor]:
    """The blocks of the result, each by a contraction for every pair; in `made`, else in tensors of their own."""
    part = part_options(options, x.dtype, y.dtype)
    terms = (*products.notation.inputs, products.notation.output)
    found = []
    for k, pairs in products.pairs:
        place = None if made is None else products.d.block(made, k)
        within = place if place is not None and place.dtype == part.out_dtype else None
        total: Any = None
        for at, (i, j, weight) in enumerate(pairs):
            asked, out = (options, place) if at + 1 == len(pairs) else (part, within)
            left, right = products.a.block(x, i), products.b.block(y, j)
            total = contraction(terms, left, right, asked, total, float(weight), out=out)
        found.append(total)
    return found


def block_by_block(products: Products, options: Options, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The result as one buffer, of contractions that torch sees."""
    found = dict(zip((k for k, _ in products.pairs), one_by_one(products, x, y, options), strict=True))
    dtype = next(iter(found.values())).dtype if found else _request(products, x, y, options, 0).d_dtype
    nothing = [] if found else [side[:0].to(dtype) for side in (x, y)]  # whose gradients are zero then
    return torch.cat([*nothing, *(
        found[k].reshape(-1) if k in found else x.new_zeros(products.d.shapes[k], dtype=dtype).reshape(-1)
        for k in products.d.stored
    )])  # fmt: skip


def _request(products: Products, x: torch.Tensor, y: torch.Tensor, options: Options, longest: int) -> Request:
    """The checked call of all products; errors are those of two blocks that meet. `longest`: a sum's length at most."""
    shapes = [(0,) * len(term) for term in products.notation.inputs]
    if products.pairs:
        i, j, _ = products.pairs[0][1][0]
        shapes = [products.a.shapes[i], products.b.shapes[j]]
    with outside_transforms():  # tensors of which nothing is asked stand for the blocks
        left, right = (torch.empty(shape, dtype=side.dtype, device=side.device)
                       for shape, side in zip(shapes, (x, y), strict=True))  # fmt: skip
    request = resolved(products.notation, str(products.notation), left, right, options, longest)
    check_single(request)
    return request


def _table(products: Products) -> GroupTable:
    """A row for each product, in the order of the result's blocks; of one block those of equal weights together."""
    sides = products.a, products.b
    weighted = [(products.weight(pair), pair) for _, pairs in products.pairs
                for pair in sorted(pairs, key=lambda each: _heaviest_first(products.weight(each)))]  # fmt: skip
    rows = [pair for _, pair in weighted]
    shapes = [np.array([side.shapes[row[at]] for row in rows], np.int64).reshape(len(rows), -1)
              for at, side in enumerate(sides)]  # fmt: skip
    strides = [np.array([side.strides[row[at]] for row in rows], np.int64) if side.strides else contiguous_strides(each)
               for at, (side, each) in enumerate(zip(sides, shapes, strict=True))]  # fmt: skip
    table, _ = group_table(group_form(products.notation), shapes, strides)
    for at, side in enumerate(sides):
        table.rows[:, at] = [side.starts[row[at]] for row in rows]
    counts = np.array([len(pairs) for _, pairs in products.pairs])
    ends = np.cumsum(counts)
    starts = np.array([products.d.starts[k] for k, _ in products.pairs], np.int64)
    table = table._replace(outputs=np.stack([starts, ends - counts, ends, np.full_like(ends, ONE)], 1))
    weights = np.array([weight for weight, _ in weighted], np.float64)
    return table if (weights == 1).all() else table.weighted(weights)


def _heaviest_first(weight: int) -> tuple[int, int]:
    """So that each ratio of weights is a whole number."""
    return -abs(weight), weight
