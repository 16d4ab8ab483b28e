"""The last calls that said the same, known again by one look of torch's own guards.

A signature takes a dozen attributes of each tensor, asked for one by one. What `torch.compile` guards its inputs by
says as much in one call: type, device, dtype, extents, strides, the bits of conjugate and negative views, whether a
gradient is required, and transforms that would see the call. Aside of it stand addresses, and nested tensors, on which
torch's guards end the process.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import count
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad

from weft.base.arrays import dispatch_modes, is_transforming
from weft.planner.validity import call_state
from weft.plans.call_cache import LOW

_ALIGNED = 15  # bits of addresses that are 0 in calls that are kept here
MOST = 4  # calls that say the same: a layer's equation comes with the weights of several
PATIENCE = 64  # misses of what says the same, after which another call takes the place of the oldest
_TYPES = (torch.Tensor, torch.nn.Parameter)


class LateCall(NamedTuple):
    """A known call, and what its tensors are guarded by."""

    guards: Any
    state: tuple[int, int, str]
    gradients: bool | None  # whether they were recorded; None where no tensor requires one
    call: Any


class Lately:
    """Calls by all that they say but for their tensors: a few for each such words, of at most `size`."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._calls: dict[Hashable, tuple[LateCall, ...]] = {}
        self._misses: dict[Hashable, Any] = {}

    def find(self, words: Hashable, tensors: Sequence[Any]) -> Any:
        """The call of these words on tensors that lie as these do; None where there is none.

        Raises `TypeError` for words without a hash.
        """
        if len(tensors) == 2 and tensors[0] is tensors[1]:  # guards tell no two names of one tensor apart
            words, tensors = (words, "twice"), tensors[:1]
        known = self._calls.get(words)
        if known is None or dispatch_modes() or forward_ad._current_level >= 0:
            return None
        low, bits = LOW, 0
        try:
            for tensor in tensors:
                if tensor.is_nested:
                    return None
                address = tensor.data_ptr()
                bits |= address
                if address < low:
                    return None
        except (AttributeError, RuntimeError):  # arrays; sparse tensors and others without memory of their own
            return None
        if bits & _ALIGNED:
            return None
        now, recording = call_state(), torch.is_grad_enabled()
        for each in known:
            fits = each.state == now and (each.gradients is None or each.gradients is recording)
            if fits and each.guards.check(*tensors):
                return each.call
        return None

    def note(self, words: Hashable, tensors: Sequence[torch.Tensor], call: Any) -> None:
        """Keep a call that was found by its signature: it may come again."""
        if dispatch_modes() or is_transforming() or forward_ad._current_level >= 0:
            return
        if len(tensors) == 2 and tensors[0] is tensors[1]:  # guards tell no two names of one tensor apart
            words, tensors = (words, "twice"), tensors[:1]
        now, known = call_state(), self._calls.get(words, ())
        if known and known[0].state != now:
            known = ()
            self._misses[words] = count()
        if len(self._misses) >= 2 * self._size:
            self._misses = {}
        misses = next(self._misses.setdefault(words, count()))
        if misses >= MOST and misses % PATIENCE:
            return
        if not all(type(tensor) in _TYPES and not tensor.data_ptr() & _ALIGNED for tensor in tensors):
            return
        guards = guards_of(tensors)
        if guards is None:
            return
        gradients = torch.is_grad_enabled() if any(tensor.requires_grad for tensor in tensors) else None
        if len(self._calls) >= self._size and words not in self._calls:
            self._calls = {}
        self._calls[words] = (LateCall(guards, now, gradients, call), *known[: MOST - 1])


def late_words(
    words: Hashable, a: Any, b: Any, c: Any, beside: Sequence[Any], out: Any
) -> tuple[Hashable, tuple[Any, ...]]:
    """The words of a call with the tensors that there are, and these, as `Lately` takes them; `b` may be None, too."""
    if c is None and out is None:
        return (words, b is None, True, True), (a, *beside) if b is None else (a, b, *beside)
    pair = (a,) if b is None else (a, b)
    more = (c, out) if c is not None and out is not None else (out,) if c is None else (c,)
    return (words, b is None, c is None, out is None), (*pair, *more, *beside)


def guards_of(tensors: Sequence[torch.Tensor]) -> Any | None:
    """torch's guards of these tensors; they have no public name. None where there are none, or one comes twice."""
    if len({id(tensor) for tensor in tensors}) < len(tensors):
        return None
    try:
        return torch._C._dynamo.guards.TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
    except (AttributeError, TypeError, RuntimeError):
        return None
