"""Sums of products of parts of packed tensors: blocks in a buffer, lists in a packed dimension. One launch for all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import torch

from weft.api.entry import contraction
from weft.api.permute import permute
from weft.base.arrays import outside_transforms
from weft.base.dispatch import is_traced
from weft.base.kept import is_capturing
from weft.engine.calls import CALLS_OF_LISTS
from weft.engine.ways import asked
from weft.groups.gradient import Pairs, differentiated
from weft.groups.launch import check_single, launch_of
from weft.planner.options import NO_FUNCTIONS, Options
from weft.planner.request import Request
from weft.plans.checks import check_storage
from weft.plans.intermediates import part_options
from weft.plans.keywords import read_options
from weft.plans.resolving import resolved
from weft.spec import Notation
from weft.spec.group import ONE, SIDES, GroupTable, group_form, group_table

Layout = tuple[np.ndarray, np.ndarray, np.ndarray]  # shapes and strides, (parts, rank) each, and where parts begin
Pair = tuple[int, int, int]  # a part of A, one of B, and a weight
_WIDE = (torch.float32, torch.float64, torch.complex64, torch.complex128)


class PackedParts(Protocol):
    """The parts of a packed tensor: a structure of blocks, or lists."""

    @property
    def shape(self) -> Sequence[int]:
        """That of the packed tensor."""

    @property
    def stored(self) -> Sequence[int]:
        """The numbers of the parts that the tensor holds, each once."""

    @property
    def signs(self) -> Sequence[int]:
        """The factor of each part; empty where all are 1."""

    @property
    def symmetry(self) -> Sequence[Any]:
        """The permutations of modes that leave the tensor as it is."""

    def layout(self, strides: tuple[int, ...] | None = None) -> Layout:
        """Where parts are in a tensor of those strides, or in a contiguous one."""

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor as a launch takes it."""

    def block(self, tensor: torch.Tensor, at: int) -> torch.Tensor:
        """The part of that number."""

    def joined(self, found: Mapping[int, torch.Tensor]) -> torch.Tensor:
        """The packed tensor of some parts; others are zero."""


class Products(NamedTuple):
    """A sum of products of parts: D's part k is the sum over its pairs (i, j, weight) of the weight times A's part i
    times B's part j."""

    notation: Notation  # of a product
    a: PackedParts
    b: PackedParts
    d: PackedParts
    pairs: tuple[tuple[int, tuple[Pair, ...]], ...]  # k, and its pairs

    def derivative(self, side: int) -> Products:
        """The products that make the gradient of A or B (`side` 0, 1), of D's gradient and the other operand."""
        (first, second), output = self.notation.inputs, self.notation.output
        found: dict[int, list[Pair]] = defaultdict(list)
        for k, pairs in self.pairs:
            for pair in pairs:
                found[pair[side]].append((k, pair[1 - side], pair[2]))
        own, other = ((first, self.a), (second, self.b)) if side == 0 else ((second, self.b), (first, self.a))
        rows = tuple((at, tuple(found[at])) for at in sorted(found))
        return Products(Notation((output, other[0]), own[0]), self.d, other[1], own[1], rows)

    @property
    def are_whole(self) -> bool:
        """Whether products meet in all parts of D."""
        return len(self.pairs) == len(self.d.stored)

    @property
    def by_pairs(self) -> bool:
        """Whether a gradient is found pair by pair: parts of a tensor are others, read otherwise, or an operand has a
        mode of its own, all along which the gradient is the same."""
        (first, second), output = self.notation.inputs, self.notation.output
        lone = set(first) - {*second, *output} or set(second) - {*first, *output}
        return bool(lone or self.a.symmetry or self.b.symmetry or self.d.symmetry)


class PackedPlan:
    """The launch of such products: tensors of a type and device, of any strides. With derivatives it is that of the
    products alone."""

    def __init__(self, products: Products, x: torch.Tensor, y: torch.Tensor, options: Options) -> None:
        self.products = products
        self._options = options
        self._derivatives: dict[int, PackedPlan] = {}
        self._launches: dict[Any, Any] = {}  # by strides
        x, y = products.a.read(x), products.b.read(y)
        table = _table(products, x, y) if products.pairs else None
        longest = 0 if table is None else int(table.sizes[:, SIDES.index("k")].sum())  # of all, which is no less
        self._request = _request(products, x, y, options, longest)
        if not is_traced((x, y)):
            self._launch(x, y, table)

    def __call__(self, x: torch.Tensor, y: torch.Tensor, options: Options) -> torch.Tensor:
        """The packed result, without derivatives. `options` has the functions of this call."""
        products = self.products
        if is_traced((x, y)):
            return part_by_part(products, options, x, y)
        x, y = products.a.read(x), products.b.read(y)
        new = torch.empty if products.are_whole else torch.zeros
        made = new(products.d.shape, dtype=self._request.d_dtype, device=x.device)
        if (launch := self._launch(x, y)) is None:
            _one_by_one(products, x, y, options, made)
        elif made.numel():
            launch(x, y, made)
        return made

    def _launch(self, x: torch.Tensor, y: torch.Tensor, table: GroupTable | None = None) -> Any | None:
        """The launch for tensors of those strides; None for types and functions that no kernel for groups takes."""
        key = x.stride(), y.stride()
        if key not in self._launches and self.products.pairs:
            with outside_transforms():
                launch = launch_of(table or _table(self.products, x, y), self._request, y.dtype, False)
            if is_capturing(x.device):  # where no group has a launch of its own
                return launch
            self._launches[key] = launch
        return self._launches.get(key)

    def contract(self, x: torch.Tensor, y: torch.Tensor, options: Options) -> torch.Tensor:
        """The packed result, differentiable where that is asked for: functions are then passes over whole tensors, and
        what a launch of products and its gradients cannot be is contracted pair by pair."""
        if not asked(x, y):
            return self(x, y, options)
        first, second, _, last = options.functions
        partly = last is not None and not self.products.are_whole
        alike = x.dtype == y.dtype and (x.dtype in _WIDE or not any(options.functions))
        if self.products.by_pairs or partly or not alike or replace(options, functions=NO_FUNCTIONS) != self._options:
            return part_by_part(self.products, options, x, y)
        (made,) = differentiated(self, (_applied(first, x), _applied(second, y)))
        return _applied(last, made)

    def made(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """The result of the products alone, one pair of packed tensors."""
        x, y = tensors
        return (self(x, y, self._options),)

    def pulled(self, side: int, pairs: Pairs) -> Sequence[torch.Tensor]:
        """The gradient of A or B (`side` 0, 1), by the plan that is made for it once."""
        ((grad, other),) = pairs
        if side not in self._derivatives:
            self._derivatives[side] = PackedPlan(self.products.derivative(side), grad, other, self._options)
        return self._derivatives[side].pushed(pairs)

    def pushed(self, pairs: Pairs) -> Sequence[torch.Tensor]:
        """The result of another pair, differentiable."""
        return differentiated(self, pairs[0])

    def mapped(self, size: int, dims: Sequence[int | None], tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Part by part, each with a batch mode."""
        run = partial(part_by_part, self.products, self._options)
        return (torch.func.vmap(run, tuple(dims))(*tensors),)


class PlainPlan(NamedTuple):
    """A contraction of whole tensors that says the same."""

    terms: Any

    def contract(self, x: torch.Tensor, y: torch.Tensor, options: Options) -> torch.Tensor:
        """The result."""
        return cast(torch.Tensor, contraction(self.terms, x, y, options))


def packed_plan(
    words: tuple[Any, ...], x: torch.Tensor, y: torch.Tensor, options: Options,
    read: Callable[[], Products | PlainPlan],
) -> Any:  # fmt: skip
    """The plan that served such a call before, else a new one; `read` checks the call."""
    said = options.said()
    known, place = CALLS_OF_LISTS.find(None if said is None else (*words, said), (x, y))
    if known is not None:
        return known
    check_storage("a", x)
    check_storage("b", y)
    plan: Any = read()
    if isinstance(plan, Products):
        bare = read_options("blocks.contract", {"backend": options.backend}) if asked(x, y) else options
        plan = PackedPlan(plan, x, y, bare)
    CALLS_OF_LISTS.keep(place, (x, y), plan)
    return plan


def _applied(function: Any, tensor: torch.Tensor) -> torch.Tensor:
    modes = range(tensor.dim())
    return tensor if function is None else cast(torch.Tensor, permute(tensor, (modes, modes), fn=function))


def part_by_part(products: Products, options: Options, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The packed result, of contractions that torch sees."""
    if products.pairs:
        parts = _one_by_one(products, x, y, options)
        return products.d.joined(dict(zip((k for k, _ in products.pairs), parts, strict=True)))
    dtype = _request(products, x, y, options).d_dtype
    nothing = [side.reshape(-1)[:0].to(dtype).sum() for side in (x, y)]  # whose gradients are zero
    return x.new_zeros(products.d.shape, dtype=dtype) + nothing[0] + nothing[1]


def _one_by_one(
    products: Products, x: torch.Tensor, y: torch.Tensor, options: Options, made: torch.Tensor | None = None
) -> list[torch.Tensor]:
    """The parts of the result, each by a contraction for every pair; in `made`, else in tensors of their own."""
    part = part_options(options, x.dtype, y.dtype)
    terms = (*products.notation.inputs, products.notation.output)
    found = []
    for k, pairs in products.pairs:
        place = None if made is None else products.d.block(made, k)
        within = place if place is not None and place.dtype == part.out_dtype else None
        total: Any = None
        for at, (i, j, weight) in enumerate(pairs):
            said, out = (options, place) if at + 1 == len(pairs) else (part, within)
            left, right = products.a.block(x, i), products.b.block(y, j)
            total = contraction(terms, left, right, said, total, float(weight), out=out)
        found.append(total)
    return found


def _request(products: Products, x: torch.Tensor, y: torch.Tensor, options: Options, longest: int = 0) -> Request:
    """The checked call of all products; errors are those of two parts that meet. `longest`: a sum's length at most."""
    shapes = [[0] * len(term) for term in products.notation.inputs]
    if products.pairs:
        i, j, _ = products.pairs[0][1][0]
        shapes = [side.layout()[0][at].tolist() for side, at in ((products.a, i), (products.b, j))]
    with outside_transforms():  # tensors of which nothing is asked stand for the parts
        left, right = (torch.empty(shape, dtype=side.dtype, device=side.device)
                       for shape, side in zip(shapes, (x, y), strict=True))  # fmt: skip
    request = resolved(products.notation, str(products.notation), left, right, options, longest)
    check_single(request)
    return request


def _table(products: Products, x: torch.Tensor, y: torch.Tensor) -> GroupTable:
    """A row for each product, in the order of the result's parts; of one part the heaviest first, and those of equal
    weights together, so that each ratio of weights is a whole number."""
    rows = np.array([pair for _, pairs in products.pairs for pair in pairs])
    counts, results = np.array([len(pairs) for _, pairs in products.pairs]), [k for k, _ in products.pairs]
    for at, side in enumerate((products.a, products.b)):
        if side.signs:
            rows[:, 2] *= np.array(side.signs)[rows[:, at]]
    if weighted := bool((rows[:, 2] != 1).any()):
        rows = rows[np.lexsort((rows[:, 2], -abs(rows[:, 2]), np.repeat(results, counts)))]
    d_strides, d_starts = (each[results] for each in products.d.layout()[1:])
    sides = [side.layout(tensor.stride()) for side, tensor in ((products.a, x), (products.b, y))]
    shapes, strides, starts = ([side[what][rows[:, at]] for at, side in enumerate(sides)] for what in range(3))
    table, _ = group_table(group_form(products.notation), shapes, strides, np.repeat(d_strides, counts, 0))
    table.rows[:, :2] = np.stack(starts, 1)
    ends = np.cumsum(counts)
    table = table._replace(outputs=np.stack([d_starts, ends - counts, ends, np.full_like(ends, ONE)], 1))
    return table.weighted(rows[:, 2].astype(np.float64)) if weighted else table
