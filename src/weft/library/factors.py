"""Operands on their way to the product: in place, or converted, passed through functions, summed alone, packed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from weft.fn import Pointwise
from weft.library.functions import FunctionOperands, live_bytes, value_of
from weft.library.scheme import LibraryScheme
from weft.library.views import Frame, Group
from weft.planner.schedule import AuxTensors, Target
from weft.spec import Layout

if TYPE_CHECKING:
    from weft.library.passes import FunctionPass


class OperandFactor:
    """Values of A, B or C with a dimension for each of some modes, in the type of the product, or of its result.

    `shared`: of extent 1 along modes that the operand lacks, but for values of a function.
    """

    def __init__(self, scheme: LibraryScheme, place: int, frame: Frame, modes: Sequence[int], shared: bool) -> None:
        contraction = scheme.contraction
        self.wanted: torch.dtype = scheme.types[place]  # type: ignore[assignment]
        self._value = (*scheme.values, scheme.types.result)[place]
        self._plain = (*scheme.plain, False)[place]
        layout = (contraction.a, contraction.b, contraction.c)[place]
        assert layout is not None, "C is described where it is read"
        self._stored = layout.dtype
        self._conjugate = (contraction.conjugate_a, contraction.conjugate_b, False)[place] and self._stored.is_complex
        self._function: Pointwise | None = (contraction.a_fn, contraction.b_fn, contraction.c_fn)[place]
        alone = (*scheme.roles.alone, ())[place]
        self._summed = tuple(range(-len(alone), 0))
        read = (*modes, *alone)
        self.view = frame.view(read, place, shared=shared or self._function is not None)
        reach = [self.view.shape[at] if self._function is None else frame.extents[mode] for at, mode in enumerate(read)]
        self._full = tuple(reach) or (1,)
        self.shape = tuple(reach[: len(modes)]) or (1,)
        args = (contraction.a_args, contraction.b_args, contraction.c_args)[place]
        self._arguments = FunctionOperands(contraction, args, read, frame)

    @property
    def converted_bytes(self) -> int:
        """Bytes that values take before the product, besides those of the result."""
        count = math.prod(self._full)
        size = self._value.itemsize if self._stored != self._value and not self._is_quiet else 0
        if self._function is not None:
            size += live_bytes(self._function) + self._value.itemsize + self.wanted.itemsize
        elif self._summed and self._conjugate:
            size += self._stored.itemsize
        return count * size

    @property
    def made_bytes(self) -> int:
        return 0 if self._plain else math.prod(self.shape) * self.wanted.itemsize

    @property
    def is_scattered(self) -> bool:
        """Whether values are copied, converted at most, along many modes."""
        from weft.gpu.pointwise.source import is_scattered  # a CPU does without

        if self._function is not None or self._conjugate or self._value not in (self._stored, self.wanted):
            return False
        return is_scattered(*self.view[:2], Layout.contiguous(self.view.shape, self.wanted).strides)

    @property
    def _is_quiet(self) -> bool:
        """Whether values reach the product's type from the stored one in one step."""
        return self._function is None and self._value == self.wanted

    def of(self, tensor: Tensor, aux: AuxTensors) -> Tensor:
        values = self.view.of(tensor)
        if self._plain:
            return values
        values = self._read(values, aux)
        if self._summed:
            if values.dtype.itemsize == 1 and values.dtype.is_floating_point:  # of which torch has no sums on a GPU
                values = values.to(self.wanted)
            return values.sum(self._summed, dtype=self.wanted).reshape(self.shape)
        return values.to(self.wanted)

    def into(self, place: Tensor, tensor: Tensor, aux: AuxTensors) -> None:
        """Write the values of `of` into memory with the layout of the modes."""
        if self._summed:
            place.copy_(self.of(tensor, aux))
        else:
            place.copy_(self._read(self.view.of(tensor), aux))

    def _read(self, values: Tensor, aux: AuxTensors) -> Tensor:
        """Values behind the function, in the type that it sees, or in any that holds the stored ones."""
        if self._conjugate:
            values = values.conj()
        if not self._is_quiet:
            values = values.to(self._value)
        if self._function is not None:
            values = value_of(self._function, values, *self._arguments.of(aux, values.device)).to(self._value)
            values = values.expand(self._full)
        return values


class OperandMatrix(OperandFactor):
    """An operand as a matrix of the product: [batch, free, k] or turned, without a batch of two dimensions."""

    def __init__(
        self, scheme: LibraryScheme, place: int, frame: Frame, groups: tuple[Group, Group, Group], batched: bool
    ) -> None:
        """`groups` are those of the matrix: batch, then rows and columns."""
        batch, rows, columns = groups
        nearest = min((*rows, *columns), key=partial(_distance, scheme, frame, place), default=None)
        self._turned = nearest in rows and bool(columns)  # rows are innermost in memory
        stored = (batch, columns, rows) if self._turned else groups
        modes = [at for group in stored for at in group]
        super().__init__(scheme, place, frame, modes, False)
        self._part = scheme, frame, place, modes
        self._fused: FunctionPass | None = None
        self._reason: str | None = None  # why there is no pass
        self._matrix = tuple([frame.size(group) for group in stored][not batched :])
        self._packs = not self._summed and self._function is None

    def layout(self, of: Layout) -> Layout:
        """The layout of the matrix, in memory of its own."""
        packed = Layout.contiguous(self._matrix, self.wanted)
        return packed.transposed if self._turned else packed

    @property
    def bytes(self) -> int:
        size = math.prod(self._matrix) * self.wanted.itemsize
        return size * (1 if self._packs else 2) + self.converted_bytes

    def prepare(self, target: Target) -> None:
        """Have the operand's function, or its copy along many modes, done in one pass, where a device can."""
        if self._function is not None or (self._packs and self.is_scattered):
            from weft.library.passes import operand_pass

            made = operand_pass(*self._part, target)
            self._fused, self._reason = (None, made) if isinstance(made, str) else (made, None)

    @property
    def state(self) -> str | None:
        """A sentence on what computes the operand's function."""
        return self._fused.state if self._fused is not None else self._reason

    def of(self, tensor: Tensor, aux: AuxTensors) -> Tensor:
        fused = self._fused
        if fused is not None and fused.serves(None, 1):
            found = tensor.new_empty(self._matrix, dtype=self.wanted)
            fused.follow(tensor, found, aux)
        elif self._packs:
            found = tensor.new_empty(self._matrix, dtype=self.wanted)
            self.into(found.view(self.shape), tensor, aux)
        else:
            found = super().of(tensor, aux).reshape(self._matrix)
        return found.mT if self._turned else found


def _distance(scheme: LibraryScheme, frame: Frame, place: int, at: int) -> tuple[float, int]:
    """How far apart the elements of a mode lie; two modes of windows that overlap lie as near, and the longer counts.

    On a GPU, where that is not timed, the first of them does.
    """
    return frame.modes[at].strides[place] or math.inf, -frame.extents[at] if scheme.kind == "cpu" else 0
