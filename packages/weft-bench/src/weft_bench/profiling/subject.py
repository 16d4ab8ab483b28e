"""The subject of a profile: a call with the tensors of its timing, and a recipe by which another process makes it.

A recipe is small and pickles: the plan and how its tensors lie, or a case of the benchmarks and who computes it. `ncu`
looks at a process of its own, which `weft_bench.profiling.replay` runs on such a recipe.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import torch

from weft.base.figures import counted
from weft.errors import UnsupportedError
from weft.plans.base import PlanBase
from weft.plans.permutation import PermutePlan
from weft.testing import random_operand
from weft_bench.cases import Case
from weft_bench.peers import registry
from weft_bench.peers.registry import Tensors
from weft_bench.problems import ContractionProblem
from weft_bench.timed_sets import Sampling

WEFT = "weft"
_SEED = 28
MOST_SETS = 1024  # of tensors that a timing rotates over


class Arguments(tuple[Any, ...]):
    """The tensors of one call, in order; None for one that is left out."""

    __slots__ = ()

    @classmethod
    def _make(cls, values: Any) -> Arguments:
        return cls(values)


class Lie(NamedTuple):
    """How a tensor lies, and of what type it is."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: str

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Lie:
        return cls(tuple(tensor.shape), tensor.stride(), tensor.dtype, str(tensor.device))

    def make(self, seed: int) -> torch.Tensor:
        """A tensor of random values that lies so."""
        kept = [1 if step == 0 else size for size, step in zip(self.shape, self.strides, strict=True)]
        found = torch.empty_strided(kept, self.strides, dtype=self.dtype, device=self.device)
        found.copy_(random_operand(tuple(kept), self.dtype, seed, device=self.device))
        return found.expand(self.shape)


class Recipe(Protocol):
    """How another process makes the same call."""

    def make(self) -> tuple[Callable[..., Any], Sequence[Any]]:
        """The call, and a set of arguments for it."""


@dataclass(frozen=True)
class PlanRecipe:
    """A plan, which pickles as its request, with the schedule that this process has."""

    plan: PlanBase
    lies: tuple[Lie | None, ...]
    names: tuple[str, ...]

    def make(self) -> tuple[Callable[..., Any], Sequence[Any]]:
        tensors = [lie and lie.make(_SEED + at) for at, lie in enumerate(self.lies)]
        return plan_call(self.plan, self.names), tensors


@dataclass(frozen=True)
class CaseRecipe:
    """A case of the benchmarks, and who computes it: weft, perhaps by a schedule, or one of its peers."""

    case: Case
    who: str = WEFT
    schedule: str | None = None
    way: str | None = None  # of a peer that has several
    device: str = "cuda"

    def make(self) -> tuple[Callable[..., Any], Sequence[Any]]:
        tensors = ContractionProblem(self.case).inputs(torch.device(self.device), _SEED)
        return prepared(self, tensors)[0], tensors


@dataclass(frozen=True)
class Subject:
    """The call that is profiled."""

    name: str
    call: Callable[..., Any]
    tensors: Any  # of one call, with `_make`
    device: torch.device
    recipe: Recipe
    plan: PlanBase | None = None  # None for a peer
    about: str = ""  # equation, extents, types
    stored: torch.dtype | None = None  # a peer rounds the sum to this type before more is done with it

    def recipe_bytes(self) -> bytes | str:
        """The recipe pickled, or the sentence that says why it cannot be."""
        try:
            return pickle.dumps(self.recipe)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            return (
                f"counters are read of a process of its own, to which this plan cannot be sent ({error}); give its "
                "functions names in a module"
            )


def usual_sampling(device: torch.device) -> Sampling:
    """How a profile is timed where nobody says otherwise."""
    if device.type == "cuda":
        return Sampling(most_sets=MOST_SETS)
    return Sampling(mode="hot", budget=0.3)


def of_plan(plan: PlanBase, tensors: Sequence[torch.Tensor], options: Mapping[str, Any]) -> Subject:
    """A plan on tensors of the caller's: A and B, or X; `options` are `c`, `out` and `operands` of its call."""
    wanted = 1 if isinstance(plan, PermutePlan) else 2
    if len(tensors) != wanted or not all(isinstance(each, torch.Tensor) for each in tensors):
        taken = counted(wanted, "tensor")
        raise UnsupportedError(f"a profile of {plan!r} takes {taken} of torch's, not {len(tensors)}")
    given: dict[str, Any] = {name: options.get(name) for name in ("c", "out") if options.get(name) is not None}
    given |= {f"operands.{name}": tensor for name, tensor in (options.get("operands") or {}).items()}
    if any(not isinstance(each, torch.Tensor) for each in given.values()):
        raise UnsupportedError("a profile takes c, out and operands as tensors of torch's, without their modes")
    names = tuple(given)
    every = Arguments((*tensors, *given.values()))
    settled = _settled(plan)
    recipe = PlanRecipe(settled, tuple(Lie.of(each) for each in every), names)
    return Subject(WEFT, plan_call(settled, names), every, tensors[0].device, recipe, settled, plan._request.text)


def _settled(plan: Any) -> Any:
    """The plan as it is now: it exchanges no kernels while it is measured, and another process makes the same of it."""
    request, tier = plan._request, plan._first().tier
    if tier is None or request.schedule is not None:
        return plan
    try:
        found = type(plan)(replace(request, schedule=plan.schedule))
        found._first()
        return found
    except UnsupportedError:  # a schedule that no family offers by itself
        return plan


def plan_call(plan: Any, names: Sequence[str]) -> Callable[..., Any]:
    """The call of a plan on tensors in a row, the last of which go by name."""
    count = len(names)
    operands = [name.removeprefix("operands.") for name in names if name.startswith("operands.")]
    plain = [name for name in names if not name.startswith("operands.")]

    def call(*tensors: Any) -> Any:
        given = tensors[len(tensors) - count :] if count else ()
        options: dict[str, Any] = dict(zip(plain, given, strict=False))
        if operands:
            options["operands"] = dict(zip(operands, given[len(plain) :], strict=True))
        return plan(*tensors[: len(tensors) - count], **options)

    return call


def of_case(case: Case, device: torch.device, who: str = WEFT, schedule: str | None = None) -> Subject:
    """A case computed by weft, perhaps by a schedule, or by one of its peers ("torch", "cutensor", ...).

    Raises `UnsupportedError` for a peer that cannot compute it.
    """
    tensors = ContractionProblem(case).inputs(device, _SEED)
    recipe = CaseRecipe(case, who, schedule, None, str(device))
    call, plan, way, stored = prepared(recipe, tensors)
    extents = ",".join(f"{label}={extent}" for label, extent in case.extents.items())
    name = schedule if schedule is not None else f"{who} ({way})" if way else who
    return Subject(
        name, call, tensors, device, replace(recipe, way=way), plan, f"{case.notation} {extents}", stored,
    )  # fmt: skip


def prepared(
    recipe: CaseRecipe, tensors: Tensors
) -> tuple[Callable[..., Any], PlanBase | None, str | None, torch.dtype | None]:
    """The call on (a, b, c, d), the plan where weft computes, the way and the type of sums of a peer that has such."""
    case = recipe.case
    if recipe.who == WEFT:
        from weft.api.contract import plan

        options = case.options()
        alpha, beta = options.pop("alpha"), options.pop("beta")
        a, b, c, d = tensors
        mine: Any = plan(case.equation, a, b, c=c, out=d, schedule=recipe.schedule, specialize="now", **options)
        return (lambda a, b, c, d: mine(a, b, c=c, alpha=alpha, beta=beta, out=d)), mine, None, None
    side = registry.contender(recipe.who)
    with side.settings(case):
        made = side.prepare(case, tensors)
        if isinstance(made, str):
            raise UnsupportedError(f"{recipe.who} cannot compute this: {made}")
        way = next((each for each in made.ways if each.label == recipe.way), None) or _fastest(made.ways, tensors)
    run = way.timed or way.run

    def call(*given: Any) -> Any:
        with side.settings(case):
            return run(*given)

    return call, None, way.label or None, made.stored


def _fastest(ways: Sequence[registry.Way], tensors: Tensors) -> registry.Way:
    """The fastest of several ways, by a short timing."""
    from weft.machine.timing import glance

    if len(ways) == 1:
        return ways[0]
    return min(ways, key=lambda way: glance(way.run, tensors, tensors.d.device))
