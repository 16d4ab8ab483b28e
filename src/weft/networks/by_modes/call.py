"""A call of all ranks of a group whose intermediates are distributed by modes.

    agree     every rank has read its operands; network, path, types and the plan are the same
    run       the steps; a rank that fails says so, and the others stop at their next collective
    end       every rank says that it has come so far, before anything is taken for a result

Operands of a step come to where it needs them, its result is summed over ranks. Every rank makes the same collectives
in the same order. A tensor is dropped once the step that takes it has run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, replace
from typing import Any

import torch

from weft.base.arrays import grad_mode
from weft.base.memory import new_tensor
from weft.distributed.group.collectives import broadcast
from weft.distributed.group.lanes import on
from weft.distributed.group.link import Link, read_link
from weft.distributed.group.ranks import Ranks, lines_of, ranks_of, shape_of
from weft.distributed.planned.moves import reduced
from weft.distributed.planned.placement import coordinates
from weft.errors import ArgumentError, RankError, UnsupportedError, WorkspaceError
from weft.networks.by_modes.plan import ModesPlan
from weft.networks.by_modes.search import by_slices, chosen, meshes_of
from weft.networks.checkpoint import digest, identity_of
from weft.networks.cost import Model
from weft.networks.plan import WORKSPACE, NetworkPlan
from weft.networks.shared import NetworkCall, agreed_network, call_with_checkpoint, call_with_group, end_together
from weft.networks.slicing import indices, part
from weft.networks.steps import ContractionCall, prepared
from weft.networks.tree import TreeStep
from weft.networks.work import Slices, combine_of, finish
from weft.plans.intermediates import WIDER

WAYS = ("slices", "modes", "auto")
Values = dict[int, torch.Tensor]  # of nodes, as this rank has them


def call_at_length(
    given: NetworkCall, over: tuple[Any, Any, Any], folder: Any, every: float, run: Callable[[Slices], Any]
) -> tuple[Any, torch.Tensor]:
    """The outcome of a call that ranks share or of which a checkpoint is kept, and where its result is.

    `over`: a group, how it is distributed, and a link, as `Network` takes them.
    """
    if not given.network.tree.steps:
        raise UnsupportedError("a network of one operand has no slices: call it without group and checkpoint")
    group, way, link = over
    if way != "slices" and (made := _call_by_modes(given, group, way, link, folder)) is not None:
        return made, made
    call: Slices
    if group is None:
        call, place = call_with_checkpoint(given, folder, every)
    else:
        call, place = call_with_group(given, group, folder, every)
    return run(call), place


def _call_by_modes(given: NetworkCall, group: Any, way: Any, link: Any, checkpoint: Any) -> torch.Tensor | None:
    """This rank's side of a call; the result. None where `way` is "auto" and slices are what is taken."""
    if _refused(given.network, group, way, checkpoint):
        return None
    ranks, network = ranks_of(group, None), given.network
    name = f"a call of {network!r}"
    key = f"{way} {ranks.name} {shape_of(group, None, ranks)} {link}"
    known = given.plans.get(key)
    if isinstance(known, ModesRun) and known.ranks.group is not ranks.group:
        known = None  # of a group that is gone, whose name another one has

    def read() -> tuple[list[torch.Tensor], torch.Tensor]:
        found = given.read()
        ranks.backend(network.settings.device)
        return found

    def same(_: Any) -> dict[str, str]:
        about = {"distribute": way, "kind of device": network.settings.device.type}
        return about if known is not None else identity_of(network) | about

    operands, place = agreed_network(ranks, name, read, same)
    if known is None:
        known = given.plans[key] = _planned(network, ranks, group, way, link)
    if not isinstance(known, ModesRun):
        return None
    outcome, failed = "done", None
    try:
        with on(place.device), ranks.failing(), grad_mode(False):
            known.run(operands, place)
    except Exception as error:  # what fails on some ranks is raised on all
        outcome, failed = "stopped" if isinstance(error, RankError) else "failed", error
    end_together(outcome, failed, ranks, f"the end of {name}")
    return place


def _refused(network: NetworkPlan, group: Any, way: Any, checkpoint: Any) -> bool:
    """Whether the call has what goes with slices alone, which "modes" refuses."""
    if way not in WAYS:
        raise ArgumentError(f"distribute={way!r} is none of {', '.join(map(repr, WAYS))}")
    if group is None:
        raise ArgumentError(f"distribute={way!r} is for the ranks of a group: pass group=")
    settings = network.settings
    asked = {
        "checkpoint": checkpoint is not None, "strip_exponent": settings.strip_exponent,
        "check_finite": settings.check_finite,
    }  # fmt: skip
    found = [name for name, is_asked in asked.items() if is_asked]
    if found and way == "modes":
        raise UnsupportedError(f"{found[0]} goes with distribute='slices' alone")
    return bool(found)


def _planned(network: NetworkPlan, ranks: Ranks, group: Any, way: str, link: Any) -> ModesRun | str:
    """The plan that follows from the first rank's figures, and what runs it here; "slices" where `way` is "auto" and
    these are faster, or alone fit."""
    device = network.settings.device

    def figures() -> list[Any]:
        return [astuple(network.model), astuple(read_link(link, ranks, device))]

    found = ranks.exchanged("figures of the device and the link", ranks.agreed("the link", figures))
    model, over = Model(*found[0][0]), _heard(found[0][1])
    shape = shape_of(group, None, ranks)
    meshes = [shape] if len(shape) > 1 else meshes_of(ranks.size)

    def plan() -> ModesPlan | None:
        try:
            found = chosen(network, over, meshes, model)
        except WorkspaceError:
            if way == "auto":
                return None
            raise
        return found if way == "modes" or found.seconds < by_slices(network, ranks.size, over, model) else None

    made = ranks.agreed(f"the plan of {network!r}", plan, lambda plan: {"distribution by modes": _digest(plan)})
    if made is None:
        return "slices"
    return ModesRun(network, made, ranks, lines_of(group, made.mesh, ranks))


def _digest(plan: ModesPlan | None) -> str:
    if plan is None:
        return "by slices"
    steps = [(step.node, plan.split[step.node], plan.places[step.node]) for step in plan.tree.steps]
    return digest((plan.mesh, plan.tree.sliced, plan.tree.graph.extents, plan.orders, steps))


def _heard(said: list[Any]) -> Link:
    found = Link(*said)
    return found if found.inside is None else replace(found, inside=_heard(said[4]))


class ModesRun:
    """A network over ranks as one of them runs it, again and again."""

    def __init__(self, network: NetworkPlan, plan: ModesPlan, ranks: Ranks, lines: Sequence[Ranks]) -> None:
        self.plan, self.ranks = plan, ranks
        self._lines, self._at = lines, coordinates(ranks.rank, plan.mesh)
        self._dtypes = network.dtypes
        self._functions = network.functions
        self._asked, limit = network.asked, network.settings.memory_limit
        if limit is not None:  # kernels pack operands in what it leaves
            room = max(limit - plan.memory, WORKSPACE)
            self._asked = replace(self._asked, options=replace(self._asked.options, workspace_limit=room))
        self._combine = combine_of(network.settings.options.algebra)
        self._device = network.settings.device
        self._slices = indices(plan.tree)
        once = plan.tree.once
        self._once = [step for step in plan.tree.ordered if step.node in once]
        self._each = [step for step in plan.tree.ordered if step.node not in once]
        self._calls: dict[Any, ContractionCall] = {}

    def run(self, tensors: Sequence[torch.Tensor], out: torch.Tensor) -> None:
        """All slices, into `out` on every rank."""
        plan, tree = self.plan, self.plan.tree
        pairs = zip(tree.graph.operands, tensors, strict=True)
        whole = {leaf: operand.view(tensor).resolve_conj() for leaf, (operand, tensor) in enumerate(pairs)}
        shared: Values = dict(whole)  # with what is the same in every slice
        for step in self._once:
            self._step(step, shared)
        for step, child in plan.shared:
            self._bring(step, child, shared)
        total: torch.Tensor | None = None
        for number, where in enumerate(self._slices):
            values = shared | {leaf: part(each, tree.graph.terms[leaf], where) for leaf, each in whole.items()}
            for step in self._each:
                self._step(step, values)
            found = values.pop(tree.root)
            if total is None:
                total = found
            else:
                self._combine(total, found)
            if (number + 1) % tree.summed == 0:
                self._end(total, number // tree.summed, out)
                total = None

    def _bring(self, step: TreeStep, child: int, values: Values) -> None:
        """An operand of a step to where the step needs it."""
        values[child] = self.plan.routes[step.node, child].run(values[child], self._at, self._lines)

    def _step(self, step: TreeStep, values: Values) -> None:
        """One step; what it takes is dropped."""
        plan, node = self.plan, step.node
        for child in (step.left, step.right):
            if (step, child) not in plan.shared:
                self._bring(step, child, values)
        sums, dtype = plan.sums(step), self._dtypes[node]
        complete = node != plan.tree.root or plan.tree.summed == 1
        wide = WIDER.get(dtype, dtype) if sums or not complete else dtype
        found = new_tensor(plan.shape(node, plan.shared_out(step, node), self._at), wide, self._device)
        values[node] = found
        self._contract(step, values, complete)
        del values[step.left], values[step.right], found
        for line, target in sums:
            dim = None if target is None else plan.orders[node].index(target)
            what = f"the sum of node {node} over ranks"
            values[node] = reduced(values[node], dim, self._lines[line], self._combine, what)
        if complete:
            values[node] = values[node].to(dtype)

    def _contract(self, step: TreeStep, values: Values, complete: bool) -> None:
        """The contraction of what is here; steps with operands of equal layouts share a call."""
        tensors = (values[step.left], values[step.right], values[step.node])
        key = (step.node, *((each.shape, each.stride(), each.data_ptr() & 15) for each in tensors))
        call = self._calls.get(key)
        if call is None:
            asked, (a, b, d) = self._asked, tensors
            if complete and step.node in self._functions:
                asked = asked.having(epilogue=self._functions[step.node])
            call = self._calls[key] = prepared(step, self.plan.orders, (a, b, None, d), asked)
        call.run(values)  # type: ignore[arg-type]  # nodes by their numbers

    def _end(self, total: torch.Tensor, number: int, out: torch.Tensor) -> None:
        """A part of the result, from its complete sums: finished, and gathered on every rank."""
        plan, tree = self.plan, self.plan.tree
        if tree.summed > 1:
            found = torch.empty_like(total, dtype=out.dtype, memory_format=torch.contiguous_format)
            finish(total, found, self._functions.get(tree.root))
            total = found
        for line, mode in enumerate(plan.split[tree.root]):
            if mode is None and plan.mesh[line] > 1:  # made by each of its ranks, whose kernels may differ
                total = total.contiguous()
                if total.numel():
                    self._lines[line].wait(broadcast(self._lines[line], total), "the broadcast of the result")
        whole = plan.gathering.run(total, self._at, self._lines)
        part(tree.graph.result.view(out), tree.graph.output, self._slices[number * tree.summed]).copy_(whole)

