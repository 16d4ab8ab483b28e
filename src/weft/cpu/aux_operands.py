"""What functions take beside the value, for one block: views of operands, and coordinates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from weft.cpu.blocking import Span
from weft.cpu.index_groups import Group
from weft.fn import Pointwise
from weft.planner.schedule import AuxTensors
from weft.spec import Contraction

# (shape of a block, the spans it is made of) -> what stands beside its values, each of that shape.
Views: TypeAlias = Callable[[tuple[int, ...], Sequence[Span]], list[torch.Tensor]]
# (values of a block, flat; its shape; its spans) -> the function of them, flat or of that shape.
Apply: TypeAlias = Callable[[torch.Tensor, tuple[int, ...], Sequence[Span]], torch.Tensor]

FIRST = 4  # place of the first auxiliary operand among a mode's strides


class AuxViews:
    """Auxiliary operands of one function along blocks whose dimensions are the modes of `order`, outermost first."""

    def __init__(self, contraction: Contraction, args: Sequence[int], order: Group) -> None:
        self._places = [
            (arg, tuple(contraction.modes[at].strides[FIRST + arg] for at in order), contraction.aux[arg].dtype)
            for arg in args
        ]

    def bind(self, aux: AuxTensors) -> Views:
        """For the tensors of one call."""
        places = [(arg, strides, dtype, aux[arg]) for arg, strides, dtype in self._places]

        def views(shape: tuple[int, ...], spans: Sequence[Span]) -> list[torch.Tensor]:
            found = []
            for arg, strides, dtype, tensor in places:
                start = sum(span.at[FIRST + arg] for span in spans)
                if tensor is None:  # a coordinate: what would be read from a tensor that counts from 0
                    reach = 1 + sum(step * (extent - 1) for step, extent in zip(strides, shape, strict=True))
                    tensor, start = torch.arange(start, start + reach, dtype=dtype, device="cpu"), 0
                else:
                    start += int(tensor.storage_offset())
                found.append(tensor.as_strided(shape, strides, start))
            return found

        return views

    def __bool__(self) -> bool:
        return bool(self._places)


def evaluated(function: Pointwise, values: torch.Tensor, *aux_args: torch.Tensor) -> torch.Tensor:
    """A user's function of a block, of one result; what it returns may be `values` itself, or a view."""
    result = function(values, *aux_args)
    assert isinstance(result, torch.Tensor), "this function has one result"
    return result


def applied(function: Pointwise, aux_args: AuxViews, aux: AuxTensors) -> Apply:
    """The function of a block with what it takes beside the value."""
    if not aux_args:
        return lambda flat, shape, spans: evaluated(function, flat)
    views = aux_args.bind(aux)
    return lambda flat, shape, spans: evaluated(function, flat.view(shape), *views(shape, spans))
