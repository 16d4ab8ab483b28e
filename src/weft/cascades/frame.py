"""The tensors of a cascade as they lie while it runs, S by the roles of the first contraction and each operand along S.

Products are of blocks: X (batch, m, k) and Y (batch, n, k) to (batch, m, n), each of the four any number of modes.
Operands are arranged once for a call, so that a block of them is a view that a matrix product reads as it lies.

In another algebra `weft.contract` makes products, and its `reduce` joins those of blocks. Gradients of a block's result
follow from the whole one: of a selection they go to the first block that has the selected value, of a sum of
exponentials each block has the share that it adds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, fx

from weft.algebra import Algebra, max_plus, min_plus
from weft.api.contract import contract
from weft.base.arrays import grad_mode
from weft.base.caches import cached_property
from weft.cascades.between import Between
from weft.cascades.described import Described
from weft.errors import UnsupportedError
from weft.library.products import widens
from weft.machine.ceilings import float32_products
from weft.machine.exactness import guarded
from weft.planner.exponentials import exponent_of
from weft.spec import Label

Box = Mapping[Label, tuple[int, int]]  # where a block begins along a label, and how many indices it has
Labels = tuple[Label, ...]


@dataclass(frozen=True)
class ProductRoles:
    """Labels by role; X is of batch, m, k, Y of batch, n, k, the result of batch, m, n, in these orders."""

    batch: Labels
    m: Labels
    n: Labels
    k: Labels

    @cached_property
    def x(self) -> Labels:
        return (*self.batch, *self.m, *self.k)

    @cached_property
    def y(self) -> Labels:
        return (*self.batch, *self.n, *self.k)

    @cached_property
    def result(self) -> Labels:
        return (*self.batch, *self.m, *self.n)


#: Where there is no second contraction.
NO_PRODUCT = ProductRoles((), (), (), ())


def roles_of(x: Labels, y: Labels, result: Labels) -> ProductRoles:
    """Roles of the labels of two operands; a label of the result that neither has is one of m, with extent 1."""
    batch = tuple(label for label in result if label in x and label in y)
    n = tuple(label for label in result if label in y and label not in x)
    m = tuple(label for label in result if label not in batch and label not in n)
    return ProductRoles(batch, m, n, tuple(label for label in x if label in y and label not in result))


def turned(value: Tensor, own: Labels, wanted: Labels) -> Tensor:
    """A value along other labels: without those of extent 1 that they lack, with extent 1 for those that it lacks."""
    lone, order, missing = _turning(own, wanted)
    value = value.squeeze(lone).permute(order)
    for at in missing:
        value = value.unsqueeze(at)
    return value


@lru_cache(maxsize=1024)
def _turning(own: Labels, wanted: Labels) -> tuple[list[int], list[int], list[int]]:
    """Dimensions that are dropped, the order of the others, and those that are new."""
    kept = [label for label in own if label in wanted]
    lone = [at for at, label in enumerate(own) if label not in wanted]
    order = [kept.index(label) for label in wanted if label in kept]
    return lone, order, [at for at, label in enumerate(wanted) if label not in kept]


def as_it_lies(tensor: Tensor, groups: Sequence[int]) -> Tensor:
    """The tensor where each group of so many dimensions is one stretch and rows or columns are contiguous."""
    at, fits = 0, True
    for count in groups:
        dims = range(at, at + count)
        steps = [(tensor.shape[dim], tensor.stride(dim)) for dim in dims if tensor.shape[dim] > 1]
        fits &= all(outer[1] == inner[0] * inner[1] for outer, inner in itertools.pairwise(steps))
        at += count
    inner = range(tensor.dim() - groups[-1] - groups[-2], tensor.dim())
    unit = [tensor.stride(dim) == 1 for dim in inner if tensor.shape[dim] > 1]
    return tensor if fits and (any(unit) or not unit) else tensor.contiguous()


def apart(tensor: Tensor, batch: int) -> Tensor:
    """The tensor where the rows of its matrices, behind dimensions of the batch, do not overlap, as BLAS reads them."""
    reach = 1
    for step, extent in sorted(zip(tensor.stride()[batch:], tensor.shape[batch:], strict=True)):
        if extent > 1 and step < reach:
            return tensor.contiguous()
        reach = max(reach, step * extent)
    return tensor


def step_of(tensor: Tensor, start: int, count: int) -> int:
    """The stride of a group of dimensions that lie as one: that of its last one with more than one index."""
    start %= tensor.dim()
    steps = [tensor.stride(dim) for dim in range(start, start + count) if tensor.shape[dim] > 1]
    return steps[-1] if steps else 0


def narrowed(tensor: Tensor, labels: Labels, box: Box) -> Tensor:
    """The block of a tensor in a box; along labels that it has extent 1 in, or the box lacks, it is whole."""
    for dim, label in enumerate(labels):
        place = box.get(label)
        if place is not None and tensor.shape[dim] != 1 and place[1] != tensor.shape[dim]:
            tensor = tensor.narrow(dim, *place)
    return tensor


class BlockProducts:
    """Matrix products of blocks, of operands of one type, with sums in another, on one kind of device."""

    def __init__(self, product: torch.dtype, accumulate: torch.dtype, kind: str, precision: str) -> None:
        self.product, self.accumulate, self.precision = product, accumulate, precision
        call = _widening if product != accumulate else _plain
        self._call: Callable[..., Tensor] = guarded(call, product, accumulate, kind)
        if precision == "tf32" and kind == "cuda":
            self._call = _shortened

    @property
    def as_they_are(self) -> str:
        """The precision of products of values that are no terms."""
        return "ieee" if self.precision == "ieee_bound" else self.precision

    def __call__(self, roles: ProductRoles, x: Tensor, y: Tensor, alpha: float = 1.0) -> Tensor:
        """The product of two blocks, of shape (batch, m, n) with a dimension for each label."""
        batch, m, n = len(roles.batch), len(roles.m), len(roles.n)
        shape = (*x.shape[: batch + m], *y.shape[batch : batch + n])
        left = _folded(x, batch, m).to(self.product)
        right = _folded(y, batch, n).to(self.product)
        return self._call(left, right.mT, self.accumulate, alpha).reshape(shape)

    def gradient_of_x(self, roles: ProductRoles, y: Tensor, grad: Tensor, alpha: float = 1.0) -> Tensor:
        """The gradient of X, from Y and that of the product."""
        own = ProductRoles(roles.batch, roles.m, roles.k, roles.n)
        return self(own, grad, _flipped(y, len(roles.batch), len(roles.n)), alpha)

    def gradient_of_y(self, roles: ProductRoles, x: Tensor, grad: Tensor, alpha: float = 1.0) -> Tensor:
        """The gradient of Y, from X and that of the product."""
        left, right = (_flipped(each, len(roles.batch), len(roles.m)) for each in (grad, x))
        return self(ProductRoles(roles.batch, roles.n, roles.k, roles.m), left, right, alpha)


def _folded(tensor: Tensor, batch: int, rows: int) -> Tensor:
    """As one or three dimensions: batch, rows, columns."""
    shape = tensor.shape
    return tensor.reshape(
        math.prod(shape[:batch]), math.prod(shape[batch : batch + rows]), math.prod(shape[batch + rows :])
    )


def _plain(left: Tensor, right: Tensor, accumulate: torch.dtype, alpha: float) -> Tensor:
    if left.shape[0] == 1:
        return torch.addmm(left.new_empty(()), left[0], right[0], beta=0, alpha=alpha)[None]
    return torch.baddbmm(left.new_empty(()), left, right, beta=0, alpha=alpha)


def _widening(left: Tensor, right: Tensor, accumulate: torch.dtype, alpha: float) -> Tensor:
    if left.is_cuda and widens():
        found = torch.ops.aten.bmm.dtype(left, right, accumulate)
        return found if alpha == 1.0 else found.mul_(alpha)
    return _plain(left.to(accumulate), right.to(accumulate), accumulate, alpha)


def _shortened(left: Tensor, right: Tensor, accumulate: torch.dtype, alpha: float) -> Tensor:
    with float32_products(tf32=True):
        return _plain(left, right, accumulate, alpha)


class SecondAlgebra:
    """An algebra of values of one type in the place of the second contraction's products and sums."""

    def __init__(self, algebra: Algebra, dtype: torch.dtype) -> None:
        self.algebra, self.traced = algebra, algebra.traced(dtype)
        self.name, self.identity = algebra.name, self.traced.identity
        selects = [each for each in (max_plus, min_plus) if self.traced.reduce == each.traced(dtype).reduce]
        self._selects, self._exponent = bool(selects), exponent_of(self.traced, dtype)

    @property
    def idle(self) -> float | None:
        """The value of S that adds nothing whatever it meets; None where that is not known."""
        if self.traced.combine == max_plus.traced(self.traced.combine.dtypes[0]).combine:
            return float(self.identity.real) if self._selects or self._exponent is not None else None
        return None

    def __call__(self, roles: ProductRoles, x: Tensor, y: Tensor) -> Tensor:
        """The contraction of two blocks, of shape (batch, m, n) with a dimension for each label."""
        found = contract((roles.x, roles.y, roles.result), x, y, algebra=self.algebra)
        assert isinstance(found, Tensor)
        return found

    def joined(self, total: Tensor, found: Tensor) -> Tensor:
        """The result of blocks so far together with that of one more."""
        both = self.traced.reduce(total, found)
        assert isinstance(both, Tensor)
        return both

    def gradients(
        self, roles: ProductRoles, x: Tensor, y: Tensor, total: Tensor, grad: Tensor, free: Tensor
    ) -> Sequence[Tensor]:
        """Gradients of two blocks. `free` marks what is not yet selected of the whole result, and is taken from."""
        with grad_mode(True):
            x, y = x.detach().requires_grad_(), y.detach().requires_grad_()
            found = self(roles, x, y)
        return torch.autograd.grad(found, (x, y), self._share(found.detach(), total, grad, free))

    def _share(self, found: Tensor, total: Tensor, grad: Tensor, free: Tensor) -> Tensor:
        if self._selects:
            chosen = (found == total) & free
            free.logical_and_(~chosen)
            return torch.where(chosen, grad, 0.0)
        if self._exponent is None:
            raise UnsupportedError(
                f"the algebra {self.name} behind a function has no derivative that is known: it neither selects nor "
                "adds exponentials; detach the operands"
            )
        return grad * torch.where(found == total, 1.0, torch.exp(self._exponent.rate * (found - total)))


@dataclass(frozen=True, eq=False)
class CascadeFrame:
    """Labels by role in both contractions, extents, the factor of the first, and how blocks are multiplied.

    `order` has the labels of S as blocks of it lie. `lone` are those that the second contraction sums over S alone.
    """

    first: ProductRoles
    second: ProductRoles
    extents: Mapping[Label, int]
    alpha: float
    products: BlockProducts
    device: torch.device
    places: tuple[int, int, int]  # of the caller's tensors: the first contraction may multiply B with A
    stored: torch.dtype  # of results that have all modes of S, where they are floating
    algebra: SecondAlgebra | None  # of the second contraction, where it is no sum of products
    indices: Mapping[str, Label]  # the labels of coordinates by name

    @property
    def meets(self) -> bool:
        """Whether there is a second contraction."""
        return self.second is not NO_PRODUCT

    @cached_property
    def order(self) -> Labels:
        return self.first.result

    @cached_property
    def lone(self) -> tuple[int, ...]:
        """The dimensions of S that are summed before it meets C."""
        return tuple(at for at, label in enumerate(self.order) if self.meets and label not in self.second.x)

    @cached_property
    def columns(self) -> frozenset[Label]:
        """Labels of S that D lacks."""
        return frozenset(self.order) - set(self.second.result) if self.meets else frozenset()

    def stored_type(self, node: fx.Node, between: Between) -> torch.dtype:
        """The type in which a value is stored."""
        dtype: torch.dtype = node.meta["dtype"]
        return self.stored if node in between.elementwise and dtype == self.products.accumulate else dtype

    def dims(self, labels: Sequence[Label]) -> tuple[int, ...]:
        """The dimensions of labels of S."""
        return tuple(self.order.index(label) for label in labels)

    def shape(self, modes: frozenset[Label]) -> tuple[int, ...]:
        """The shape of a value that has those modes."""
        return tuple(self.extents[label] if label in modes else 1 for label in self.order)

    def box_shape(self, box: Box) -> tuple[int, ...]:
        """The shape of a block of S."""
        return tuple(box[label][1] for label in self.order)

    def scores(self, a: Tensor, b: Tensor, box: Box) -> Tensor:
        """A block of S."""
        left, right = narrowed(a, self.first.x, box), narrowed(b, self.first.y, box)
        found = self.products(self.first, left, right, self.alpha)
        return found.expand(self.box_shape(box))

    def place(self, value: Tensor, box: Box) -> Tensor:
        """The block of a value along S, of an operand say."""
        return narrowed(value, self.order, box)

    def along(self, value: Tensor, labels: Sequence[Label], box: Box) -> Tensor:
        """The block of a value with all indices of a box along some labels."""
        pairs = zip(self.order, value.shape, strict=True)
        return value.expand([box[label][1] if label in labels else extent for label, extent in pairs])

    def on_d(self, value: Tensor) -> Tensor:
        """A value along S, of modes that D has, along D."""
        return turned(value, self.order, self.second.result) if value.dim() else value

    def along_s(self, value: Tensor) -> Tensor:
        """A value along D, of modes that S has, along S."""
        return turned(value, self.second.result, self.order)

    def met(self, value: Tensor, box: Box) -> Tensor:
        """A block of what meets C, by the roles of the second contraction."""
        value = value.expand(self.box_shape(box))
        if self.lone:
            value = value.sum(self.lone, keepdim=True)
        return turned(value, self.order, self.second.x)

    def unmet(self, grad: Tensor, box: Box) -> Tensor:
        """The gradient of a block of what meets C, along S again."""
        return turned(grad, self.second.x, self.order).expand(self.box_shape(box))


def size_of(frame: CascadeFrame, labels: Sequence[Label]) -> int:
    return math.prod(frame.extents[label] for label in labels)


def _flipped(tensor: Tensor, batch: int, rows: int) -> Tensor:
    """A tensor (batch, rows, columns) as (batch, columns, rows), of several dimensions each."""
    order = range(tensor.dim())
    return tensor.permute([*order[:batch], *order[batch + rows :], *order[batch : batch + rows]])


def frame_of(
    said: Described, reduced: frozenset[Label], alpha: float, products: BlockProducts, stored: torch.dtype,
    algebra: SecondAlgebra | None,
) -> CascadeFrame:  # fmt: skip
    """The frame of labels that do not broadcast: the operand with more of what is summed gives S its columns."""
    s, d, places = said.notation.s, said.notation.d, (0, 1, 2)
    a, b, *c = (said.own(term, shape) for term, shape in zip(said.notation.terms, said.shapes, strict=True))
    summed = reduced if d is None else reduced | (set(s) - set(d))
    first = roles_of(a, b, s)
    if sum(label in summed for label in first.m) > sum(label in summed for label in first.n):
        first, places = roles_of(b, a, s), (1, 0, 2)
    first = ProductRoles(first.batch, _last(first.m, summed), _last(first.n, summed), first.k)
    second = NO_PRODUCT if d is None else _in_order(roles_of(first.result, c[0], d), first.result)
    found = CascadeFrame(
        first, second, said.extents, alpha, products, said.device, places, stored, algebra, said.indices
    )
    if algebra is not None and (found.lone or {*c[0]} - {*s, *(d or ())}):
        raise UnsupportedError(
            f"the second contraction in the algebra {algebra.name} sums modes of S and C together: one that either has "
            "alone is reduced before"
        )
    return found


def _in_order(roles: ProductRoles, order: Labels) -> ProductRoles:
    """Roles with the labels of S in the order that it has them in."""
    rank = {label: at for at, label in enumerate(order)}
    groups = (roles.batch, roles.m, roles.n, roles.k)
    return ProductRoles(*(tuple(sorted(each, key=lambda label: rank.get(label, len(order)))) for each in groups))


def _last(labels: Labels, summed: frozenset[Label] | set[Label]) -> Labels:
    """Labels that are summed behind the others."""
    return (*(each for each in labels if each not in summed), *(each for each in labels if each in summed))
