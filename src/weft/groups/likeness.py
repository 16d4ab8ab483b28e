"""Whether a list of tensors has the layouts of an earlier one, checked by one call for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_, itemgetter
from typing import Any

import torch

from weft.engine.calls import guards_of

_TYPES = {torch.Tensor, torch.nn.Parameter}


class Likeness:
    """A check that a plan may take other tensors in the place of those it was made of.

    It compares what `torch.compile` guards its inputs by: type, device, dtype, extents, strides, the bits of conjugate
    and negative views, and whether a gradient is required. torch compares thousands of tensors in one call, where
    Python takes ten times as long. Its guards want every tensor once, so which tensors of a list are the same is found
    beforehand. No tensor is kept.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._count = len(tensors)
        first: dict[int, int] = {}
        for at, tensor in enumerate(tensors):
            first.setdefault(id(tensor), at)
        again = [(at, first[id(tensor)]) for at, tensor in enumerate(tensors) if first[id(tensor)] != at]
        own = [tensors[at] for at in first.values()]
        self._once = itemgetter(*first.values()) if again and len(own) > 1 else None
        self._again = (itemgetter(*(at for at, _ in again)), itemgetter(*(at for _, at in again))) if again else None
        self._one = again != [] and len(own) == 1
        self._guards = guards_of(own) if set(map(type, own)) <= _TYPES else None
        self._leaves = any(tensor.requires_grad for tensor in own) if self._guards is not None else False
        #: Whether some are conjugate or negative views, whose memory is not what they say.
        self.views = any(tensor.is_conj() or tensor.is_neg() for tensor in own) if self._guards is not None else False

    def holds(self, tensors: Sequence[Any]) -> bool:
        """Whether these have the layouts of those and none requires a gradient; False where torch has no guards."""
        if self._guards is None or len(tensors) != self._count or (self._leaves and torch.is_grad_enabled()):
            return False
        if self._again is not None:
            later, earlier = (side(tensors) for side in self._again)
            same = map(is_, later, earlier) if isinstance(later, tuple) else (later is earlier,)
            if not all(same):
                return False
        if self._once is not None:
            tensors = self._once(tensors)
        return bool(self._guards.check(*(tensors[:1] if self._one else tensors)))
