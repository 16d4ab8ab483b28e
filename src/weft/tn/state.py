"""Matrix product states and their canonical forms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from weft.base.figures import counted
from weft.base.memory import check_room
from weft.blocks import ChargedTensor, Leg
from weft.blocks.weights import relative
from weft.errors import ArgumentError, ShapeError
from weft.spec.arguments import reads
from weft.tn.operator import MPO, as_operator, check_chain, common, site_leg
from weft.tn.tensors import contract, edge, norm, qr, scalar, split_at


class MPS:
    """A matrix product state: tensors (left, site, right), the first `left` and the last `right` of extent 1.

    `center` is the site around which the state is canonical, if it is: tensors before it are isometries from the left,
    tensors behind it from the right. Methods that change tensors change this object.

    The tensors of a state that conserves charges are `weft.blocks.ChargedTensor`, with legs of signs 1, 1, -1.
    """

    @reads("tn.MPS.__init__")
    def __init__(self, tensors: Sequence[torch.Tensor | ChargedTensor], center: int | None = None) -> None:
        self.tensors: list[Any] = list(tensors)
        check_chain(self.tensors, 3)
        self.center = center

    @classmethod
    @reads("tn.MPS.random")
    def random(
        cls, sites: int, extent: int, bond: int, *, dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu", seed: int = 0,
    ) -> MPS:  # fmt: skip
        """A random state of norm 1, canonical around site 0; `extent` of each site, bonds of `bond` at most."""
        if min(sites, extent, bond) < 1:
            raise ArgumentError(f"{sites} sites of extent {extent} with bonds of {bond}: each is 1 at least")
        check_room(torch.device("cpu"), sites << 10)  # what a tensor takes beside its elements
        generator = torch.Generator().manual_seed(seed)
        bonds = [min(bond, extent**at, extent ** (sites - at)) for at in range(sites + 1)]
        tensors = [
            torch.randn(bonds[at], extent, bonds[at + 1], dtype=dtype, generator=generator, device="cpu").to(device)
            for at in range(sites)
        ]
        state = cls(tensors).canonicalize(0)
        state.tensors[0] = state.tensors[0] / norm(state.tensors[0])
        return state

    @classmethod
    @reads("tn.MPS.product")
    def product(
        cls, places: Sequence[int], extent: int | Leg = 2, *, dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> MPS:  # fmt: skip
        """The product state with site i in basis state ``places[i]``, one of `extent`.

        A `weft.blocks.Leg` as `extent` gives each basis state a charge: the state conserves the sum of those here.
        """
        count = extent.extent if isinstance(extent, Leg) else extent
        for site, place in enumerate(places):
            if not 0 <= place < count:
                raise ShapeError(f"site {site} is in basis state {place}, there are {count}: 0 to {count - 1}")
        eye = torch.eye(count, dtype=dtype, device=device)
        dense = [eye[place].reshape(1, count, 1) for place in places]
        if not isinstance(extent, Leg):
            return cls(dense, 0)
        leg = site_leg(extent)
        charges = [charge for charge, size in leg.sectors for _ in range(size)]
        bonds = [Leg(leg.symmetry, {leg.symmetry.zero: 1})]
        for place in places:
            before = bonds[-1].sectors[0][0]
            bonds.append(Leg(leg.symmetry, {leg.symmetry.sum([(1, before), (1, charges[place])]): 1}))
        tensors = [ChargedTensor.from_dense(tensor, [left, leg, right.dual])
                   for tensor, left, right in zip(dense, bonds[:-1], bonds[1:], strict=True)]  # fmt: skip
        return cls(tensors, 0)

    def plain(self) -> MPS:
        """This state with dense tensors."""
        dense = [each.to_dense() if isinstance(each, ChargedTensor) else each for each in self.tensors]
        return MPS(dense, self.center)

    def __len__(self) -> int:
        return len(self.tensors)

    @property
    def bonds(self) -> list[int]:
        """Extents of the bonds between sites."""
        return [tensor.shape[-1] for tensor in self.tensors[:-1]]

    def copy(self) -> MPS:
        """Another object of the same tensors, which no method writes to."""
        return MPS(self.tensors, self.center)

    @reads("tn.MPS.canonicalize")
    def canonicalize(self, center: int) -> MPS:
        """Make the state canonical around a site, by QR factorisations; returns this object."""
        if not 0 <= center < len(self):
            raise ArgumentError(f"site {center} of {len(self)}")
        first, last = (0, len(self) - 1) if self.center is None else (self.center, self.center)
        for at in range(first, center):
            self.tensors[at], rest = qr(self.tensors[at], 2, "left")
            self.tensors[at + 1] = contract("ab,bsr->asr", rest, self.tensors[at + 1])
        for at in range(last, center, -1):
            rest, self.tensors[at] = qr(self.tensors[at], 1, "right")
            self.tensors[at - 1] = contract("lsa,ab->lsb", self.tensors[at - 1], rest)
        self.center = center
        return self

    @reads("tn.MPS.inner")
    def inner(self, other: MPS) -> torch.Tensor:
        """<self|other>, a 0-d tensor."""
        if len(self) != len(other):
            raise ShapeError(f"states of {len(self)} and {len(other)} sites")
        first = other.tensors[0]
        total = edge(first, [(first, 0, False), (first, 0, True)])
        for mine, theirs in zip(self.tensors, other.tensors, strict=True):
            total = _step(total, theirs, bra=mine)
        return scalar(total)

    def norm(self) -> torch.Tensor:
        """The norm, a real 0-d tensor."""
        if self.center is not None:
            return norm(self.tensors[self.center])
        return self.inner(self).real.clamp_min(0).sqrt()

    @reads("tn.MPS.expectation")
    def expectation(self, operator: MPO | torch.Tensor, site: int | None = None) -> torch.Tensor:
        """<self|operator|self> / <self|self>, a 0-d tensor: of an `MPO`, or of a matrix (out, in) on one site."""
        if isinstance(operator, MPO):
            return self._between(operator) / self.inner(self)
        if site is None or not 0 <= site < len(self):
            raise ArgumentError(f"a matrix acts on one site of {len(self)}, not on {site}")
        state = self.plain()
        changed = state.copy()
        matrix = as_operator(operator, state.tensors[site].dtype)
        changed.tensors[site] = contract("ps,lsr->lpr", matrix, state.tensors[site])
        return state.inner(changed) / state.inner(state)

    @reads("tn.MPS.correlations")
    def correlations(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        """<self|first_i second_j|self> / <self|self> for all sites i and j, of two matrices (out, in): (sites, sites).

        Both on one site are their product, ``first @ second``.
        """
        tensors = self.plain().tensors
        dtype, count = tensors[0].dtype, len(self)
        kind = common([dtype, first.dtype, second.dtype])
        pair = [as_operator(matrix, kind) for matrix in (first, second)]
        both = contract("ab,bc->ac", *pair)
        left = tensors[0].new_ones(1, 1)
        rights = [left]
        for tensor in reversed(tensors[1:]):
            half = contract("qr,bsr->bsq", rights[-1], tensor)
            rights.append(contract("bsq,asq->ab", half, tensor.conj()))
        rights.reverse()
        found = pair[0].new_empty(count, count)
        for i, tensor in enumerate(tensors):
            found[i, i] = _closed(_step(left, tensor, both), rights[i])
            begun = [_step(left, tensor, matrix) for matrix in pair]
            for j in range(i + 1, count):
                found[i, j] = _closed(_step(begun[0], tensors[j], pair[1]), rights[j])
                found[j, i] = _closed(_step(begun[1], tensors[j], pair[0]), rights[j])
                begun = [_step(each, tensors[j]) for each in begun]
            left = _step(left, tensor)
        return found / left[0, 0]

    @reads("tn.MPS.entropy")
    def entropy(self, bond: int) -> torch.Tensor:
        """The von Neumann entropy of the bond between sites `bond` and ``bond + 1``, in nats: a real 0-d tensor.

        ``-sum p log p`` over the squares p of the singular values, whose sum is scaled to 1.
        """
        if not 0 <= bond < len(self) - 1:
            raise ArgumentError(f"bond {bond} of {counted(len(self) - 1, 'bond')}")
        tensor = self.copy().canonicalize(bond).tensors[bond]
        values = split_at(tensor, 2, None, 0.0, "right")[1]
        weights = relative(values)
        return torch.special.entr(weights / weights.sum()).sum().to(values.dtype)

    @reads("tn.MPS.sample")
    def sample(self, count: int, *, seed: int = 0) -> torch.Tensor:
        """Basis states drawn with their probabilities, independently: (count, sites), int64.

        Site by site from the left, each by its probability given those before (A. J. Ferris, G. Vidal,
        arXiv:1201.3974): all draws in one batch.
        """
        if count < 0:
            raise ArgumentError(f"count is 0 or more, not {count}")
        state = self.plain().canonicalize(0)
        ahead = state.tensors[0].new_ones(count, 1)  # of each draw the amplitudes of the bond
        generator = torch.Generator(ahead.device).manual_seed(seed)
        drawn = []
        for tensor in state.tensors:
            every = contract("ca,asr->csr", ahead, tensor)
            weights = every.abs().square().sum(2)
            place = torch.multinomial(weights, 1, generator=generator) if count else weights.new_empty(0, 1).long()
            chosen = every.take_along_dim(place[:, :, None], 1)[:, 0]
            ahead = chosen / torch.linalg.vector_norm(chosen, dim=1, keepdim=True)
            drawn.append(place)
        return torch.cat(drawn, 1)

    def to_dense(self) -> torch.Tensor:
        """All amplitudes, a dimension for each site; for small chains."""
        tensors = self.plain().tensors
        total = tensors[0].new_ones(1, 1)
        for tensor in tensors:
            total = contract("xa,asr->xsr", total, tensor)
            total = total.reshape(-1, tensor.shape[-1])
        return total.reshape([tensor.shape[1] for tensor in tensors])

    def _between(self, operator: MPO) -> torch.Tensor:
        if len(self) != len(operator):
            raise ShapeError(f"an operator of {counted(len(operator), 'site')} on a state of {len(self)}")
        left = outside(self, operator, 0)
        for tensor, piece in zip(self.tensors, operator.tensors, strict=True):
            left = grow_left(left, tensor, piece)
        return scalar(left)


def _step(left: Any, tensor: Any, matrix: torch.Tensor | None = None, bra: Any = None) -> Any:
    """The overlap (bra, ket) with one more site on its right, and a matrix (out, in) on it."""
    half = contract("ab,bsr->asr", left, tensor)
    if matrix is not None:
        half = contract("ps,asr->apr", matrix, half)
    return contract("asr,asq->qr", half, (tensor if bra is None else bra).conj())


def _closed(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return contract("ab,ab->", left, right)


def outside(psi: MPS, operator: MPO, at: int) -> Any:
    """The environment (bra, operator, ket) before the first site, where `at` is 0, or behind the last, where it is -1:
    it has the outer modes of their tensors, the first or the last."""
    ket, piece = psi.tensors[at], operator.tensors[at]
    return edge(ket, [(ket, at, False), (piece, at, True), (ket, at, True)])


def grow_left(left: Any, tensor: Any, piece: Any) -> Any:
    """The environment (bra, operator, ket) with one more site on its right."""
    half = contract("awl,lsr->awsr", left, tensor)
    half = contract("awsr,wpsv->apvr", half, piece)
    return contract("apvr,apb->bvr", half, tensor.conj())


def grow_right(right: Any, tensor: Any, piece: Any) -> Any:
    """The environment (bra, operator, ket) with one more site on its left."""
    half = contract("bvr,lsr->bvls", right, tensor)
    half = contract("bvls,wpsv->bpwl", half, piece)
    return contract("bpwl,apb->awl", half, tensor.conj())
