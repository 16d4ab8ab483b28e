"""What the family does: a permutation of interleaved complex numbers with more to it than `permute` has.

That is functions of complex values, complex factors, conversions between complex and real types; and what makes a
complex product of real ones, before it and after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from weft.fn import Pointwise
from weft.spec.contraction import Aux
from weft.spec.permutation import Permutation

#: How D is written.
#:
#: * plain: element by element.
#: * along_k, across_k: every element y as the 2x2 real matrix that multiplies a pair by it,
#:
#:       (x_re, x_im) as a row  times  | y_re  y_im |   is   (x y)_re, (x y)_im
#:                                     |-y_im  y_re |
#:
#:   in two rows of memory. along_k: each has what makes one part of a product, a column of that matrix, so that it runs
#:   along k with the other operand's (re, im). across_k: they are the matrix's own rows, one that the other operand's
#:   re is multiplied by, one for its im.
#: * planar, three_m: D is real. Every element is written to two planes, re and im, or to three: re, im and re + im.
Form = Literal["plain", "along_k", "across_k", "planar", "three_m"]


class TransferAux(NamedTuple):
    """Auxiliary operands of the functions of a transfer, and results after D."""

    aux: tuple[Aux, ...] = ()  # those that the transfer uses; `Mode.strides.aux` has their strides
    places: tuple[int, ...] = ()  # where they stand among those of the contraction
    fn: tuple[int, ...] = ()  # positions in `aux`: what each function takes, in the order of its parameters
    c_fn: tuple[int, ...] = ()
    epilogue: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()


_NONE = TransferAux()


@dataclass(frozen=True, slots=True)
class Transfer:
    """D = epilogue(alpha * fn(X) + beta * c_fn(C)), in the modes of the permutation."""

    permutation: Permutation
    form: Form = "plain"
    part_stride: int = 0  # elements of D between the rows of 2x2 matrices, or between planes
    # Elements of X between complex products with the other factor's real part and those with its imaginary part: they
    # are added. 0: X holds no such products.
    planar_stride: int = 0
    three_m_stride: int = 0  # elements of a real X between the three products of 3M. 0: it holds no such products
    other_conjugated: bool = False  # the other factor is to be conjugated: what its imaginary part meets changes sign
    c_fn: Pointwise | None = None
    epilogue: Pointwise | None = None
    size: int = 0  # elements of a workspace D, gaps included
    aux_args: TransferAux = _NONE

    @property
    def workspace_bytes(self) -> int:
        return self.size * self.permutation.d.dtype.itemsize
