"""How a contraction is computed by torch's operations, as far as the extents of its parts do not matter.

product        matrices by torch.mm or bmm
pairs          nothing is summed that both operands have: torch.mul
algebra        tables of pairs of another algebra
counts         of truth values, matrices of zeros and ones; on a CPU
exponentials   of an algebra that adds exponentials, matrices of those; on a CPU
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch

from weft.algebra import of_count
from weft.cpu.host import multiplies_bytes
from weft.library.exact import widens
from weft.library.exponentials.by_torch import LEAST_PAIRS, LEAST_SIDE
from weft.library.products import ProductTypes, factors_of, types_of
from weft.library.views import FIRST, A, B, Group
from weft.planner.exponentials import exponent_of
from weft.planner.split_schemes import is_worth
from weft.spec import Contraction, Role
from weft.spec.dtypes import value_type

_NARROW = 16
MOST_PAIRS = 1 << 24  # up to which float32 has every number

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
    clamps: bool = False  # negative values become 0, see `weft.library.folding`

    @property
    def accumulate(self) -> torch.dtype:
        return self.contraction.arithmetic.accumulate

    @property
    def rounds_sums(self) -> bool:
        """Whether sums in memory of their own would be rounded before C is added."""
        result = self.types.result
        return self.contraction.c is not None and result.is_floating_point and result != self.accumulate

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
    batch: list[int] = []
    m: list[int] = []
    n: list[int] = []
    k: list[int] = []
    alone: tuple[list[int], list[int]] = [], []
    repeat = []
    groups = {Role.BATCH: batch, Role.M: m, Role.N: n}
    of_all = contraction.algebra is not None
    for at, mode in enumerate(contraction.modes):
        if mode.role is not Role.K:
            groups[mode.role].append(at)
            continue
        strides = mode.strides
        in_a = strides[A] or any(strides[FIRST + arg] for arg in contraction.a_args)
        in_b = strides[B] or any(strides[FIRST + arg] for arg in contraction.b_args)
        if of_all or (in_a and in_b):
            k.append(at)
        elif in_a or in_b:
            alone[A if in_a else B].append(at)
        else:
            repeat.append(mode.extent)
    return RoleNumbers(
        tuple(batch), tuple(m), tuple(n), tuple(k), (tuple(alone[A]), tuple(alone[B])), math.prod(repeat)
    )  # fmt: skip
