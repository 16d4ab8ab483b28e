"""Tensors that conserve charges: all blocks that charges allow, in one buffer."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch

from weft.base.arrays import outside_transforms
from weft.base.caches import BoundedCache
from weft.blocks.charges import Charge, Leg, Symmetry, exchange_sign
from weft.blocks.tensor import BlockTensor, Key, Structure
from weft.blocks.weights import length
from weft.errors import ArgumentError, ShapeError, UnsupportedError
from weft.spec import Notation
from weft.spec.arguments import reads
from weft.spec.dtypes import dtype_name
from weft.spec.notation import label_text, term_text

_RELAID = BoundedCache(256)  # indices and signs by what is relaid


class ChargedTensor:
    """A tensor whose blocks are those in which the charges of its legs, each times the leg's sign, sum to `charge`.

    All of them are there, in one `buffer` in the order of `structure`; ``tensor[charges]`` is a view of one. Gradients
    go through the buffer. `weft.blocks.contract` contracts two of them: legs meet that are each other's dual.

    Of a symmetry with fermions the order of legs counts. A contraction brings the legs that meet next to one another
    first, the last of `a` to the first of `b`, with a sign for each two odd charges that pass one another, and one for
    each odd charge of a leg of sign 1 of `a` that meets one of sign -1 of `b`.

    >>> import torch
    >>> from weft.blocks import ChargedTensor, Leg, U1, contract
    >>> left, right = Leg(U1, {0: 2, 1: 3}), Leg(U1, {0: 4, 1: 1}, sign=-1)
    >>> x = ChargedTensor.random([left, right])
    >>> x.structure.keys, contract("ab,cb->ac", x, x.conj()).legs[1] == left.dual
    (((0, 0), (1, 1)), True)
    """

    @reads("blocks.ChargedTensor")
    def __init__(self, legs: Sequence[Leg], buffer: torch.Tensor, charge: Any = None) -> None:
        self.legs, self.charge = tuple(legs), _charge(legs, charge)
        self.structure = allowed(self.legs, self.charge)
        if buffer.shape != (self.structure.size,):
            raise ShapeError(f"the blocks have {self.structure.size} elements, the buffer is {tuple(buffer.shape)}")
        self.buffer = buffer

    @classmethod
    def over(cls, legs: tuple[Leg, ...], charge: Charge, structure: Structure, buffer: torch.Tensor) -> ChargedTensor:
        """The tensor of a buffer that has the structure of those legs and that charge; nothing is checked."""
        made = cls.__new__(cls)
        made.legs, made.charge, made.structure, made.buffer = legs, charge, structure, buffer
        return made

    @classmethod
    @reads("blocks.ChargedTensor.zeros")
    def zeros(
        cls, legs: Sequence[Leg], charge: Any = None, *, dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> ChargedTensor:  # fmt: skip
        """The tensor of zeros."""
        size = allowed(tuple(legs), _charge(legs, charge)).size
        return cls(legs, torch.zeros(size, dtype=dtype, device=device), charge)

    @classmethod
    @reads("blocks.ChargedTensor.random")
    def random(
        cls, legs: Sequence[Leg], charge: Any = None, *, dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu", seed: int = 0,
    ) -> ChargedTensor:  # fmt: skip
        """Normally distributed elements."""
        size = allowed(tuple(legs), _charge(legs, charge)).size
        generator = torch.Generator().manual_seed(seed)
        return cls(legs, torch.randn(size, dtype=dtype, generator=generator, device="cpu").to(device), charge)

    @classmethod
    @reads("blocks.ChargedTensor.from_dense")
    def from_dense(cls, tensor: torch.Tensor, legs: Sequence[Leg], charge: Any = None) -> ChargedTensor:
        """The blocks of a dense tensor, whose other elements are zero: `ArgumentError` where they are not."""
        shape = tuple([leg.extent for leg in legs])
        if tuple(tensor.shape) != shape:
            raise ShapeError(f"a tensor of shape {tuple(tensor.shape)}, legs of extents {shape}")
        structure = allowed(tuple(legs), _charge(legs, charge))
        blocks = [tensor[place] for place in structure.slices([leg.extents for leg in legs])]
        made = cls(legs, torch.cat([block.reshape(-1) for block in blocks]), charge)
        if int(torch.count_nonzero(made.buffer)) != int(torch.count_nonzero(tensor)):
            raise ArgumentError(f"the tensor has elements that charge {made.charge} forbids")
        return made

    @property
    def symmetry(self) -> Symmetry:
        """That of all legs."""
        if not self.legs:
            raise ArgumentError("a tensor with charges has one leg at least")
        return self.legs[0].symmetry

    @property
    def dtype(self) -> torch.dtype:
        """The type of all blocks."""
        return self.buffer.dtype

    @property
    def device(self) -> torch.device:
        """Where the buffer lies."""
        return self.buffer.device

    @property
    def shape(self) -> torch.Size:
        """The shape of the dense tensor."""
        return torch.Size([leg.extent for leg in self.legs])

    @property
    def blocks(self) -> BlockTensor:
        """The blocks, over the same buffer."""
        return BlockTensor.over(self.structure, self.buffer)

    def __getitem__(self, key: Key) -> torch.Tensor:
        return self.blocks[key]

    def __repr__(self) -> str:
        return f"ChargedTensor({tuple(self.shape)}, {len(self.structure.keys)} blocks, {dtype_name(self.dtype)})"

    def to_dense(self) -> torch.Tensor:
        """The whole tensor, zeros and all."""
        return self.blocks.to_dense([leg.extents for leg in self.legs])

    def to(self, *arguments: Any, **keywords: Any) -> ChargedTensor:
        """This tensor on another device or in another type: the arguments of `torch.Tensor.to`."""
        return self._with(self.buffer.to(*arguments, **keywords))

    def __add__(self, other: ChargedTensor) -> ChargedTensor:
        return self._with(self.buffer + self._like(other).buffer)

    def __sub__(self, other: ChargedTensor) -> ChargedTensor:
        return self._with(self.buffer - self._like(other).buffer)

    def __mul__(self, factor: Any) -> ChargedTensor:
        if isinstance(factor, ChargedTensor) or bool(getattr(factor, "ndim", None)):
            kind = type(factor).__name__
            raise ArgumentError(f"a tensor with charges is multiplied by a number or a 0-d tensor, no {kind} of modes")
        return self._with(self.buffer * factor)

    __rmul__ = __mul__

    def norm(self) -> torch.Tensor:
        """The Frobenius norm, a real 0-d tensor."""
        return length(self.buffer)

    def conj(self, *, closes: bool = False) -> ChargedTensor:
        """The conjugate, with the duals of the legs in the same order.

        Of a symmetry with fermions it is that of ``(a b)* = b* a*``, so that the conjugate of a contraction is the
        contraction of conjugates. `closes`: odd charges of legs of sign -1 change the sign besides, so that the
        contraction with the tensor over all legs is the square of its norm.
        """
        legs, charge = tuple([leg.dual for leg in self.legs]), self.symmetry.sum([(-1, self.charge)])
        made = self.over(legs, charge, allowed(legs, charge), self.buffer.conj().resolve_conj())
        return made._signed(_conjugate_sign(self.legs, closes), ("conj", closes))

    @reads("blocks.ChargedTensor.permute")
    def permute(self, *order: int) -> ChargedTensor:
        """The legs in another order; fermions that pass one another change the sign."""
        if sorted(order) != list(range(len(self.legs))):
            raise ArgumentError(f"{order} is no order of {len(self.legs)} legs")
        legs = [self.legs[at] for at in order]

        def relaid(x: BlockTensor) -> list[torch.Tensor]:
            keys = allowed(tuple(legs), self.charge).keys
            return [x[tuple([key[order.index(at)] for at in range(len(key))])].permute(order) for key in keys]

        moved = self._relaid(legs, relaid, ("permute", order))
        back = [order.index(at) for at in range(len(order))]
        return moved._signed(lambda key: exchange_sign(self.symmetry, key, back), ("permute", order))

    @reads("blocks.ChargedTensor.fuse")
    def fuse(self, first: int, count: int, *, sign: int = 1) -> ChargedTensor:
        """`count` legs from number `first` on as one, of that sign; `split_leg` brings them back."""
        if not 0 <= first < first + count <= len(self.legs):
            raise ArgumentError(f"legs {first} to {first + count - 1} of {len(self.legs)}")
        parts = self.legs[first : first + count]
        leg = Leg.fused(parts, sign)
        legs = (*self.legs[:first], leg, *self.legs[first + count :])
        signed = self._signed(_fusion_sign(parts, sign, first), ("fuse", first, count, sign))

        def relaid(x: BlockTensor) -> list[torch.Tensor]:
            pieces: dict[Key, list[torch.Tensor]] = {}
            for key, block in x.items():
                charge = leg.places[key[first : first + count]].charge
                rest = (*key[:first], charge, *key[first + count :])
                pieces.setdefault(rest, []).append(block.flatten(first, first + count - 1))
            return [torch.cat(pieces[key], first) for key in allowed(legs, self.charge).keys]

        return signed._relaid(legs, relaid, ("fuse", first, count, sign))

    @reads("blocks.ChargedTensor.split_leg")
    def split_leg(self, at: int) -> ChargedTensor:
        """The legs that a leg was fused of, in its place."""
        if not 0 <= at < len(self.legs) or not self.legs[at].parts:
            raise ArgumentError(f"leg {at} was not fused of others")
        leg = self.legs[at]
        legs = (*self.legs[:at], *leg.parts, *self.legs[at + 1 :])
        count = len(leg.parts)

        def relaid(x: BlockTensor) -> list[torch.Tensor]:
            found = []
            for key in allowed(legs, self.charge).keys:
                inner = key[at : at + count]
                place = leg.places[inner]
                block = x[(*key[:at], place.charge, *key[at + count :])].narrow(at, place.start, place.extent)
                found.append(block.unflatten(at, [part.extents[q] for part, q in zip(leg.parts, inner, strict=True)]))
            return found

        whole = self._relaid(legs, relaid, ("split", at))
        return whole._signed(_fusion_sign(leg.parts, leg.sign, at), ("fuse", at, count, leg.sign))

    def _with(self, buffer: torch.Tensor) -> ChargedTensor:
        """Other elements in the same blocks."""
        return self.over(self.legs, self.charge, self.structure, buffer)

    def _like(self, other: ChargedTensor) -> ChargedTensor:
        """The other tensor, where it has the same blocks and legs."""
        if not isinstance(other, ChargedTensor) or other.structure != self.structure:
            raise ShapeError("the blocks of the two tensors are not the same")
        own, others = ([(leg.symmetry, leg.sectors, leg.sign) for leg in each.legs] for each in (self, other))
        if own != others:
            raise ShapeError("the legs of the two tensors differ in symmetry, sectors or sign")
        return other

    def _relaid(
        self, legs: Sequence[Leg], relaid: Callable[[BlockTensor], list[torch.Tensor]], words: tuple[Any, ...]
    ) -> ChargedTensor:
        """The elements in another order: that which `relaid` puts the blocks of their numbers into."""

        def numbers() -> torch.Tensor:
            kind = torch.int32 if self.structure.size < 2**31 else torch.int64
            blocks = BlockTensor.over(self.structure, torch.arange(self.structure.size, dtype=kind, device="cpu"))
            return torch.cat([block.reshape(-1) for block in relaid(blocks)])

        legs, index = tuple(legs), self._made(words, numbers)
        return self.over(legs, self.charge, allowed(legs, self.charge), self.buffer.index_select(0, index))

    def _signed(self, sign: Callable[[Key], int], words: tuple[Any, ...]) -> ChargedTensor:
        """The blocks times a sign each, which their charges say."""
        if not self.symmetry.has_fermions:
            return self

        def signs() -> torch.Tensor:
            each = torch.tensor([sign(name) for name in self.structure.keys], dtype=torch.int8, device="cpu")
            sizes = torch.tensor([math.prod(shape) for shape in self.structure.shapes], device="cpu")
            return each.repeat_interleave(sizes)

        return self._with(self.buffer * self._made(("signs", *words), signs))

    def _made(self, words: tuple[Any, ...], make: Callable[[], torch.Tensor]) -> torch.Tensor:
        """The indices or signs that go with such words, made once."""

        def made() -> torch.Tensor:
            with outside_transforms():
                return make().to(self.buffer.device)

        known: torch.Tensor = _RELAID.made((self.legs, self.charge, words, self.buffer.device), made)
        return known


def _charge(legs: Sequence[Leg], charge: Charge | None) -> Charge:
    if not legs or not all(isinstance(leg, Leg) for leg in legs):
        raise ArgumentError("legs are weft.blocks.Leg, one at least")
    symmetry = legs[0].symmetry
    return symmetry.zero if charge is None else symmetry.read(charge)


@lru_cache(maxsize=1024)
def allowed(legs: tuple[Leg, ...], charge: Charge) -> Structure:
    """The blocks of legs whose charges sum to `charge`; `ShapeError` where there are none."""
    *others, last = legs
    symmetry = last.symmetry
    if any(leg.symmetry != symmetry for leg in legs):
        raise ArgumentError("legs of different symmetries meet in one tensor")
    keys, shapes = [], []
    for sectors in itertools.product(*[leg.sectors for leg in others]):
        rest = symmetry.sum([(1, charge), *[(-leg.sign, q) for leg, (q, _) in zip(others, sectors, strict=True)]])
        final = symmetry.sum([(last.sign, rest)])
        if final in last.extents:
            keys.append((*[q for q, _ in sectors], final))
            shapes.append((*[extent for _, extent in sectors], last.extents[final]))
    if not keys:
        raise ShapeError(f"no charges of the legs sum to {charge}: the tensor has no blocks")
    return Structure.of(keys, shapes)


def _conjugate_sign(legs: Sequence[Leg], closes: bool) -> Callable[[Key], int]:
    """Odd charges stand in the reverse order of what `conj` promises."""
    symmetry, back = legs[0].symmetry, range(len(legs))[::-1]

    def sign(key: Key) -> int:
        found = exchange_sign(symmetry, key, back)
        if closes:
            found *= (-1) ** sum(leg.sign < 0 and symmetry.is_odd(q) for leg, q in zip(legs, key, strict=True))
        return found

    return sign


def _fusion_sign(parts: Sequence[Leg], sign: int, first: int) -> Callable[[Key], int]:
    """So that fused legs contract to what their parts do: within a leg of sign -1 parts stand in reverse order, and
    odd charges of a part of sign -1 change the sign of a leg of 1."""
    symmetry, back = parts[0].symmetry, range(len(parts))[::-1]

    def found(key: Key) -> int:
        own: Any = key[first : first + len(parts)]
        if sign < 0:
            return exchange_sign(symmetry, own, back)
        return int((-1) ** sum(part.sign < 0 and symmetry.is_odd(q) for part, q in zip(parts, own, strict=True)))

    return found


def legs_of(notation: Notation, a: ChargedTensor, b: ChargedTensor) -> tuple[Leg, ...]:
    """The legs of a contraction's result."""
    (first, second), output = notation.inputs, notation.output
    legs = {**dict(zip(second, b.legs, strict=True)), **dict(zip(first, a.legs, strict=True))}
    return tuple([legs[label] for label in output])


def check_legs(notation: Notation, a: ChargedTensor, b: ChargedTensor) -> None:
    """An error that names the label whose legs do not meet."""
    first, second = notation.inputs
    for term, tensor in ((first, a), (second, b)):
        if len(term) != len(tensor.legs):
            raise ShapeError(f"'{term_text(term)}' has {len(term)} labels, the tensor {len(tensor.legs)} legs")
    if a.symmetry != b.symmetry:
        raise ArgumentError("tensors of different symmetries do not meet")
    for label in dict.fromkeys((*first, *second)):
        places = [*first, *second, *notation.output].count(label)
        if places != 2:
            raise UnsupportedError(f"label '{label_text(label)}' stands {places} times: of charges each stands twice")
        if label in first and label in second and a.legs[first.index(label)].sign == b.legs[second.index(label)].sign:
            raise ArgumentError(f"the legs of '{label_text(label)}' have one sign: a leg meets its dual")


def contraction_sign(notation: Notation, a: Sequence[Leg]) -> Callable[[Key, Key], int]:
    """The sign of the product of two blocks of tensors with fermions."""
    (first, second), output = notation.inputs, notation.output
    symmetry = a[0].symmetry
    shared = [label for label in first if label in second]
    free_a, free_b = [x for x in first if x not in second], [x for x in second if x not in first]
    order_a = [first.index(label) for label in (*free_a, *shared)]
    order_b = [second.index(label) for label in (*reversed(shared), *free_b)]
    together = (*free_a, *free_b)
    order_d = [together.index(label) for label in output]
    kets = [first.index(label) for label in shared if a[first.index(label)].sign > 0]

    def sign(x: Key, y: Key) -> int:
        charges = {**dict(zip(first, x, strict=True)), **dict(zip(second, y, strict=True))}
        found = exchange_sign(symmetry, x, order_a) * exchange_sign(symmetry, y, order_b)
        found *= exchange_sign(symmetry, [charges[label] for label in together], order_d)
        return -found if sum(symmetry.is_odd(x[at]) for at in kets) % 2 else found

    return sign
