"""`weft.profile` and `weft.energy`: a plan or a network on tensors of the caller's, measured and explained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, overload

import torch

from weft.errors import ArgumentError, UnsupportedError
from weft.machine.ceilings import Ceilings, ceilings
from weft.networks.network import Network
from weft.plans.base import PlanBase
from weft.spec.arguments import reads
from weft_bench.environment import disclose
from weft_bench.machine.energy import SECONDS, Energy
from weft_bench.profiling.energy import measured_energy
from weft_bench.profiling.network_measuring import network_energy, profiled_network
from weft_bench.profiling.network_profile import NetworkProfile
from weft_bench.profiling.profile import Profile, profiled, work_of
from weft_bench.profiling.subject import Subject, of_plan, usual_sampling
from weft_bench.timed_sets import Sampling

if TYPE_CHECKING:
    from weft.distributed import DistributedPlan, OutOfCorePlan
    from weft_bench.profiling.timelines.profile import TimelineProfile


@overload
def profile(
    plan: PlanBase, *tensors: torch.Tensor, c: torch.Tensor | None = ..., out: torch.Tensor | None = ...,
    operands: Mapping[str, torch.Tensor] | None = ..., counters: bool = ..., energy: bool = ...,
    budget: float | None = ...,
) -> Profile: ...  # fmt: skip
@overload
def profile(
    plan: Network, *tensors: torch.Tensor, out: torch.Tensor | None = ..., counters: bool = ..., energy: bool = ...,
    budget: float | None = ...,
) -> NetworkProfile: ...  # fmt: skip
@overload
def profile(
    plan: DistributedPlan | OutOfCorePlan, *tensors: torch.Tensor, c: torch.Tensor | None = ...,
    out: torch.Tensor | None = ..., operands: Mapping[str, torch.Tensor] | None = ..., budget: float | None = ...,
) -> TimelineProfile: ...  # fmt: skip
@reads("profile")
def profile(
    plan: PlanBase | Network | DistributedPlan | OutOfCorePlan,
    *tensors: torch.Tensor,
    c: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    operands: Mapping[str, torch.Tensor] | None = None,
    counters: bool = True,
    energy: bool = False,
    budget: float | None = None,
) -> Profile | NetworkProfile | TimelineProfile:
    """Why a plan is fast, or slow, on these tensors: a `Profile`, which prints itself and has `to_dict` and `save`.

    `plan` is what `weft.plan` or `weft.plan_permute` returned, and `tensors`, `c`, `out` and `operands` are those of
    its call (tensors of torch's; an operand without its modes). Measured are the time of a call with its 95 % interval,
    the floor, each launch with its time, the host's time, and, with `counters`, what Nsight Compute counts in a process
    of its own. `energy` adds joules. `budget` is seconds of samples (1 on a GPU, 0.3 on a CPU). What cannot be had is
    in `Profile.missing`, with the reason; without a GPU only time, floor and work are there.

    Of a network (`weft.network`) it is a `NetworkProfile`: the time of a call, of a slice where there are slices, and
    of every step, beside the predicted time and the floor. Steps are timed one after the other with operands in the
    caches; on a GPU a call may run some of them side by side. Where all slices would take longer than 2 s a call is
    reckoned from one. `c`, `operands` and `counters` are for plans.

    The plan is measured as it is now: it exchanges no kernels meanwhile. Tensors are read, and `out` is written.

    Of a plan of `weft.distributed` every rank calls it, with its parts, and gets a `TimelineProfile`: when each part
    was contracted and travelled on each rank, what the host did, the share of transfers that is hidden, beside the
    predicted timeline. It prints itself, too, and has `draw`, `table`, `to_dict` and `save`. There `budget` is 0.3 s of
    calls by default; counters and joules are those of a plan of one device.

    Raises `ArgumentError` for what is no plan, and what the plan's call raises.

    >>> import torch, weft
    >>> a, b = torch.randn(64, 64), torch.randn(64, 64)
    >>> found = weft.profile(weft.plan("ij,jk->ik", a, b), a, b, budget=0.01)
    >>> found.seconds.value > 0 and found.flops == 2 * 64**3
    True
    """
    if isinstance(plan, Network):
        _refuse_for_networks(c, operands)
        return _network_profile(plan, tensors, out, energy, budget)
    if not isinstance(plan, PlanBase) and hasattr(plan, "timeline"):
        from weft_bench.profiling.timelines.profile import timeline_profile

        if energy:
            raise UnsupportedError(f"energy= is for plans of one device, not for {type(plan).__name__}")
        return timeline_profile(plan, tensors, {"c": c, "out": out, "operands": operands}, budget)
    subject = _subject(plan, tensors, c, out, operands)
    sampling = _sampling(subject.device, budget)
    known = _known(subject.device)
    environment = _environment(subject.device, subject.about, known, sampling)
    found = profiled(subject, sampling=sampling, ceilings=known, counters=counters, environment=environment)
    if energy:
        try:
            found.energy = measured_energy(subject, flops=found.flops, moved=found.moved or found.bytes).to_dict()
        except UnsupportedError as error:
            found.missing["energy"] = str(error)
    return found


def _network_profile(
    network: Network, tensors: tuple[Any, ...], out: torch.Tensor | None, energy: bool, budget: float | None
) -> NetworkProfile:
    device = network.plan.settings.device
    sampling, known = _sampling(device, budget), _known(device)
    environment = _environment(device, repr(network), known, sampling)
    found = profiled_network(network, tensors, out=out, sampling=sampling, ceilings=known, environment=environment)
    if energy:
        try:
            found.energy = network_energy(network, tensors, out).to_dict()
        except UnsupportedError as error:
            found.missing["energy"] = str(error)
    return found


@reads("energy")
def energy(
    plan: Any,
    *tensors: torch.Tensor,
    c: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    operands: Mapping[str, torch.Tensor] | None = None,
    seconds: float = SECONDS,
) -> Energy:
    """Joules of a call of a plan or a network on a GPU, by the device's own counter, else by power samples over time.

    The call is repeated for about `seconds`, several times over; the result has the median with its spread, idle power,
    flops and bytes a joule, and the energy-delay products. Arguments as for `weft.profile`.

    Raises `UnsupportedError` where no sensor answers: on a CPU, and where NVML is missing.
    """
    if isinstance(plan, Network):
        _refuse_for_networks(c, operands)
        return network_energy(plan, tensors, out, seconds)
    subject = _subject(plan, tensors, c, out, operands)
    work = work_of(subject)
    return measured_energy(subject, flops=work.flops, moved=work.traffic, seconds=seconds)


def _subject(plan: Any, tensors: Any, c: Any, out: Any, operands: Any) -> Subject:
    if hasattr(plan, "timeline"):
        raise UnsupportedError(f"energy is measured of plans of one device, not of {type(plan).__name__}")
    if not isinstance(plan, PlanBase):
        raise ArgumentError(
            f"a profile is of a plan (weft.plan, weft.plan_permute) or a network, not of {type(plan).__name__}"
        )
    return of_plan(plan, tensors, {"c": c, "out": out, "operands": operands})


def _refuse_for_networks(c: Any, operands: Any) -> None:
    for name, value in (("c", c), ("operands", operands)):
        if value is not None:
            raise ArgumentError(f"a network's call takes no {name}: only its tensors, and out")


def _sampling(device: torch.device, budget: float | None) -> Sampling:
    found = usual_sampling(device)
    return found if budget is None else replace(found, budget=budget)


def _environment(device: torch.device, about: str, known: Ceilings | None, sampling: Sampling) -> dict[str, Any]:
    return disclose(
        device, workloads={"call": about, "tensors": "the caller's, and copies of them"},
        correctness="not checked", ceilings=known, rrs=sampling.rrs, budget=sampling.budget,
    )  # fmt: skip


def _known(device: torch.device) -> Ceilings | None:
    """Ceilings as they were measured, or a data sheet's: a profile measures none by itself."""
    try:
        return ceilings(device, may_measure=False)
    except UnsupportedError:
        return None
