"""The base of plans of contractions and of permutations: built variants, one of which stands for the plan."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from operator import is_
from typing import TYPE_CHECKING, Any, Self

import torch

from weft.algebra import Algebra
from weft.base.arrays import outside_transforms, written
from weft.base.caches import BoundedCache
from weft.base.extensions import reader
from weft.base.figures import folded
from weft.base.memory import check_room, new_tensor, workspace_error
from weft.engine.calls import Calls
from weft.engine.ways import Arguments, differentiable, each_of
from weft.errors import UnsupportedError, is_out_of_memory
from weft.fn.trace import Watched
from weft.planner.planner import Choice
from weft.planner.promotion import Tier
from weft.planner.request import Request, Results
from weft.planner.schedule import Description
from weft.planner.validity import generation
from weft.plans.known_call import BoundCall, KnownCall
from weft.plans.promoting import PromotingLaunch, promotes
from weft.plans.select import ServiceRequest
from weft.plans.tiers import Served, served
from weft.spec.contraction import output_shape

if TYPE_CHECKING:
    from weft.plans.explain.report import Report


_OTHERS = 16  # plans of one whose functions change, kept at once


@dataclass(slots=True)
class Variant:
    """One built launch, for one set of layouts of what may change from call to call."""

    description: Any  # a `Contraction` or a `Permutation`
    choice: Choice | None  # None for the reference backend, which chooses nothing
    launch: Callable[..., None]
    tier: Tier | None = None  # which kind of kernel it is, and until when; None for the reference backend
    generation: tuple[int, int] = (0, 0)  # of what plans depend on, when it was built

    def served(self, by: Served) -> None:
        """Another choice serves from now on."""
        self.choice, self.tier = by.choice, by.tier

    @property
    def workspace_bytes(self) -> int:
        return self.choice.best.schedule.workspace_bytes if self.choice is not None else 0


class PlanBase:
    """A plan: a request, and a variant for each layout of a call's tensors, built when it first appears.

    A variant that is outdated is built anew at the next call, unless its schedule is forced. Plans are shared by all
    who ask for them. So that each describes itself as the call that it was made for, a plan has views, which share all
    that it knows and differ in the variant that they stand for.
    """

    _request: Request
    _usual: Hashable  # the key of the variant of a call that says nothing special
    _viewed: Hashable = None  # the key of the variant that a view stands for; the plan itself stands for its first
    follows: bool  # functions of the caller, which may change
    _watched: Watched[Any] | None = None  # those functions, where there are any
    _others: BoundedCache  # plans of what they have become, by request
    _needs: tuple[bool, ...] = ()  # which operands require a gradient, where it was made for such

    def __init__(self, request: Request, calls: int) -> None:
        """`calls`: how many are known at once."""
        self._set_request(request)
        self.shape = output_shape(request.notation, request.extents)
        self.dtype = request.d_dtype
        self.dtypes = (self.dtype, *(request.outputs or ()))  # of all results
        self._variants: dict[Hashable, Variant] = {}
        self._calls = Calls(calls)

    @property
    def request(self) -> Request:
        """The request that the plan is made of."""
        return self._request

    @property
    def is_lasting(self) -> bool:
        """Whether it computes in each run what was traced: the reference backend runs the functions themselves."""
        return self._request.backend != "reference" or not any(self._request.raw)

    def given(self, functions: tuple[Callable[..., Any] | None, ...], algebra: Algebra | None) -> Self:
        """The plan for a caller who gave these functions, which compute what was planned."""
        request = self._request
        alike = all(map(is_, request.functions.raw, functions)) and request.raw_algebra is algebra
        return self if alike else self._over(request.given(functions, algebra))

    @property
    def schedule(self) -> Any:
        """The chosen schedule; None for the reference backend."""
        choice = self._first().choice
        return choice.best.schedule if choice else None

    @property
    def workspace_bytes(self) -> int:
        """Bytes allocated during a call, but for the result."""
        return self.schedule.workspace_bytes if self.schedule is not None else 0

    @property
    def kernels(self) -> tuple[Any, ...]:
        """The Triton kernels that a call launches, each with its `ptx`, `sass`, `ttgir`, `registers` and `spills`.

        Empty on the CPU; products that a vendor's library makes are not among them. They are read by weft-tensor-bench:
        `UnsupportedError` where it is not installed.
        """
        if self._request.target.kind == "cpu":
            return ()
        kernels_of = reader("kernels.kernel", "plan.kernels").kernels_of
        found: tuple[Any, ...] = kernels_of(self._first().launch, self._request.target)
        return found

    def warm(self) -> Self:
        """Have the best kernel for the planned tensors now, and not after some calls: compiled, self-tested and kept.

        It takes seconds where nothing is compiled yet. Plans that are specialised already are as they were. Returns the
        plan. Raises what planning raises.
        """
        launch = self._first().launch
        if isinstance(launch, PromotingLaunch):
            launch.warm()
        return self

    def explain(self) -> str:
        """Modes, schedule, bytes, flops, the roofline floor, and why this schedule and not another."""
        from weft.plans.explain.report import explain

        first = self._first()
        behind = getattr(getattr(first.launch, "now", first.launch), "state", None)
        text = explain(self._request, first.description, first.choice, first.tier, behind)
        return f"{text}\n{differentiable('explained')(self, self._needs)}" if self._needs else text

    def report(self) -> Report:
        """The report of `explain` as data: `Report.to_dict` makes JSON of it, and `schedule=` takes its candidates."""
        from weft.plans.explain.report import report

        first = self._first()
        return report(self._request, first.description, first.choice)

    def _repr_html_(self) -> str:
        """HTML for a notebook: the report as tables, and the text of `explain` behind a click."""
        return self.report()._repr_html_() + folded("explain()", self.explain())

    def _set_request(self, request: Request) -> None:
        """Set the request, and watch its functions."""
        self._request, self._others = request, BoundedCache(_OTHERS)
        self.follows = any(function is not None for function in request.raw)
        if self.follows:
            self._watched = Watched(request.raw, self._request_now)

    def _request_now(self) -> Any:
        now = self._request.again()
        return self._request if now == self._request else now

    @property
    def _current(self) -> Self:
        """The plan of what the caller's functions compute now: this one, where they are as they were."""
        if self._watched is None or (request := self._watched.now()) is self._request:
            return self
        found: Self | None = self._others.get(request)
        if found is None:
            make: Callable[[Any], Self] = type(self)
            found = make(request)
            found._watched = None  # this plan looks for it
            self._others.put(request, found)
        return found

    def _over(self, request: Request) -> Self:
        """This plan with the request of another caller, whose functions compute the same."""
        view = self._alike()
        view._set_request(request)
        return view

    def differentiated(self, needs: tuple[bool, ...]) -> Self:
        """A plan that describes its backward pass, too; `needs`: which tensors of A, B, C, operands (or X)."""
        return self._alike(_needs=needs)

    def _alike(self, **changes: Any) -> Self:
        """A view of the plan, which differs in these attributes."""
        view = object.__new__(type(self))
        view.__dict__.update(self.__dict__, **changes)
        return view

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as its request, from which it is made again where it is loaded."""
        return type(self), (self._request,)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        """Itself: nothing in a plan is the caller's to change, and all who ask for one share it."""
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._request.text!r}, {self.schedule or self._request.backend})"

    def _first(self) -> Variant:
        """The variant that stands for the plan where it describes itself, as it was built last."""
        key = self._viewed if self._viewed is not None else next(iter(self._variants), None)
        return self._variant(self._usual) if key is None else self._variants[key]

    def _variant(self, key: Any) -> Variant:
        """The variant for what `_build` takes."""
        known = self._standing(key)
        if known is None:
            self._renew()
            with outside_transforms():
                known = self._build(key)
            known.generation = self._generation()  # at the end: its own tuning and self-tests are part of it
            self._variants[key] = known
        return known

    def _standing(self, key: Any) -> Variant | None:
        """A variant that is built, and not outdated where that counts.

        Within the capture of a CUDA graph none is exchanged: the first call after it does.
        """
        known = self._variants.get(key)
        if known is None or known.generation == self._generation() or self._request.schedule is not None:
            return known
        return known if self._request.device.type == "cuda" and torch.cuda.is_current_stream_capturing() else None

    def _generation(self) -> tuple[int, int]:
        """The state that variants depend on: on a GPU no number of threads."""
        changes, threads = generation()
        return changes, threads if self._request.target.kind == "cpu" else 0

    def _renew(self) -> None:
        """Ask for the number of threads that torch has now."""
        request, threads = self._request, torch.get_num_threads()
        if request.target.kind == "cpu" and request.target.processors != threads and request.schedule is None:
            self._request = replace(request, target=replace(request.target, processors=threads))

    def _build(self, key: Any) -> Variant:
        """Describe, choose and build a variant."""
        raise NotImplementedError

    def run(self, call: Arguments) -> Any:
        """The result of a call on torch tensors: check what can differ, find the variant, launch."""
        return self._ran(self._checked(call))[0]

    def run_known(self, call: Arguments) -> tuple[Any, KnownCall | None]:
        """The result of a call, and the known call of those like it; None where each must be read in full."""
        result, variant = self._ran(self._checked(call))
        return result, None if variant is None else self._known_call(variant, call, result)

    def prepare(self, call: Arguments) -> Self:
        """Plan and build what such a call will launch, checked as that call will; runs nothing.

        Returns the same plan, which describes itself as that call's.
        """
        key = self._key(self._checked(call))
        return self if self._variant(key) is self._first() else self._alike(_viewed=key)

    def _checked(self, call: Arguments) -> Arguments:
        """A call with its factors as plain numbers and its addend as a launch reads it, None where it is not read."""
        raise NotImplementedError

    def _key(self, call: Arguments) -> Any:
        """The key of the variant for a call, whose tensors are checked here: no plan is made for what cannot run."""
        raise NotImplementedError

    def _without_products(self, call: Arguments) -> Any:
        """The result of a call whose `alpha` is 0: operands are not read."""
        raise NotImplementedError

    def _passed(self, variant: Variant, call: Arguments) -> tuple[Any, ...]:
        """The arguments of a variant's launch, which sees memory as it is stored: conjugation is in the description."""
        raise NotImplementedError

    def _known_call(self, variant: Variant, call: Arguments, result: Any) -> KnownCall | None:
        """The known call of one that a variant has run; None where each must be read in full."""
        raise NotImplementedError

    def _ran(self, call: Arguments) -> tuple[Any, Variant | None]:
        """The result, and the variant that made it; None where operands were not read."""
        key = self._key(call)
        if call.alpha == 0:
            return self._without_products(call), None
        variant = self._variant(key)
        return self._launched(variant, call), variant

    def _bound(self, call: Arguments, result: Any) -> BoundCall:
        """A call on tensors that are held; `result`: what a run returns."""
        call = self._checked(call)
        variant = self._variant(self._key(call))
        if call.alpha == 0 or not each_of(call.out)[0].numel():
            return BoundCall(self._request.text, self.run, (call,), result)
        return BoundCall(self._request.text, variant.launch, self._passed(variant, call), result)

    def _launched(self, variant: Variant, call: Arguments) -> Any:
        """The result of a variant, in `out` or in new tensors; nothing is launched where it has no elements."""
        device, new, out = self._request.device, 0, call.out
        if out is None:
            new = sum(math.prod(self.shape) * dtype.itemsize for dtype in self.dtypes)
        check_room(device, new, variant.workspace_bytes)
        try:
            if out is None:
                found = tuple(torch.empty(self.shape, dtype=dtype, device=device) for dtype in self.dtypes)
                out = found if self._request.outputs is not None else found[0]
            if each_of(out)[0].numel():
                variant.launch(*self._passed(variant, call._replace(out=out)))
        except (RuntimeError, MemoryError) as error:
            if is_out_of_memory(error):
                raise workspace_error(device, new, variant.workspace_bytes) from error
            raise
        if call.out is not None:
            written(each_of(call.out))
        return out

    def _places(self) -> Results:
        """New tensors for the results of a bound call."""
        found = tuple(new_tensor(self.shape, dtype, self._request.device) for dtype in self.dtypes)
        return found if self._request.outputs is not None else found[0]

    def _built(self, description: Description, reference: Callable[[], Callable[..., None]]) -> Variant:
        """The variant for a description; `reference` makes the launch of the backend that chooses nothing."""
        asked = self._wanted_for(description)
        if asked is None:
            return Variant(description, None, reference())
        by = served(asked)
        found = Variant(description, by.choice, by.launch, by.tier)
        if promotes(asked, by.tier):
            found.launch = PromotingLaunch(asked, by, found.served)
        return found

    def _wanted_for(self, description: Description) -> ServiceRequest | None:
        """The request for a variant of a description; None for the backend that chooses nothing."""
        request = self._request
        if request.backend == "reference":
            if getattr(request, "invariant", ()):
                raise UnsupportedError("the reference takes no invariant=: it adds as torch does")
            return None
        return ServiceRequest(
            description, request.backend, request.target, request.workspace_limit, request.tune, request.schedule,
            request.specialize,
        )  # fmt: skip
