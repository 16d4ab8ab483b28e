"""What happens before a call of a program or around it: the events of `test_doors_and_events.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

import doors
import ways_to_call as ways
import weft
from doors import Scene

#: Why doors with a trait are without an event.
WHY = {
    "alone": "a sweep makes its own tensors of double precision",
    "bound": "a bound call has operands of its own",
    "copies": "the door copies its operand, and torch's copy of freed memory ends the process",
    "exponent": "its scale is copied between devices when it is first planned, which no capture takes",
    "reuse": "no version shows what a fused optimizer writes to a tensor that requires no gradient: `refresh()` does",
    "signals": "a signal within XLA's call comes again after it: tests/jax/test_handler.py",
    "jax": "arrays of JAX have nothing of torch's tensors",
    "ranks": "process groups read values, and outlive no fork",
}


class Event(NamedTuple):
    """`around` makes the call; `change` is made before it, and stays. `only`, `without`: traits of doors that it is
    for, or not for. `fine`: values are no whole numbers, as it is about how they are rounded.
    """

    around: ways.Around = ways.plainly
    change: Callable[[Scene], object] | None = None
    only: str = ""
    without: str = ""
    fine: bool = False
    gpu: bool | None = None  # for a GPU alone, or for a CPU alone
    grads: bool = True  # also of operands that require gradients

    def reason(self, traits: frozenset[str], device: str) -> str:
        """Why a door has no such event; empty where it has."""
        if self.gpu is not None and self.gpu is not (device == "cuda"):
            return f"it is for a {'GPU' if self.gpu else 'CPU'} alone"
        if self.only and self.only not in traits:
            return f"nothing of this call is {self.only}"
        if met := traits & set(self.without.split()):
            return "; ".join(WHY[each] for each in sorted(met))
        if device == "cuda" and "jax" in traits:
            return "JAX is tested on a CPU here"
        return ""


EVENTS: dict[str, Event] = {
    "nothing": Event(),
    "autocast": Event(ways.within(lambda scene: torch.autocast(scene.device, torch.bfloat16)), fine=True),
    "precision": Event(ways.within(lambda _: weft.precision("ieee_bound")), fine=True),
    "no_grad": Event(ways.within(lambda _: torch.no_grad())),
    "inference mode": Event(ways.within(lambda _: torch.inference_mode())),
    "a tangent in place": Event(ways.tangent, without="jax bound", grads=False),
    "vmap": Event(ways.vmap, without="jax bound alone", grads=False),
    "grad": Event(ways.grad, without="jax bound alone", grads=False),
    "jvp": Event(ways.jvp, without="jax bound alone", grads=False),
    "a dispatch mode": Event(ways.within(lambda _: ways.Listening())),
    "fake tensors": Event(ways.fake, without="jax bound alone ranks", grads=False),
    "meta tensors": Event(ways.with_operands(lambda x: x.to("meta")), without="jax bound alone", grads=False),
    "capture": Event(ways.captured, gpu=True, without="alone exponent jax ranks", grads=False),
    "fork": Event(ways.forked, gpu=False, without="jax ranks", grads=False),
    "another thread": Event(ways.in_a_thread),
    "number of threads": Event(ways.other_threads),
    "a schedule is stored": Event(change=ways.store_a_schedule),
    "families fail": Event(change=ways.fail_families),
    "a global": Event(change=lambda _: doors.change_global(), only="functions"),
    "a closure's list": Event(change=lambda scene: scene.box.__setitem__(0, 0.25), only="functions"),
    "an attribute": Event(change=lambda scene: setattr(scene.held, "shift", 3.0), only="functions"),
    "a module's number": Event(change=lambda scene: setattr(scene.module, "negative_slope", 0.25), only="functions"),
    "parameters": Event(change=ways.write_parameters, only="parameters"),
    "another vjp": Event(change=lambda scene: setattr(scene, "algebra", doors.product_sum(2.0)), only="algebra"),
    "out is an operand": Event(ways.aliased, only="out"),
    "out overlaps an operand": Event(ways.partly_aliased, only="out"),
    **{
        f"{off} bytes off": Event(ways.with_operands(ways.shifted(off)), without="jax bound")
        for off in (2, 4, 8, 16, 32, 64)
    },
    "a conjugate": Event(ways.with_operands(lambda x: torch.complex(x, x).conj()), without="jax bound alone"),
    "a negative view": Event(ways.with_operands(lambda x: torch.complex(x, x).conj().imag), without="jax"),
    "other strides": Event(ways.with_operands(ways.transposed), without="jax"),
    "strides with gaps": Event(ways.with_operands(ways.spread), without="jax"),
    "memory used again": Event(ways.freed),
    "storage resized": Event(ways.resized, without="jax bound copies", grads=False),
    "other memory": Event(ways.moved),
    "a subclass": Event(ways.with_operands(lambda x: x.as_subclass(ways.Own)), without="jax"),
    "a parameter": Event(
        ways.with_operands(lambda x: torch.nn.Parameter(x.detach())), without="jax", grads=False
    ),
    "shortened sums": Event(ways.within(ways.tf32), fine=True),
    "deterministic": Event(
        ways.setting(True, torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms)
    ),
    "default type": Event(ways.setting(torch.float64, torch.get_default_dtype, torch.set_default_dtype)),
    "default device": Event(ways.within(lambda _: torch.device("meta"))),
    "requires_grad flipped": Event(ways.flip, without="jax"),
    "an optimizer's step": Event(ways.step, without="jax reuse"),
    "the cache cleared": Event(change=ways.clear_the_cache),
    **{f"Ctrl-C after {at}": Event(ways.interrupted(at), without="signals") for at in (1, 4, 16, 64, 256)},
    "checkpoint": Event(ways.checkpoint, without="jax"),
    "anomalies": Event(ways.within(lambda _: torch.autograd.detect_anomaly(check_nan=False))),
}  # fmt: skip
