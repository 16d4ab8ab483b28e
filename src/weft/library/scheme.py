"""How a contraction is computed by torch's operations, as far as the extents of its parts do not matter.

product        matrices by torch.mm or bmm
pairs          nothing is summed that both operands have: torch.mul
algebra        tables of pairs of another algebra
counts         of truth values, matrices of zeros and ones; on a CPU
exponentials   of an algebra that adds exponentials, matrices of those; on a CPU

Modes of a group are one dimension of a matrix without a copy where they are contiguous in memory. Each group stands in
the order of one of the tensors that have it; all choices are tried, and the one with the fewest elements to be copied
is taken (`arranged`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import torch

from weft.algebra import of_count
from weft.cpu.host import multiplies_bytes
from weft.gpu.pointwise.nvrtc import identity
from weft.library.functions import FoldedEpilogue
from weft.library.products import ProductTypes, factors_of, types_of, widens
from weft.library.views import FIRST, A, B, D, Frame, Group, View
from weft.planner.exponentials import exponent_of
from weft.planner.schedule import Target
from weft.planner.split_schemes import is_worth
from weft.spec import Contraction, Role
from weft.spec.dtypes import value_type

_NARROW = 16
# Of sums of exponentials by a product: pairs that are worth a dozen operations, and least rows and columns of results.
LEAST_PAIRS, LEAST_SIDE = 1 << 13, 4
MOST_PAIRS = 1 << 24  # up to which float32 has every number

def fuses(target: Target) -> bool:
    """Whether functions run as one pass each, and not as one of torch's operations after the other."""
    return target.kind == "cuda" and identity() is not None


Form = Literal["product", "pairs", "algebra", "counts", "exponentials"]


class RoleNumbers(NamedTuple):
    """The modes of a contraction by their numbers."""

    batch: Group
    m: Group
    n: Group
    k: Group  # summed over products
    alone: tuple[Group, Group]  # summed in A and in B, before they meet
    repeat: int  # how many equal products are added: modes that neither operand moves along

    @property
    def kept(self) -> Group:
        return (*self.batch, *self.m, *self.n)


class LibraryScheme(NamedTuple):
    contraction: Contraction
    kind: str  # of device: "cpu", or a GPU's
    roles: RoleNumbers
    form: Form
    values: tuple[torch.dtype, torch.dtype]  # which functions of A and of B see
    types: ProductTypes
    plain: tuple[bool, bool]  # whether A's and B's elements meet as they are stored
    follows: bool  # something is done to sums of products, besides alpha, beta and C
    empty: bool  # nothing is summed
    fold: FoldedEpilogue | None = None  # what is computed of the epilogue beside this

    @property
    def accumulate(self) -> torch.dtype:
        return self.contraction.arithmetic.accumulate

    @property
    def rounds_sums(self) -> bool:
        """Whether sums in memory of their own would be rounded before C is added."""
        result = self.types.result
        return self.contraction.c is not None and result.is_floating_point and result != self.accumulate

    @property
    def clamps(self) -> bool:
        """Whether negative values become 0."""
        return self.fold is not None and self.fold.clamps

    def wide(self) -> LibraryScheme:
        """The scheme whose sums stay in the accumulator's type."""
        return self._replace(types=self.types._replace(result=self.accumulate, way="widening"))


def scheme_of(contraction: Contraction, kind: str, *, terms: bool = False) -> LibraryScheme:
    """The scheme on a kind of device; with products of shorter `terms`, where those are predicted to pay."""
    roles = _roles(contraction)
    arithmetic, layouts = contraction.arithmetic, (contraction.a, contraction.b)
    values = value_type(layouts[A].dtype, arithmetic.product), value_type(layouts[B].dtype, arithmetic.product)
    form = _form(contraction, roles, kind)
    widened = contraction.c is not None and (contraction.c.dtype != contraction.d.dtype or contraction.c_fn is not None)
    follows = contraction.epilogue is not None or widened or roles.repeat != 1
    functions = (contraction.a_fn, contraction.b_fn)
    conjugate = (
        contraction.conjugate_a and layouts[A].dtype.is_complex, contraction.conjugate_b and layouts[B].dtype.is_complex
    )  # fmt: skip
    short = not follows and not any(roles.alone) and contraction.d.dtype == arithmetic.product
    if terms and splits(contraction, roles, form):
        types = ProductTypes(torch.float32, torch.float32, torch.float32, "split")
    else:
        types = _types(contraction, roles, form, values, kind, short)
    plain = tuple(
        functions[at] is None and not conjugate[at] and not roles.alone[at]
        and {layouts[at].dtype, values[at], types[at]} == {types[at]}
        for at in (A, B)
    )  # fmt: skip
    empty = any(mode.extent == 0 for mode in contraction.modes if mode.role is Role.K)
    return LibraryScheme(contraction, kind, roles, form, values, types, plain, follows, empty)  # type: ignore[arg-type]


def _form(contraction: Contraction, roles: RoleNumbers, kind: str) -> Form:
    if contraction.algebra is None:
        added = kind == "cpu" and contraction.c is not None and roles.m and roles.n
        return "product" if roles.k or added else "pairs"  # torch adds C to a product in the place of D
    m, n = contraction.m, contraction.n
    if kind == "cpu" and counts(contraction):
        return "counts"
    worth = min(m, n) >= LEAST_SIDE and contraction.batch * m * n * contraction.k >= LEAST_PAIRS
    if kind != "cpu" or not worth or exponent_of(contraction.algebra, contraction.arithmetic.accumulate) is None:
        return "algebra"
    return "exponentials"


def counts(contraction: Contraction) -> bool:
    """Whether sums of truth values are told by how many pairs are true, as float32 counts them."""
    accumulate = contraction.arithmetic.accumulate
    if contraction.algebra is None or accumulate is not torch.bool or contraction.k > MOST_PAIRS:
        return False
    return of_count(contraction.algebra, accumulate) is not None


def of_bytes(contraction: Contraction) -> bool:
    """Whether it is a product of int8 matrices, summed in int32, that this host has instructions for."""
    if contraction.k < 2:
        return False
    stored = {contraction.a.dtype, contraction.b.dtype, contraction.arithmetic.product}
    return stored == {torch.int8} and contraction.arithmetic.accumulate is torch.int32 and multiplies_bytes()


def _types(
    contraction: Contraction,
    roles: RoleNumbers,
    form: Form,
    values: tuple[torch.dtype, torch.dtype],
    kind: str,
    short: bool,
) -> ProductTypes:
    accumulate = contraction.arithmetic.accumulate
    if form in ("algebra", "counts", "exponentials"):
        return ProductTypes(accumulate, accumulate, accumulate, "plain")
    if form == "pairs":
        # A product of two halves is exact in single precision, and rounded once.
        if short and contraction.c is None and {*values} == {contraction.d.dtype} and accumulate is torch.float32:
            return ProductTypes(*values, contraction.d.dtype, "plain")
        return ProductTypes(*factors_of(values, accumulate), accumulate, "plain")
    bare = contraction.a_fn is None and contraction.b_fn is None and not any(roles.alone)
    if kind == "cpu" and bare and roles.m and roles.n and not roles.batch and of_bytes(contraction):
        return ProductTypes(torch.int8, torch.int8, torch.int32, "bytes")
    if any(roles.alone) and not accumulate.is_complex:
        values = (accumulate, accumulate)  # sums of one operand are as wide as all sums
    if kind == "cpu":  # there halves are for oneDNN, which takes no matrix that is narrow
        short = short and contraction.c is None and min(contraction.m, contraction.n, contraction.k) >= _NARROW
    elif contraction.c is not None:  # where the product does not add it, see `LibraryScheme.wide`
        short = short and widens()
    return types_of(contraction.arithmetic, values, kind, short)


def splits(contraction: Contraction, roles: RoleNumbers, form: Form) -> bool:
    """Whether products are of float32 matrices that are large enough for shorter terms."""
    if form != "product" or contraction.arithmetic.accumulate is not torch.float32:
        return False
    k = math.prod([contraction.modes[at].extent for at in roles.k])
    return 0 not in (contraction.m, contraction.n) and is_worth(contraction.batch, contraction.m, contraction.n, k)


def _roles(contraction: Contraction) -> RoleNumbers:
    groups: dict[Role, list[int]] = {role: [] for role in (Role.BATCH, Role.M, Role.N, Role.K)}
    alone: tuple[list[int], list[int]] = [], []
    repeat, of_all = 1, contraction.algebra is not None
    for at, mode in enumerate(contraction.modes):
        strides = mode.strides
        in_a = strides[A] or any(strides[FIRST + arg] for arg in contraction.a_args)
        in_b = strides[B] or any(strides[FIRST + arg] for arg in contraction.b_args)
        if mode.role is not Role.K or of_all or (in_a and in_b):
            groups[mode.role].append(at)
        elif in_a or in_b:
            alone[A if in_a else B].append(at)
        else:
            repeat *= mode.extent
    batch, m, n, k = map(tuple, groups.values())
    return RoleNumbers(batch, m, n, k, (tuple(alone[A]), tuple(alone[B])), repeat)


_LOOPED = 1 << 22  # multiply-adds of a matrix from which torch on a CPU may write each of a batch by itself
# Of products with a matrix that is spread over a batch: least columns and multiply-adds, and most elements of the
# matrix. With these torch on a CPU takes 0.27 to 1 of the time of copies and one product (24 cases, one thread and
# two); larger matrices of float64 take up to 1.8, few columns up to 5, fewer multiply-adds 7.
_COLUMNS, _PRODUCT, _ELEMENTS, _ELEMENTS_DOUBLE = 16, 1 << 10, 1 << 14, 1 << 10
# On a GPU: least columns, and multiply-adds for each of them. 0.13 to 0.96, 0.48 in the mean, of 119 cases on an H200;
# fewer columns take up to 7 times as long, fewer multiply-adds up to 56 (`results/h200/spread.json`).
_LEAST_GPU = ((64, 16), (16, 1 << 12))


class Arranged(NamedTuple):
    batch: Group
    rows: Group
    columns: Group
    k: Group
    swapped: bool  # rows are B's and columns A's
    left: View | None  # of an operand that needs no copy,
    right: View | None
    place: View | None  # and of D, where the product may be written to

    @property
    def kept(self) -> Group:
        return (*self.batch, *self.rows, *self.columns)


def arranged(scheme: LibraryScheme, frame: Frame) -> Arranged:
    """The arrangement with the least to be copied.

    Where something is to be, the outermost modes of D that one operand alone has may be a batch, over which the other
    is spread.
    """
    best, least = _with_least(scheme, frame, scheme.roles)
    for groups in _spread(scheme, frame) if least else ():
        found, copied = _with_least(scheme, frame, groups)
        if not copied:
            return found
    return best


def _spread(scheme: LibraryScheme, frame: Frame) -> Iterator[RoleNumbers]:
    """The groups with the outermost modes of D as a batch that A or B lacks, where batches take less than copies."""
    batch, m, n, k = scheme.roles[:4]
    if batch or not m or not n or scheme.types.way != "plain":
        return
    *outermost, innermost = sorted((*m, *n), key=lambda at: -frame.modes[at].strides[D])
    for group in (m, n):
        taken: Group = ()
        for at in itertools.takewhile(group.__contains__, outermost):
            taken = (*taken, at)
            rest = scheme.roles._replace(batch=taken, m=_without(m, taken), n=_without(n, taken))
            spread, rows = (rest.n, rest.m) if group is m else (rest.m, rest.n)
            columns = frame.size(rest.m if innermost in m else rest.n)
            product = frame.size((*rest.m, *rest.n, *k))
            if rows and _pays(scheme, frame.size((*spread, *k)), columns, product):
                yield rest


def _pays(scheme: LibraryScheme, elements: int, columns: int, product: int) -> bool:
    """Whether a batch of products takes less than copies: of the spread matrix's elements, of columns and multiply-adds
    of each product."""
    if scheme.kind != "cpu":
        return any(columns >= least and product >= each * columns for least, each in _LEAST_GPU)
    most = _ELEMENTS_DOUBLE if scheme.types.result is torch.float64 else _ELEMENTS
    return columns >= _COLUMNS and product >= _PRODUCT and elements <= most


def _without(group: Group, taken: Group) -> Group:
    return tuple([at for at in group if at not in taken])


def _with_least(scheme: LibraryScheme, frame: Frame, groups: RoleNumbers) -> tuple[Arranged, int]:
    """The arrangement of these groups with the least to be copied, and how many elements that are."""
    placed = not scheme.empty and scheme.types.result == scheme.contraction.d.dtype
    best: Arranged | None = None
    least = -1
    for batch, m, n, k in itertools.product(
        _orders(frame, groups.batch, (D, A, B)), _orders(frame, groups.m, (D, A)), _orders(frame, groups.n, (D, B)),
        _orders(frame, groups.k, (A, B)),
    ):  # fmt: skip
        swapped = _swapped(frame, batch, m, n)
        (rows, left), (columns, right) = ((n, B), (m, A)) if swapped else ((m, A), (n, B))
        found = Arranged(
            batch, rows, columns, k, swapped,
            frame.matrix((batch, rows, k), left) if scheme.plain[left] else None,
            frame.matrix((batch, k, columns), right) if scheme.plain[right] else None,
            _place(scheme, frame, (batch, rows, columns), k) if placed else None,
        )  # fmt: skip
        copied = sum(
            frame.size((*batch, *group, *k))
            for at, group, view in ((left, rows, found.left), (right, columns, found.right))
            if view is None and scheme.plain[at]
        )
        if found.place is None and placed:
            copied += frame.size(found.kept)
        if best is None or copied < least:
            best, least = found, copied
        if least == 0:
            break
    assert best is not None, "there is one order at least"
    return best, least


def _orders(frame: Frame, group: Group, places: Sequence[int]) -> Iterator[Group]:
    """A group's modes outermost first, in each of these tensors."""
    if len(group) < 2:
        return iter((group,))
    modes = frame.modes
    return iter(dict.fromkeys(tuple(sorted(group, key=lambda at: -modes[at].strides[place])) for place in places))


def _swapped(frame: Frame, batch: Group, m: Group, n: Group) -> bool:
    """Whether rows of the product are B's, so that D's innermost mode is innermost in it."""
    if not m or not n:
        return not n and bool(m) and bool(batch) and frame.modes[m[-1]].strides[D] < frame.modes[batch[-1]].strides[D]
    return frame.modes[m[-1]].strides[D] < frame.modes[n[-1]].strides[D]


def _place(scheme: LibraryScheme, frame: Frame, groups: tuple[Group, Group, Group], k: Group) -> View | None:
    view = frame.matrix(groups, D)
    if view is None or scheme.kind != "cpu" or not groups[0]:
        return view
    _, rows, columns = view.shape
    whole = view.strides == (rows * columns, columns, 1)
    return view if whole or rows * columns * frame.size(k) >= _LOOPED else None
