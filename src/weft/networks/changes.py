"""Changes between calls: of constants and functions that a network was made of, and of operands that it saw last."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Hashable, Mapping, Sequence
from functools import partial
from threading import RLock
from typing import Any

import torch

from weft.algebra import NAMED
from weft.base.arrays import without_memory, without_neg
from weft.base.kept import Kept, await_making, is_capturing
from weft.errors import call_context
from weft.fn.trace import Watched
from weft.networks.checkpoint import computed
from weft.networks.checks import check_same
from weft.networks.order import orders_of
from weft.networks.plan import NetworkPlan
from weft.networks.steps import StepOptions, as_launched, prepared


class Fixed:
    """Constants of a network and what is made of them alone; and the functions that it was planned with."""

    def __init__(self, plan: NetworkPlan, constants: Mapping[int, torch.Tensor]) -> None:
        """`constants` are operands by place."""
        self.plan, self.constants = plan, dict(constants)
        self._watched = _watched(plan)
        self.may_change = self._watched is not None or bool(constants)
        self.refresh()

    @property
    def operands(self) -> list[torch.Tensor]:
        """Operands of the plan's tree after those of the caller."""
        return [] if self._made is None else self._made.value

    def refresh(self) -> None:
        """Make anew what is made of constants."""
        self._seen = self._now()
        self._made = None
        if self.constants:
            self._made = Kept(partial(_made_constants, self.plan, self.constants), self.plan.settings.device)

    def changed(self) -> bool:
        """Whether a function computes something else by now, or a constant was written."""
        computes = self._watched is not None and self._watched.changed()
        return computes or self._now() != self._seen

    def _now(self) -> list[Hashable]:
        return [state_of(tensor) for tensor in self.constants.values()]


def _made_constants(plan: NetworkPlan, constants: Mapping[int, torch.Tensor]) -> list[torch.Tensor]:
    """Constants as they are, and nodes of the whole tree that are made of them."""
    device, whole, dtypes = plan.settings.device, plan.whole, plan.whole_dtypes
    check_same(plan, constants)
    given = {at: without_neg(tensor) for at, tensor in constants.items()}
    orders = orders_of(whole, dtypes, plan.model) if plan.folded.steps else {}
    extents, asked = whole.graph.extents, StepOptions(plan.settings.of_steps, plan.asked.halves)
    values: dict[int, Any] = {at: whole.graph.operands[at].view(tensor) for at, tensor in given.items()}
    with call_context(lambda: "the constants of a network"):
        for step in plan.folded.steps:
            shape = [extents[label] for label in orders[step.node]]
            values[step.node] = torch.empty(shape, dtype=dtypes[step.node], device=device)
            function = plan.whole_functions.get(step.node)
            a, b, d = (values[node] for node in (step.left, step.right, step.node))
            options = asked.having(epilogue=function) if function is not None else asked
            call = prepared(step, orders, (a, b, None, d), options)
            call.launch(as_launched(a), as_launched(b), None, d, call.one, call.zero, call.aux)
    if plan.folded.steps and not is_capturing(device):
        await_making(device)
    return [given[node] if node in given else values[node] for node in plan.folded.made]


def _watched(plan: NetworkPlan) -> Watched[str] | None:
    """The functions of nodes, and of an algebra of the caller's; None where there are none."""
    algebra = plan.settings.options.algebra
    if algebra is None or NAMED.get(algebra.name) is algebra:
        algebra = None
    if algebra is None and not plan.whole_functions:
        return None
    parts = () if algebra is None else (algebra.combine, algebra.reduce)
    found = Watched((*plan.whole_functions.values(), *parts), partial(computed, plan))
    found.changed()  # from here on
    return found


class Changes:
    """The operands, and their versions, from which a program made the intermediates it holds.

    torch counts a tensor's version up with every operation that writes it in place, and so does weft. Neither sees what
    fused optimizers, `data` of a tensor and other libraries write. Optimizers write what requires a gradient: that
    counts as changed in every call.
    """

    def __init__(self) -> None:
        self.lock = RLock()  # a call holds it from what has changed to the end of its steps
        self._program: Any = None
        self._seen: list[tuple[weakref.ref[torch.Tensor], Any]] = []

    def since(self, program: Any, operands: Sequence[torch.Tensor], said: Collection[int] | None) -> set[int] | None:
        """Places of operands that changed since the last call; None where all steps have to run.

        So they have within the capture of a CUDA graph, whose intermediates are its own.
        """
        if program is not self._program or len(self._seen) != len(operands):
            return None
        self._program = None  # until the call is done
        if is_capturing(program.device):
            return None
        if said is not None:
            return set(said)
        return {
            at for at, (tensor, (known, state)) in enumerate(zip(operands, self._seen, strict=True))
            if known() is not tensor or state is None or state_of(tensor) != state or tensor.requires_grad
        }  # fmt: skip

    def done(self, program: Any, operands: Sequence[torch.Tensor]) -> None:
        """A call has run to its end; one that is captured has not."""
        if is_capturing(program.device):
            return
        self._program = program
        self._seen = [(weakref.ref(tensor), state_of(tensor)) for tensor in operands]


def state_of(tensor: torch.Tensor) -> Hashable | None:
    """All by which a tensor shows that it was written, or given other memory; None for what torch does not count, as in
    inference mode."""
    if tensor.is_inference() or without_memory(tensor):
        return None
    return tensor._version, tensor.data_ptr(), tensor.shape, tensor.stride()
