"""Operands, constants and results of a network's calls: read and checked, and seen to change between calls."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from functools import partial
from threading import RLock
from typing import Any

import torch

from weft.algebra import NAMED
from weft.base.arrays import (
    as_results,
    as_tensor,
    is_scalar,
    like,
    number_tensor,
    source_of,
    without_memory,
    without_neg,
    written,
)
from weft.base.figures import counted, given
from weft.base.kept import Kept, await_making, is_capturing
from weft.base.memory import new_tensor
from weft.engine.ways import is_hidden
from weft.errors import AccuracyError, ArgumentError, DTypeError, ShapeError, UnsupportedError, call_context
from weft.fn.trace import Watched
from weft.networks.checkpoint import computed
from weft.networks.graph import Graph
from weft.networks.order import orders_of
from weft.networks.plan import NetworkPlan
from weft.networks.steps import StepOptions, as_launched, prepared
from weft.networks.tree import TreeStep
from weft.spec.dtypes import dtype_name
from weft.spec.memory import overlaps_itself, share_memory

Watch = Callable[[TreeStep, Sequence[Any], Mapping[int, int]], None]


def read_tensors(plan: NetworkPlan, tensors: Sequence[Any]) -> list[torch.Tensor]:
    """The operands of a call, checked."""
    promote, device = plan.settings.options.promote, plan.settings.device
    wanted, leaves = plan.folded.given, plan.whole_dtypes
    if len(tensors) != len(wanted):
        fixed = len(plan.graph.operands) - len(wanted)
        constant = f" besides {counted(fixed, 'constant')}" if fixed else ""
        raise ShapeError(f"the network takes {counted(len(wanted), 'operand')}{constant}, {given(len(tensors))}")
    read = []
    for at, one in zip(wanted, tensors, strict=True):
        what = f"operand {at}"
        number = number_tensor(what, one, leaves[at], promote).to(device) if is_scalar(one) else one
        read.append(without_neg(as_tensor(what, number, promote)))
    placed = dict(zip(wanted, read, strict=True))
    check_same(plan, placed)
    check_signs(plan.graph, placed)
    return read


def result_place(plan: NetworkPlan, out: Any = None, read: Sequence[torch.Tensor] = ()) -> torch.Tensor:
    """The place of the result: `out`, checked, or memory that is not filled."""
    shape, dtype, device = plan.graph.shape, plan.dtype, plan.settings.device
    if out is None:
        return new_tensor(shape, dtype, device)
    place = as_results(out)
    if not isinstance(place, torch.Tensor):
        raise ArgumentError("a network has one result: out is one tensor")
    if tuple(place.shape) != shape or place.dtype != dtype or place.device != device:
        raise ShapeError(
            f"out has shape {tuple(place.shape)}, type {place.dtype} on {place.device}; the result has "
            f"{shape}, {dtype} on {device}"
        )
    if overlaps_itself(place):
        raise ShapeError("out overlaps itself in memory: two elements of the result would share a place")
    for at, tensor in zip(plan.folded.given, read, strict=True):
        if share_memory(place, tensor):
            raise ShapeError(f"out overlaps operand {at} in memory: the result would overwrite what is to be read")
    return place


def result_of(tensors: Sequence[Any], out: Any, place: torch.Tensor) -> Any:
    """The result of a call whose kernels have written to a place: `out`, or the place as an array of theirs."""
    written((place,))
    return out if out is not None else like(kind_of(tensors), place)


def kind_of(tensors: Sequence[Any]) -> Any:
    """The operand that says what kind of array a result is; torch's where all are constants or numbers."""
    found = source_of(*tensors) if tensors else None
    return torch.empty(0, device="cpu") if found is None or is_scalar(found) else found


def read_changed(plan: NetworkPlan, changed: Any) -> list[int] | None:
    """Operands of a call among those of the folded tree."""
    if changed is None:
        return None
    places = plan.folded.given
    if not isinstance(changed, Collection):
        raise ArgumentError(f"changed is a collection of places of operands, not {changed!r}")
    if wrong := [at for at in changed if at not in places]:
        raise ArgumentError(f"changed names operand {wrong[0]}, the network takes {', '.join(map(str, places))}")
    return [places.index(at) for at in changed]


def check_same(plan: NetworkPlan, tensors: Mapping[int, torch.Tensor]) -> None:
    """Operands by their places among all have the shapes and types that the network was made for."""
    device = plan.settings.device
    for at, tensor in tensors.items():
        shape, dtype = plan.graph.operands[at].shape, plan.whole_dtypes[at]
        if tuple(tensor.shape) != shape:
            raise ShapeError(f"operand {at} has shape {tuple(tensor.shape)}, the network was made for {shape}")
        if tensor.dtype != dtype:
            raise DTypeError(
                f"operand {at} is {dtype_name(tensor.dtype)}, the network was made for {dtype_name(dtype)}"
            )
        if tensor.device != device:
            raise ShapeError(f"operand {at} is on {tensor.device}, the network was made for {device}")


def check_signs(graph: Graph, tensors: Mapping[int, torch.Tensor]) -> None:
    """`UnsupportedError` where the algebra may be reduced early of values that are not negative alone, and one of these
    operands has one."""
    given = [*tensors.values()]
    if not graph.early.unsigned or is_hidden(given) or (given and is_capturing(given[0].device)):
        return
    for at, tensor in tensors.items():
        if not tensor.is_complex() and tensor.dtype is not torch.bool and bool((tensor < 0).any()):
            raise UnsupportedError(
                f"operand {at} has negative values, and with them operands cannot be contracted two at a time: "
                f"{graph.early.broken}"
            )


def watch_of(plan: NetworkPlan) -> Watch | None:
    """With `check_finite` a watch that looks at every result, and waits for the device to do so."""
    if not plan.settings.check_finite:
        return None

    def watch(step: TreeStep, values: Sequence[Any], where: Mapping[int, int]) -> None:
        bad = _not_finite(values[step.node])
        if not bad:
            return
        tree, graph = plan.tree, plan.tree.graph
        for child in (step.left, step.right):
            if child < tree.leaves and (wrong := _not_finite(values[child])):
                places = f"in {counted(wrong, 'place')}{_slice(plan, where)}"
                raise AccuracyError(f"operand {child} holds NaN or Inf {places}")
        left, right, made = (graph.text(sorted(tree.nodes[node])) for node in (step.left, step.right, step.node))
        raise AccuracyError(
            f"step {step.node} ('{left}' of node {step.left}, '{right}' of node {step.right}, into '{made}') makes "
            f"NaN or Inf of finite values in {counted(bad, 'place')}{_slice(plan, where)}"
        )

    return watch


def check_alone(operand: torch.Tensor, result: torch.Tensor) -> None:
    """A network of one operand has no steps: `AccuracyError` says what of the two is not finite."""
    if bad := _not_finite(result):
        if wrong := _not_finite(operand):
            raise AccuracyError(f"operand 0 holds NaN or Inf in {counted(wrong, 'place')}")
        raise AccuracyError(f"sums of the one operand make NaN or Inf of finite values in {counted(bad, 'place')}")


def _not_finite(tensor: torch.Tensor) -> int:
    if not (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
        return 0
    return int((~torch.isfinite(tensor)).sum())


def _slice(plan: NetworkPlan, where: Mapping[int, int]) -> str:
    if not where:
        return ""
    names = plan.tree.graph.names
    length = dict(zip(plan.tree.sliced, plan.tree.stretches, strict=True))
    spans = {label: (index * length[label], (index + 1) * length[label] - 1) for label, index in where.items()}
    return " in slice " + ", ".join(
        f"{names[label]}={first}" + (f"..{last}" if last > first else "") for label, (first, last) in spans.items()
    )


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
    if plan.folded.steps:
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
        self._captured = False  # whether the call goes into a CUDA graph of the caller's
        self._seen: list[tuple[weakref.ref[torch.Tensor], Any]] = []

    def since(self, program: Any, operands: Sequence[torch.Tensor], said: Collection[int] | None) -> set[int] | None:
        """Places of operands that changed since the last call; None where all steps have to run.

        So they have within the capture of a CUDA graph, whose intermediates are its own.
        """
        alike = program is self._program and len(self._seen) == len(operands)
        self._program = None  # until the call is done
        self._captured = is_capturing(program.device)
        if self._captured or not alike:
            return None
        if said is not None:
            return set(said)
        return {
            at for at, (tensor, (known, state)) in enumerate(zip(operands, self._seen, strict=True))
            if known() is not tensor or state is None or state_of(tensor) != state or tensor.requires_grad
        }  # fmt: skip

    def done(self, program: Any, operands: Sequence[torch.Tensor]) -> None:
        """A call has run to its end; one that is captured has not."""
        if self._captured:
            return
        self._program = program
        self._seen = [(weakref.ref(tensor), state_of(tensor)) for tensor in operands]


def state_of(tensor: torch.Tensor) -> Hashable | None:
    """All by which a tensor shows that it was written, or given other memory; None for what torch does not count, as in
    inference mode."""
    if tensor.is_inference() or without_memory(tensor):
        return None
    return tensor._version, tensor.data_ptr(), tensor.shape, tensor.stride()
