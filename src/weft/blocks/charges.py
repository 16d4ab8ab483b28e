"""Charges that tensors conserve, and the legs of tensors that carry them.

A symmetry is a product of U(1) and Z(n). Its charges are whole numbers, or tuples of them for a product. A leg has so
many indices of each charge, and a direction: charges flow into a tensor by legs of sign 1, out of it by those of -1.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from weft.base.caches import cached_property
from weft.errors import ArgumentError, ShapeError

Charge = int | tuple[int, ...]


@dataclass(frozen=True)
class Symmetry:
    """A product of groups: `orders` has 0 for U(1) and n for Z(n). ``U1 * Z2`` is the product of two.

    Where `graded` is true for a factor, what has an odd charge of it is a fermion: exchanging two of them changes the
    sign. ``U1.fermionic`` is U(1) whose charge is the number of fermions.
    """

    orders: tuple[int, ...]
    graded: tuple[bool, ...]

    def __mul__(self, other: Symmetry) -> Symmetry:
        return Symmetry(self.orders + other.orders, self.graded + other.graded)

    @property
    def fermionic(self) -> Symmetry:
        """This group, where odd charges are those of fermions."""
        return replace(self, graded=(True,) * len(self.orders))

    @property
    def zero(self) -> Charge:
        """The charge of what carries none."""
        return self.sum(())

    def sum(self, terms: Iterable[tuple[int, Charge]]) -> Charge:
        """The sum of charges, each times a sign."""
        total = [0] * len(self.orders)
        for sign, charge in terms:
            for at, part in enumerate(_parts(charge)):
                total[at] += sign * part
        found = tuple([part % order if order else part for part, order in zip(total, self.orders, strict=True)])
        return found[0] if len(found) == 1 else found

    def read(self, charge: Charge) -> Charge:
        """A charge as a caller gives it; `ArgumentError` for what is none of this group."""
        parts = _parts(charge)
        if len(parts) != len(self.orders) or not all(isinstance(part, int) for part in parts):
            raise ArgumentError(f"{charge!r} is no charge of a product of {len(self.orders)}: a whole number for each")
        return self.sum([(1, charge)])

    def is_odd(self, charge: Any) -> bool:
        """Whether it is the charge of an odd number of fermions."""
        return sum(part for part, graded in zip(_parts(charge), self.graded, strict=True) if graded) % 2 == 1

    @property
    def has_fermions(self) -> bool:
        """Whether signs depend on the order of legs."""
        return any(self.graded)


def _parts(charge: Charge) -> tuple[int, ...]:
    return charge if isinstance(charge, tuple) else (charge,)


U1 = Symmetry((0,), (False,))
Z2 = Symmetry((2,), (False,))


class ChargePlace(NamedTuple):
    """Where the indices of some sectors lie in a fused leg."""

    charge: Charge
    start: int
    extent: int


def _pairs(sectors: Any) -> list[tuple[Any, Any]]:
    """Sectors that are given as pairs."""
    pairs = list(sectors) if isinstance(sectors, Sequence) and not isinstance(sectors, str) else None
    if pairs is None or not all(isinstance(each, tuple) and len(each) == 2 for each in pairs):
        raise ArgumentError(f"sectors are extents by charge, or pairs of a charge and an extent, not {sectors!r}")
    return pairs


@dataclass(frozen=True)
class Leg:
    """A mode of a tensor by charges: `sectors` has the extent of each, in the order of a dense mode's indices.

    `sign`: 1 where charges flow in, -1 where they flow out. `parts`: the legs that it was fused of, if it was.

    >>> from weft.blocks import Leg, U1
    >>> spin = Leg(U1, {1: 1, -1: 1})
    >>> Leg.fused([spin, spin]).sectors
    ((2, 1), (0, 2), (-2, 1))
    """

    symmetry: Symmetry
    sectors: tuple[tuple[Charge, int], ...]
    sign: int = 1
    parts: tuple[Leg, ...] = field(default=(), compare=True)

    def __init__(
        self, symmetry: Symmetry, sectors: Mapping[Charge, int] | Sequence[tuple[Charge, int]], sign: int = 1,
        parts: tuple[Leg, ...] = (),
    ) -> None:  # fmt: skip
        if not isinstance(symmetry, Symmetry):
            raise ArgumentError(f"symmetry is a Symmetry, not {type(symmetry).__name__}")
        given = list(sectors.items()) if isinstance(sectors, Mapping) else _pairs(sectors)
        found = tuple([(symmetry.read(charge), extent) for charge, extent in given])
        if not isinstance(sign, int) or sign not in (1, -1):
            raise ArgumentError(f"sign is 1 or -1, not {sign!r}")
        if not found or len(dict(found)) < len(found):
            raise ArgumentError(f"a leg has one sector at least, each charge once: {given}")
        for charge, extent in found:
            if not isinstance(extent, int) or extent < 1:
                raise ShapeError(f"the sector of charge {charge} has extent {extent!r}, not 1 or more")
        for name, value in (("symmetry", symmetry), ("sectors", found), ("sign", sign), ("parts", parts)):
            object.__setattr__(self, name, value)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.symmetry, self.sectors, self.sign))

    @cached_property
    def extents(self) -> dict[Any, int]:
        """The extent of each charge."""
        return dict(self.sectors)

    @property
    def extent(self) -> int:
        """That of the dense mode."""
        return sum(self.extents.values())

    @cached_property
    def dual(self) -> Leg:
        """The leg that it may be contracted with."""
        return Leg(self.symmetry, self.sectors, -self.sign, tuple([part.dual for part in self.parts]))

    @classmethod
    def fused(cls, legs: Sequence[Leg], sign: int = 1) -> Leg:
        """One leg for several, the last of which varies fastest within the sectors of each charge."""
        if not legs:
            raise ArgumentError("a fused leg is of one leg at least")
        sectors: dict[Charge, int] = {}
        for charge, size in _combined(legs, sign).values():
            sectors[charge] = sectors.get(charge, 0) + size
        return cls(legs[0].symmetry, sectors, sign, tuple(legs))

    @cached_property
    def places(self) -> dict[tuple[Any, ...], ChargePlace]:
        """For each combination of charges of the `parts` where it lies."""
        filled: dict[Charge, int] = {}
        found: dict[tuple[Any, ...], ChargePlace] = {}
        for key, (charge, size) in _combined(self.parts, self.sign).items():
            start = filled.get(charge, 0)
            found[key] = ChargePlace(charge, start, size)
            filled[charge] = start + size
        return found


def _combined(legs: Sequence[Leg], sign: int) -> dict[tuple[Charge, ...], tuple[Charge, int]]:
    """Combinations of charges of some legs, with the charge of a leg of that sign for all, and how many indices."""
    symmetry = legs[0].symmetry
    if any(leg.symmetry != symmetry for leg in legs):
        raise ArgumentError("legs of different symmetries meet in one tensor")
    found = {}
    for sectors in itertools.product(*[leg.sectors for leg in legs]):
        key = tuple([charge for charge, _ in sectors])
        charge = symmetry.sum([(sign * leg.sign, each) for leg, each in zip(legs, key, strict=True)])
        found[key] = charge, math.prod([extent for _, extent in sectors])
    return found


def exchange_sign(symmetry: Symmetry, charges: Sequence[Any], order: Sequence[int]) -> int:
    """The sign of putting the legs of these charges into an order: that of exchanging fermions."""
    odd = [at for at in order if symmetry.is_odd(charges[at])]
    return -1 if sum(x > y for x, y in itertools.combinations(odd, 2)) % 2 else 1
