"""Every door under every event: after a dozen calls, one with all that is kept is as one with all of it forgotten.

Both give the same bits, types, strides, graphs of gradients and errors, and so do the calls after the event. The
library is as users have it: tiers, self-test, guard and kernels are on. `doors` and `events` are the two sides.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from doors import DOORS, Call, Door, Scene
from events import EVENTS, Event
from forgetting import forgetting
from support import own_cache
from ways_to_call import flat
from weft.planner import validity

pytestmark = pytest.mark.early  # a long file
CALLS = 12  # the tenth is the first that is written in torch's operations, where few elements are
ROUNDED = {torch.float16: 2**-8, torch.bfloat16: 2**-5, torch.float32: 1e-5, torch.complex64: 1e-5}


@pytest.fixture(autouse=True)
def defaults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """All that users have, with a cache of its own."""
    own_cache(monkeypatch, tmp_path)
    for name in ("WEFT_TIERS", "WEFT_SELFTEST", "WEFT_GUARD", "WEFT_KERNELS"):
        monkeypatch.delenv(name, raising=False)
    yield
    validity.outdate()


class Seen(NamedTuple):
    """What a program sees of a tensor."""

    kind: type
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: str
    required: bool
    value: Any


def seen(tensor: Tensor) -> Seen:
    required = tensor.requires_grad
    value = None if tensor.is_meta else tensor.detach().as_subclass(Tensor).resolve_conj().resolve_neg().clone().cpu()
    place = tensor.device.type
    return Seen(type(tensor), tensor.dtype, tuple(tensor.shape), tensor.stride(), place, required, value)


Outcome = tuple[list[Seen], list[Seen | None]] | str


def outcome(make: Callable[[list[Tensor]], Any], operands: list[Tensor]) -> Outcome:
    """What a call gives: results and the gradients of its operands, or its error."""
    try:
        found = flat(make(operands))
        results = [seen(each) for each in found]
        leaves = [each for each in operands if each.requires_grad and each.is_leaf]
        smooth = [each for each in found if each.requires_grad and not each.is_meta]
        if not (leaves and smooth):
            return results, []
        grads = torch.autograd.grad(smooth, leaves, [_weights(each) for each in smooth], allow_unused=True)
        return results, [None if each is None else seen(each)._replace(strides=()) for each in grads]
    except Exception as error:
        return f"{type(error).__name__}: {re.sub(r'0x[0-9a-f]+', '0x', str(error))}"


def _weights(tensor: Tensor) -> Tensor:
    """A gradient of whole numbers."""
    return (torch.arange(tensor.numel(), device=tensor.device) % 5 - 2).to(tensor.dtype).view(tensor.shape)


def agree(kept: Outcome, forgotten: Outcome, exact: bool) -> None:
    if isinstance(kept, str) or isinstance(forgotten, str):
        assert kept == forgotten
        return
    for one, other in zip(kept, forgotten, strict=True):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert (left is None) == (right is None)
            if left is None or right is None:
                continue
            assert left[:-1] == right[:-1]
            if left.value is not None and right.value is not None:
                rtol = 0.0 if exact else ROUNDED.get(left.dtype, 1e-11)
                largest = right.value.abs().double().nan_to_num(0, 0, 0).max() if rtol and right.value.numel() else 0
                room = rtol * float(largest)
                torch.testing.assert_close(left.value, right.value, rtol=rtol, atol=room, equal_nan=True)


def operands_of(door: Door, scene: Scene, event: Event, grads: bool, call: int) -> list[Tensor]:
    found = [scene.numbers(*shape, seed=10 * call + at) for at, shape in enumerate(door.operands)]
    if event.fine:
        found = [torch.sin(each * 1.37 + 0.1) for each in found]
    return [each.requires_grad_(grads) for each in found]


def cell(door: Door, event: Event, device: str, grads: bool, kept: bool) -> list[Outcome]:
    """The call under the event, and one after it."""
    scene = Scene(device)
    with scene.stack:
        made: Call | None = None
        last = operands_of(door, scene, event, grads, 99)
        if kept:
            made = door.make(scene)
            for at in range(CALLS // 2):  # other tensors, and then the same ones
                outcome(lambda x: made(*x), operands_of(door, scene, event, grads, at))
            for _ in range(CALLS // 2 + 1):
                outcome(lambda x: made(*x), last)
        elif "parameters" in door.traits:  # there are some, which an event may write
            door.make(scene)
        if event.change is not None:
            event.change(scene)
        first = made or door.make(scene)
        under = outcome(lambda x: event.around(scene, first, x), last)
        second = made or door.make(scene)
        after = outcome(lambda x: second(*x), operands_of(door, scene, event, grads, 98))
    return [under, after]


@pytest.mark.one_of(6)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("door", DOORS)
def test_a_call_is_as_if_none_had_come_before(door: str, event: str, device: str) -> None:
    the_door, the_event = DOORS[door], EVENTS[event]
    if reason := the_event.reason(the_door.traits, device):
        pytest.skip(reason)
    exact = the_door.exact and not the_event.fine
    for grads in (False, True) if the_event.grads and "jax" not in the_door.traits else (False,):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kept = cell(the_door, the_event, device, grads, kept=True)
            with forgetting():
                forgotten = cell(the_door, the_event, device, grads, kept=False)
        for one, other in zip(kept, forgotten, strict=True):
            agree(one, other, exact)
