"""`weft.distributed.contract` and `weft.distributed.plan`: what users call.

Plans are kept for later calls: one is used again where every rank says what it said when all of them made it. A rank
sees its own parts, and parts that look the same belong to different whole tensors. So each plan has a number, which its
ranks drew together, and a rank keeps under all that its call says the numbers of the plans that it said so for. A call
goes by a plan whose number all ranks find under what they say now: each has the parts that it had then.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from weft.api.keywords import Equation
from weft.api.lookup import read_notation
from weft.base.arguments import addition
from weft.base.caches import BoundedCache
from weft.distributed.asked import RankRequest, computed, is_dtensor, read_asked
from weft.distributed.link import fitted_link
from weft.distributed.out_of_core import OutOfCorePlan, read_place, refuse_gradients
from weft.distributed.rank_plan import DistributedPlan
from weft.distributed.ranks import Ranks, lines_of, ranks_of, shape_of
from weft.engine.memo import Memo
from weft.errors import ArgumentError, UnsupportedError, WeftError, call_context
from weft.fn.fingerprint import fingerprints
from weft.planner.request import HOOKS
from weft.planner.schedule import Scalar
from weft.plans.keywords import refuse_unknown
from weft.spec.arguments import read_flag

_ALIKE = 64  # plans that are kept under what one rank says
_PLANS = Memo("distributed: plans", 256)  # by all that a call says on this rank: plans by number


def plan(
    equation: Equation,
    a: Any,
    b: Any,
    *,
    placements: Any = None,
    group: Any = None,
    mesh: Any = None,
    link: Any = None,
    timeout: float | None = None,
    agree: bool = True,
    device: Any = None,
    memory_limit: Any = None,
    c: Any = None,
    **options: Any,
) -> DistributedPlan | OutOfCorePlan:
    """Plan a contraction of tensors spread over the ranks of a process group. Every rank calls it with its parts.

    `equation`, `a`, `b` and the functions, `operands`, `indices`, `algebra`, `out_dtype`, `precision`, `accumulate`,
    `backend`, `tune`, `specialize`, `workspace_limit`, `return_arg` as for `weft.contract`; `a` and `b` are this rank's
    parts, or DTensors. `placements`: how each whole tensor is split, ``{"a": "k", "b": "k", "d": "m"}`` or the three in
    a row: a label, None (whole on every rank, the default), or for a mesh of several dimensions a `Placement` or a
    tuple with one of these for each. C is placed as D is; operands of functions are whole unless they are named here.
    DTensors have placements of their own. Indices of `return_arg` are those of the whole tensors, and placed as D is.

    `group`: a process group of torch.distributed, or a DeviceMesh; by default the default group. `mesh`: the extents
    of a mesh of its ranks, row by row, by default all in one dimension. `link`: what travelling costs, a `Link` or the
    name of a preset ("nvlink", "ib", "nvlink+ib", "gloo"); by default what `measure_link` found in this process, else
    a preset. `timeout`: seconds to wait for a rank before it is an error, by default 300. `agree`: whether ranks
    compare shapes and arguments at each call, some messages through torch's store; without it a wrong argument on one
    rank is an error there and ends the others by the group's time limit.

    `device`, without a group: `a` and `b` are whole tensors in the machine's memory, which are contracted on that
    device in blocks that take `memory_limit` bytes there (or text, "60GB"), by default nine tenths of what is free on a
    GPU. Blocks are copied in and out while others are contracted. `c` says then that calls bring a C, which needs
    memory, too.

    Tensors that require a gradient get one, where the algebra is plus-times and there is no `device`. The loss is a
    function of the elements of the whole D, each counted once: of a D that is split a rank holds its share of the
    loss, of one that is whole on every rank each holds all of it. A gradient is placed as its tensor is; of a tensor
    that is whole on every rank it is the whole one, the same on all of them. Every rank calls `backward`.

    Which tensor moves, how, and in how many parts follows from the model of link and kernel alone, alike on every rank.
    Raises the errors of `weft.contract` for what is wrong on any rank, on every rank, with the rank's number; and
    `RankError` for ranks that ended, did not come in time, or are at another call. Nothing has moved then.

    >>> import torch, torch.distributed, weft
    >>> store = torch.distributed.HashStore()
    >>> torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    >>> a, b = torch.ones(2, 3), torch.ones(3, 4)
    >>> placements = {"a": "k", "b": "k", "d": "m"}
    >>> p = weft.distributed.plan("mk,kn->mn", a, b, placements=placements)
    >>> p(a, b)[0]
    tensor([3., 3., 3., 3.])
    >>> torch.distributed.destroy_process_group()
    """
    what = f"distributed.plan({equation!r})"
    with call_context(lambda: what):
        if device is not None:
            given = {"placements": placements, "group": group, "mesh": mesh}
            return _in_blocks("plan", equation, a, b, given, device, memory_limit, link, c is not None, options)
        group, ranks = _ranks_of(group, mesh, timeout, a, b, memory_limit)
        return _planned("plan", what, ranks, (group, mesh), equation, a, b, placements, link, agree, options)


def contract(
    equation: Equation,
    a: Any,
    b: Any,
    *,
    placements: Any = None,
    group: Any = None,
    mesh: Any = None,
    link: Any = None,
    timeout: float | None = None,
    device: Any = None,
    memory_limit: Any = None,
    c: Any = None,
    alpha: Scalar = 1.0,
    beta: Scalar | None = None,
    validate: bool = False,
    **options: Any,
) -> Any:
    """Contract two tensors that are spread over the ranks of a process group; returns this rank's part of D.

    Arguments as for `plan`, and `c`, `alpha`, `beta` and `validate` as for `weft.contract`. The plan is kept for the
    next call that says the same on every rank. With `validate` each rank judges those of the sampled elements that it
    has, and all of them raise an `AccuracyError`. With `device` tensors are whole, D too, and go through that device in
    blocks. Gradients are placed as their tensors are, as `plan` says; the plans of the backward pass are kept with the
    plan.

    >>> import torch, torch.distributed, weft
    >>> store = torch.distributed.HashStore()
    >>> torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    >>> weft.distributed.contract("k,k->", torch.ones(3), torch.ones(3),
    ...                           placements={"a": "k", "b": "k"})
    tensor(3.)
    >>> torch.distributed.destroy_process_group()
    """
    what = f"distributed.contract({equation!r})"
    with call_context(lambda: what):
        if device is not None:
            out, given = options.pop("out", None), {"placements": placements, "group": group, "mesh": mesh}
            added = addition(c, beta, out)[0] is not None
            blocks = _in_blocks("contract", equation, a, b, given, device, memory_limit, link, added, options)
            return blocks(a, b, c=c, alpha=alpha, beta=beta, out=out, validate=validate)
        group, ranks = _ranks_of(group, mesh, timeout, a, b, memory_limit)
        over = group, mesh
        said = said_of(ranks, over, equation, a, b, placements, link, options)
        make = partial(_planned, "contract", what, ranks, over, equation, a, b, placements, link, True, options)
        known = kept_or_made(ranks, what, said, make)
        operands = options.get("operands")
        return known(a, b, c=c, alpha=alpha, beta=beta, operands=operands, validate=validate)


def _in_blocks(
    call: str, equation: Equation, a: Any, b: Any, given: Mapping[str, Any], device: Any, memory_limit: Any, link: Any,
    added: bool, options: Mapping[str, Any],
) -> OutOfCorePlan:  # fmt: skip
    """A plan for one device, with the arguments of a plan for a single rank."""
    for name, value in given.items():
        if value is not None:
            raise ArgumentError(f"device= is for tensors that one device does not hold, {name}= for several ranks")
    refuse_unknown("contract", options, "distributed")
    place, limit = read_place(device, memory_limit)
    asked = read_asked(call, equation, a, b, (1,), None, options)
    if asked.a.device.type != "cpu":
        raise ArgumentError(f"a is on {asked.a.device}: with device= tensors lie in the machine's memory, on the CPU")
    if asked.return_arg:
        raise UnsupportedError("return_arg= is not for device=: blocks along a reduced mode keep a value alone")
    refuse_gradients(a=a, b=b, **asked.options.tensors)
    problem, request = asked.problem_of(asked.whole_shapes([asked.shapes()]))
    return OutOfCorePlan(asked, problem, request, place, limit, link, added)


def _ranks_of(group: Any, mesh: Any, timeout: float | None, a: Any, b: Any, memory_limit: Any) -> tuple[Any, Ranks]:
    """The group of a call, which may be that of its DTensors, and its ranks."""
    if memory_limit is not None:
        raise ArgumentError("memory_limit= is for device=, where tensors go through one device in blocks")
    if group is None and mesh is None:
        group = next((one.device_mesh for one in (a, b) if is_dtensor(one)), None)
    return group, ranks_of(group, timeout)


def _planned(
    call: str, what: str, ranks: Ranks, over: tuple[Any, Any], equation: Equation, a: Any, b: Any, placements: Any,
    link: Any, agree: bool, options: Mapping[str, Any],
) -> DistributedPlan:  # fmt: skip
    """Read on every rank, agreed on, planned alike; `over` are a group and a mesh that nobody has looked at yet."""

    def read() -> RankRequest:
        refuse_unknown("contract", options, "distributed")
        read_flag("agree", agree)
        found = read_asked(call, equation, a, b, shape_of(*over, ranks), placements, options)
        if call == "contract":  # its plan keeps no history: operands come anew in each call, with what is recorded
            beside = {name: (modes, tensor.detach()) for name, (modes, tensor) in found.options.operands.items()}
            found = replace(found, options=replace(found.options, operands=beside))
        ranks.backend(found.a.device)
        return found

    asked = ranks.agreed(what, read, RankRequest.same)
    lines = lines_of(over[0], asked.mesh, ranks)
    every = ranks.exchanged(f"{what}: shapes", asked.shapes())
    whole = asked.whole_shapes(every)
    problem, request = ranks.agreed(what, lambda: asked.problem_of(whole), lambda found: computed(found[1]))
    found = ranks.agreed(what, lambda: DistributedPlan(asked, problem, request, ranks, lines, link, agree, agree))
    # Predicted times follow from what each rank sees of its machine, its threads say: the first rank's choice counts.
    return found.taking(ranks.exchanged(f"{what}: choice", found.choice())[0])


def kept_or_made(
    ranks: Ranks, what: str, said: Hashable | None, make: Callable[[], DistributedPlan]
) -> DistributedPlan:
    """The plan of an earlier call that said the same on every rank, else one that all of them make now.

    `said`: all that this rank says, its parts' shapes included; None for what cannot be distinguished.
    """
    place = None if said is None else _PLANS.place((ranks.group, ranks.name, said))
    plans: BoundedCache | None = None if place is None else _PLANS.get(place)
    mine = [] if plans is None else plans.keys()
    number, every = ranks.numbered(f"{what}: known", mine)
    common = set(mine).intersection(*every)
    known: DistributedPlan | None = plans.get(max(common)) if plans is not None and common else None
    if known is not None:
        return known
    made = make()
    if place is not None:
        plans = _PLANS.get(place) or BoundedCache(_ALIKE)
        plans.put(number, made)
        _PLANS.put(place, plans)
    return made


def said_of(
    ranks: Ranks, over: tuple[Any, Any], equation: Any, a: Any, b: Any, placements: Any, link: Any,
    options: Mapping[str, Any],
) -> Hashable | None:  # fmt: skip
    """All that a call says on this rank; `over` are its group and mesh. None for what cannot be distinguished."""
    prints = fingerprints(tuple(map(options.get, HOOKS)))
    if prints is None or type(options.get("algebra", "")) is not str:
        return None
    try:
        operands = options.get("operands") or {}
        tensors = [a, b, *(tensor for _, tensor in operands.values())]
        facts = [(x.shape, x.dtype, x.device, is_dtensor(x) and x.placements) for x in tensors]
        others = {name: one for name, one in options.items() if name not in HOOKS}
        others["operands"] = {name: modes for name, (modes, _) in operands.items()}
        named = equation if isinstance(equation, str) else read_notation(equation)
        fitted = fitted_link(ranks, a.device) if link is None else link
        said: Hashable = _frozen((over, ranks.timeout, named, facts, placements, fitted, prints, others))
        hash(said)
    except (TypeError, ValueError, AttributeError, WeftError):  # it is refused where all ranks read it
        return None
    return said


def _frozen(value: Any) -> Any:
    """Mappings and sequences as tuples, which have a hash where what they hold has one."""
    if isinstance(value, Mapping):
        return tuple((name, _frozen(one)) for name, one in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(map(_frozen, value))
    return value
