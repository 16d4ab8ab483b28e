"""The one table of known calls: what served a call serves every later one that says the same of tensors alike.

A call is known by its words (the door, the equation, prints of its functions, its options), which have a hash, and by
its tensors. Of these the table looks at

    shapes, and addresses modulo 16 bytes     part of the key
    what torch.compile guards its inputs by   type, device, dtype, strides, conjugate and negative bits, whether a
                                              gradient is required, transforms and autocast that would see the call
    which of them are the same object         guarded too, where any are

and of the process at `call_state`, at autocast's types and at whether gradients are recorded. Whether memory overlaps
is looked at where the call runs. Nothing is kept of calls within a dispatch mode, a transform or a forward level, nor
of tensors without memory. `WEFT_REPLAY=0` keeps nothing: every call is read, checked and planned in full.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from threading import Lock
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from weft.base.arrays import any_autocast, dispatch_modes, is_transformed, is_transforming
from weft.base.forks import free_in_child
from weft.engine.memo import TABLES, keeps
from weft.planner.validity import call_state, generation

_ALIGNED = 15  # bits of an address that count
LOW = 1 << 36  # an address below may be an offset into memory that was freed: torch counts it from 0
_TYPES = {Tensor, Parameter}
_KINDS = ("cpu", "cuda")  # of devices with an autocast of their own

class CallPlace(NamedTuple):
    """Where a call that is not known is kept once it is."""

    key: tuple[Any, ...]  # words, shapes, alignments
    state: tuple[int, int, str]  # before the call was planned: what is outdated meanwhile is never found


class _Entry(NamedTuple):
    """A known call, and what it is guarded by."""

    guards: Any
    state: tuple[int, int, str]
    recording: bool | None  # whether gradients were recorded; None where no tensor requires one
    cast: tuple[Any, ...] | None  # autocast's types; None where it was off, which the guards see
    call: Any


class Calls:
    """Known calls by words and tensors, at most `size` keys of them: the longest not renewed goes first.

    Of the same words and shapes there are at most `alike`, by strides, types and gradients.
    """

    def __init__(self, size: int, alike: int = 8) -> None:
        self._size, self._alike = size, alike
        self._known: dict[Hashable, tuple[_Entry, ...]] = {}
        self._changes = generation()[0]
        self._lock = free_in_child(Lock())
        TABLES.add(self)

    def find(self, words: Hashable, tensors: Sequence[Any]) -> tuple[Any, CallPlace | None]:
        """The call of these words on tensors that are alike, or None and where it is to be kept.

        There is no place within modes of torch, nor for arrays, nested tensors, and elements that have no memory; nor
        without words, for what must be read in each call.
        """
        if words is None or dispatch_modes() or forward_ad._current_level >= 0:
            return None, None
        parts, bits = [words], 0
        try:
            for tensor in tensors:
                address = tensor.data_ptr()
                if address < LOW and tensor.numel():
                    return None, None
                bits |= address
                parts.append(tensor.shape)
        except (AttributeError, RuntimeError, ValueError):  # of a lazy parameter, or a nested tensor
            return None, None
        if bits & _ALIGNED:
            parts.append(tuple([tensor.data_ptr() & _ALIGNED for tensor in tensors]))
        key, now = tuple(parts), call_state()
        try:
            known = self._known.get(key, ())
        except TypeError:  # a word without a hash is refused where it is read
            return None, None
        for entry in known:
            if entry.state == now and entry.guards.check(*tensors):
                recording, cast = entry.recording, entry.cast
                if (recording is None or recording is torch.is_grad_enabled()) and (cast is None or cast == _cast()):
                    return entry.call, None
        return None, CallPlace(key, now)

    def keep(self, place: CallPlace | None, tensors: Sequence[Any], call: Any) -> None:
        """Keep what served a call for the calls to come; nothing where guards could not tell them apart."""
        if call is None or place is None or not keeps() or dispatch_modes() or is_transforming():
            return
        if forward_ad._current_level >= 0 or not {*map(type, tensors)} <= _TYPES:
            return
        if any(each.is_neg() for each in tensors):  # a launch sees memory as it is stored: each call resolves signs
            return
        recording = torch.is_grad_enabled() if any(each.requires_grad for each in tensors) else None
        entry, (key, state) = _Entry(guards_of(tensors), place.state, recording, _cast(), call), place
        with self._lock:
            if state[0] != self._changes:
                self._known, self._changes = {}, state[0]
            others = self._known.pop(key, ())
            while len(self._known) >= self._size:
                del self._known[next(iter(self._known))]
            self._known[key] = (entry, *others[: self._alike - 1])

    def __len__(self) -> int:
        return sum(map(len, self._known.values()))


#: Calls of every door; a plan has a table of its own, which goes with it.
CALLS = Calls(4096)
#: Those of lists, of which each has tables of its own.
CALLS_OF_LISTS = Calls(512)


def _cast() -> tuple[Any, ...] | None:
    """The types that autocast makes operands, and where it is on; None where it is off."""
    if not any_autocast():
        return None
    return tuple([(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in _KINDS])


def present(words: Hashable, a: Any, b: Any, c: Any, out: Any, beside: Sequence[Any]) -> tuple[Hashable, Sequence[Any]]:
    """Words and tensors of a contraction as the table takes them: the words say which of the tensors there are."""
    if c is None and out is None:
        return words, (a, b, *beside)
    if out is None:
        return (words, "c"), (a, b, c, *beside)
    if c is None:
        return (words, "out"), (a, b, out, *beside)
    return (words, "c, out"), (a, b, c, out, *beside)


def guards_of(tensors: Sequence[Tensor]) -> Any:
    """torch's guards of tensors, which have no public name; where there are none, their signature."""
    if len({*map(id, tensors)}) < len(tensors):
        return _Repeated(tensors)
    try:
        return torch._C._dynamo.guards.TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
    except (AttributeError, TypeError, RuntimeError):
        return _Signature(tensors)


class _Repeated:
    """Guards of tensors some of which are one object: torch's tell no two names of one apart."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        first = {id(each): at for at, each in reversed([*enumerate(tensors)])}
        self._same = [(at, first[id(each)]) for at, each in enumerate(tensors) if first[id(each)] != at]
        self._distinct = sorted(first.values())
        self._guards = guards_of([tensors[at] for at in self._distinct])

    def check(self, *tensors: Tensor) -> bool:
        same = all(tensors[at] is tensors[first] for at, first in self._same)
        return same and bool(self._guards.check(*[tensors[at] for at in self._distinct]))


class _Signature:
    """Guards of tensors in Python: what torch's look at, and autocast, which these see."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._facts = self._of(tensors)

    def check(self, *tensors: Tensor) -> bool:
        return self._facts == self._of(tensors)

    @staticmethod
    def _of(tensors: Sequence[Tensor]) -> tuple[Any, ...]:
        facts = [
            (type(each), each.shape, each.stride(), each.dtype, each.device, each.is_conj(), each.is_neg(),
             each.requires_grad, each.is_inference(), is_transformed(each))
            for each in tensors
        ]  # fmt: skip
        return facts, _cast()
