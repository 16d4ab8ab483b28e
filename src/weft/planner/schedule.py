"""How something is to be computed: the values that families propose and the planner ranks.

A *family* is a module of kernels with four doors; what is described is a contraction or a permutation:

    supports(description, target)    -> None, or one sentence that says why not
    schedules(description, target)   -> Candidates: the legal schedules, and why others are not
    predict(description, schedule, target) -> seconds
    build(description, schedule, target)   -> Launch, or PermutationLaunch

Descriptions go in and values come out: only a `Launch` ever touches a tensor.

A family may have a fifth door, ``adds_in_order(description, schedule)``: whether a schedule of an invariant description
(`Contraction.invariant`) adds the products of each element as all such schedules do, whatever the extents of D.
Families without it serve no invariant description.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import torch

from weft.spec import Contraction
from weft.spec.permutation import Permutation

Scalar = int | float | complex
AuxTensors: TypeAlias = tuple[torch.Tensor | None, ...]
Description: TypeAlias = Contraction | Permutation


def is_invariant(description: Description) -> bool:
    """Whether the bits of an element are to follow from its own products alone."""
    return isinstance(description, Contraction) and description.invariant > 0


@dataclass(frozen=True, slots=True)
class Target:
    """The device a plan is made for, as far as choices depend on it."""

    kind: str  # "cpu", "cuda", "hip", or "interpreter": Triton's own, on the CPU
    index: int = 0
    name: str = ""
    capability: int = 0  # 90 for compute capability 9.0; 0 where there is none
    processors: int = 1  # streaming multiprocessors, or CPU threads
    shared_memory: int = 0  # bytes a thread block may use

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", self.index) if self.kind in ("cuda", "hip") else torch.device("cpu")


class ResourceError(Exception):
    """A built schedule needs more registers or shared memory than the device has; only compiling tells."""


class Schedule(Protocol):
    """One legal way to compute what is described. Frozen, hashable, and it prints itself.

    A schedule of steps that are planned themselves has them in `choices`, a tuple of `weft.planner.planner.Choice`.
    """

    @property
    def family(self) -> str: ...

    @property
    def workspace_bytes(self) -> int: ...

    def __str__(self) -> str: ...


class Launched(NamedTuple):
    """A kernel and its grid, or a function of a CPU; addresses and bytes of its parameters, which are to be copied."""

    function: int
    words: Sequence[int]
    sizes: Sequence[int]
    grid: tuple[int, int, int] = (1, 1, 1)
    threads: int = 1  # of a program of the grid
    shared: int = 0  # bytes
    follows: bool = False  # whether it may begin before the kernel before it has ended


class NewTensor(NamedTuple):
    """The result of a call that is given no place for it."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


#: A plain call, without C and factors: A, B and each auxiliary operand to a new D.
Make: TypeAlias = Callable[..., torch.Tensor]


class Launch(Protocol):
    """A built schedule: runs on new pointers. `c` is None where nothing is added.

    `aux` has a tensor for each auxiliary operand of the contraction, None for a coordinate. A launch may have a method
    `bound` of the same arguments, which returns its run on these very tensors as a callable without arguments, and one
    `maker(new)`, which returns its plain call, or None where it has no shorter one than to allocate D and run.
    """

    def __call__(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        c: torch.Tensor | None,
        d: torch.Tensor,
        alpha: Scalar,
        beta: Scalar,
        aux: AuxTensors = (),
    ) -> None: ...


class PermutationLaunch(Protocol):
    """A built schedule of a permutation. Where something is added, `c` is `d` itself."""

    def __call__(
        self, x: torch.Tensor, c: torch.Tensor | None, d: torch.Tensor, alpha: Scalar, beta: Scalar
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class Candidates:
    """Schedules of a family for one description, and one sentence for each rule that excludes some."""

    schedules: tuple[Schedule, ...] = ()
    excluded: tuple[str, ...] = ()

    @classmethod
    def of(cls, proposals: Iterable[Schedule | str]) -> Candidates:
        """Candidates of schedules, and of sentences in the places of others."""
        every = list(proposals)
        excluded = dict.fromkeys(each for each in every if isinstance(each, str))
        return cls(tuple(each for each in every if not isinstance(each, str)), tuple(excluded))


class Family(Protocol):
    """The doors of a module of kernels; a module with these functions, for one kind of description, is one."""

    __name__: str  # of the module
    NAME: str

    def supports(self, description: Any, target: Target) -> str | None: ...

    def schedules(self, description: Any, target: Target) -> Candidates: ...

    def predict(self, description: Any, schedule: Schedule, target: Target) -> float: ...

    def build(self, description: Any, schedule: Schedule, target: Target) -> Launch | PermutationLaunch: ...


@dataclass(frozen=True, slots=True)
class Ranked:
    """A schedule with the time the cost model expects of it, in seconds, and the family that proposed it."""

    schedule: Schedule
    seconds: float = field(compare=False)
    family: Family = field(compare=False, repr=False)
    measured: float | None = field(default=None, compare=False)  # what it took, where a tuning has timed it
    host: float = field(default=0.0, compare=False)  # seconds of a call on the host, where the model has them apart

    @property
    def waited(self) -> float:
        """Seconds that a user waits for a call among others, measured or predicted: the longer of device and host."""
        return max(self.seconds if self.measured is None else self.measured, self.host)

    def build(self, description: Description, target: Target) -> Any:
        """A launch. `ResourceError` when the device cannot hold it."""
        launch: Any = self.family.build(description, self.schedule, target)
        return Ranged(launch, f"weft {description.text}: {self.schedule}") if _wants_ranges() else launch


ORDERS = tuple(sign * group for group in (1, 2, 4, 8, 16, 32) for sign in (1, -1))


def in_every_order(rank: Ranked) -> list[Ranked]:
    """The schedule, then the same with its output tiles taken in other orders, where it says in which groups they are.

    A group of 1 stays: those tiles must be of the same rows, or there is one column of them. The model tells no order
    from another.
    """
    group: int = getattr(rank.schedule, "group", 1)
    others = [each for each in ORDERS if each != group] if group > 1 else []
    schedule: Any = rank.schedule
    return [rank, *(replace(rank, schedule=replace(schedule, group=each)) for each in others)]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a choice came from."""

    source: Literal["model", "store", "tuned", "forced"]  # the cost model, an earlier tuning, one just now, the caller
    date: str = ""  # of the tuning, ISO 8601


def _wants_ranges() -> bool:
    """Whether launches that are built now are to have NVTX ranges, for the timeline of a profiler."""
    return os.environ.get("WEFT_NVTX") == "1"


class Ranged:
    """A launch within a range of that name; steps of a launch that is made of several have ranges of their own."""

    def __init__(self, launch: Any, name: str) -> None:
        self._launch, self._name = launch, name
        self.kernels = (launch,)  # where `weft_bench.kernels.kernel` looks for what is launched

    def __call__(self, *arguments: Any) -> None:
        with torch.cuda.nvtx.range(self._name):
            self._launch(*arguments)
