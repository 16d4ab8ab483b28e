"""A call of all ranks of a group whose intermediates are distributed by modes.

    agree     every rank has read its operands; network, path, types and the plan are the same
    run       the steps; a rank that fails says so, and the others stop at their next collective
    end       every rank says that it has come so far, before anything is taken for a result
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, replace
from typing import Any

import torch

from weft.base.arrays import grad_mode
from weft.distributed.group.lanes import on
from weft.distributed.group.link import Link, read_link
from weft.distributed.group.ranks import Ranks
from weft.distributed.planned.lines import lines_of, ranks_of, shape_of
from weft.errors import ArgumentError, RankError, UnsupportedError, WorkspaceError
from weft.networks.by_modes.plan import ModesPlan
from weft.networks.by_modes.run import ModesRun
from weft.networks.by_modes.search import by_slices, chosen, meshes_of
from weft.networks.checkpoint import digest, identity_of
from weft.networks.cost import Model
from weft.networks.long_run import Slices
from weft.networks.plan import NetworkPlan
from weft.networks.shared import NetworkCall, agreed_network, call_with_checkpoint, call_with_group, end_together

WAYS = ("slices", "modes", "auto")


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
    _together(ranks, name, known, operands, place)
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


def _together(
    ranks: Ranks, name: str, run: ModesRun, operands: list[torch.Tensor], place: torch.Tensor
) -> None:
    """The steps on every rank; what fails on some is raised on all."""
    outcome, failed = "done", None
    try:
        with on(place.device), ranks.failing(), grad_mode(False):
            run.run(operands, place)
    except Exception as error:
        outcome, failed = "stopped" if isinstance(error, RankError) else "failed", error
    end_together(outcome, failed, ranks, f"the end of {name}")


def _digest(plan: ModesPlan | None) -> str:
    if plan is None:
        return "by slices"
    steps = [(step.node, plan.split[step.node], plan.places[step.node]) for step in plan.tree.steps]
    return digest((plan.mesh, plan.tree.sliced, plan.tree.graph.extents, plan.orders, steps))


def _heard(said: list[Any]) -> Link:
    found = Link(*said)
    return found if found.inside is None else replace(found, inside=_heard(said[4]))
