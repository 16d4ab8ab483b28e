"""The four doors: what is offered, what it says of itself, and that a launch does what its schedule says."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from cpu.problems import TARGET, Problem, all_schedules, operands
from weft.cpu import family as cpu
from weft.cpu.blocking import SMALL_WORKSPACE, WORKSPACE_CAP, block_counts
from weft.cpu.index_groups import dissect
from weft.cpu.schedule import CpuSchedule, table_bytes
from weft.fn.pointwise import TritonFunction
from weft.planner.schedule import Target
from weft.spec import Arithmetic, Contraction, Role

EXTENTS = {"a": 4, "b": 5, "c": 3, "d": 6, "e": 7, "f": 2, "m": 8, "n": 9, "k": 10}


def offered(problem: Problem, target: Target = TARGET) -> tuple[CpuSchedule, ...]:
    schedules = cpu.schedules(contraction_of(problem), target).schedules
    assert schedules
    return schedules  # type: ignore[return-value]


def blocks(problem: Problem, schedule: CpuSchedule) -> int:
    """How many steps of Python's loops a launch takes."""
    anatomy, tile = dissect(contraction_of(problem)), dict(enumerate(schedule.tile))
    return math.prod(block_counts(anatomy.of(role), tile, anatomy.extents) for role in Role)


class _Allocations(TorchDispatchMode):
    """Counts the bytes of every storage that an operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        self._kept: dict[int, torch.UntypedStorage] = {}

    def know(self, *tensors: torch.Tensor | None) -> None:
        for tensor in tensors:
            if tensor is not None:
                storage = tensor.untyped_storage()
                self._kept[storage._cdata] = storage

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata not in self._kept:
                self.bytes += tensor.untyped_storage().nbytes()
                self.know(tensor)
        return result


WORKSPACES = {
    "packed": Problem("fdea,cebf->dcba", *operands("fdea,cebf->dcba", EXTENTS)),
    "in place": Problem("mk,kn->mn", *operands("mk,kn->mn", EXTENTS)),
    "half": Problem("amk,kn->nma", *operands("amk,kn->nma", EXTENTS, torch.float16)),
    "rounded": Problem("amk,kn->nma", *operands("amk,kn->nma", EXTENTS), precision=torch.float16),
    "C converted": Problem(
        "amk,kn->nma", *operands("amk,kn->nma", EXTENTS), c=torch.ones(9, 8, 4, dtype=torch.float16)
    ),
    "summed alone": Problem("amkb,kn->nma", *operands("amkb,kn->nma", EXTENTS)),
    "half summed alone": Problem("amkb,kn->nma", *operands("amkb,kn->nma", EXTENTS, torch.float16)),
    "elementwise": Problem("amb,mba->bam", *operands("amb,mba->bam", EXTENTS, torch.bfloat16)),
    "complex": Problem("amk,kn->nma", *operands("amk,kn->nma", EXTENTS, torch.complex64, torch.float32)),
    "integer": Problem("amk,kn->nma", *operands("amk,kn->nma", EXTENTS, torch.int16), out_dtype=torch.int32),
}


@pytest.mark.parametrize("problem", WORKSPACES.values(), ids=WORKSPACES.keys())
def test_workspace_is_what_is_allocated(problem: Problem) -> None:
    """Every byte that torch allocates during a launch, counted; workers one after the other count as one."""
    d = torch.empty(problem.shape, dtype=problem.dtype)
    contraction = problem.contraction(d)
    for schedule in all_schedules(contraction):
        launch = cpu.build(contraction, dataclasses.replace(schedule, workers=1), TARGET)
        with _Allocations() as allocations:
            allocations.know(problem.a, problem.b, problem.c, d)
            launch(problem.a, problem.b, problem.c, d, 1, 1)
        tables = table_bytes(dissect(contraction), schedule)  # made by `build`, for all workers
        assert allocations.bytes * schedule.workers + tables == schedule.workspace_bytes, schedule


@pytest.mark.parametrize("problem", WORKSPACES.values(), ids=WORKSPACES.keys())
def test_workspace_is_written_before_it_is_read(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    """A workspace full of NaN changes nothing."""

    def poisoned(elements: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.full((elements * dtype.itemsize,), 0xFF, dtype=torch.uint8).view(dtype)

    for schedule, d in problem.results():
        with monkeypatch.context() as patch:
            patch.setattr("weft.cpu.launch.allocate", poisoned)
            again = torch.empty_like(d)
            problem.launch(dataclasses.replace(schedule, workers=1), again)
        assert torch.equal(d, again), schedule


def huge(equation: str, extent: int, dtype: torch.dtype = torch.float32) -> Problem:
    """A problem that nobody could run: its tensors have no memory."""
    term_a, term_b = equation.split("->")[0].split(",")
    a, b = (torch.empty((extent,) * len(term), dtype=dtype, device="meta") for term in (term_a, term_b))
    return Problem(equation, a, b)


def contraction_of(problem: Problem) -> Contraction:
    return problem.contraction(torch.empty(problem.shape, dtype=problem.dtype, device="meta"))


@pytest.mark.parametrize("cores", [1, 2, 8, 64])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.complex128])
@pytest.mark.parametrize("equation", ["fdea,cebf->dcba", "abcd,cefd->abef", "abc,abd->dcba", "abcd,c->ab"])
def test_workspace_is_bounded(equation: str, dtype: torch.dtype, cores: int) -> None:
    """However large the operands and however many cores; and some schedule is frugal."""
    schedules = offered(huge(equation, 500, dtype), Target("cpu", processors=cores))
    assert max(schedule.workspace_bytes for schedule in schedules) <= WORKSPACE_CAP
    assert min(schedule.workspace_bytes for schedule in schedules) <= SMALL_WORKSPACE


@pytest.mark.parametrize(
    ("equation", "extent"),
    [("fdea,cebf->dcba", 40), ("mk,kn->mn", 3000), ("mk,k->m", 5000), ("k,k->", 1 << 24), ("m,n->nm", 5000),
     ("ab,ba->ab", 5000), ("b,b->b", 1 << 24), ("ab,->ba", 5000), ("ab,->a", 5000), ("abc,->b", 300),
     ("abk,kc->cba", 300), ("kba,kba->ab", 300), ("bmk,bkn->bmn", 300)],
)  # fmt: skip
def test_blocks_are_worth_their_python(equation: str, extent: int) -> None:
    """Each step of Python's loops moves at least 64 KiB or makes a million multiply-adds."""
    problem = huge(equation, extent)
    anatomy = dissect(contraction_of(problem))
    batch, m, n, k = (anatomy.size(anatomy.of(role)) for role in (Role.BATCH, Role.M, Role.N, Role.K))
    moved = 4 * (problem.a.numel() + problem.b.numel() + math.prod(problem.shape))
    best = min(offered(problem), key=lambda schedule: cpu.predict(contraction_of(problem), schedule, TARGET))
    assert blocks(problem, best) <= max(moved >> 16, batch * m * n * k // 10**6, 1)


def test_many_modes_of_two() -> None:
    """25 modes of extent 2, as thrown at vendor libraries: blocks span many of them."""
    labels = "abcdefghijklmnopqrstuvwxy"
    problem = huge(f"{labels},bdfhj->{labels[:-12:-1]}", 2)
    for schedule in offered(problem):
        assert blocks(problem, schedule) <= 2048
        assert all(extent in (1, 2) or mode.extent > 2 for extent, mode in
                   zip(schedule.tile, contraction_of(problem).modes, strict=True))  # fmt: skip


def test_what_lies_as_a_matrix_is_used_as_it_lies() -> None:
    """A plain product is one call on the operands themselves."""
    problem = Problem("mk,nk->nm", *operands("mk,nk->nm", {"m": 300, "n": 200, "k": 100}))
    best = offered(problem)[0]
    assert (best.a.packed, best.b.packed, best.in_place, best.workspace_bytes) == (False, False, True, 0)
    assert blocks(problem, best) == 1


def test_exclusions_are_sentences() -> None:
    problem = Problem("mk,kn->mn", *operands("mk,kn->mn", EXTENTS, torch.float16), functions={"a_fn": torch.sin})
    excluded = cpu.schedules(contraction_of(problem), TARGET).excluded
    assert excluded == (
        "A is not read in place: its function is applied while packing",
        "B is not read in place: it is converted to float32 while packing",
    )


@pytest.mark.parametrize("problem", WORKSPACES.values(), ids=WORKSPACES.keys())
def test_schedules_are_values_that_print_themselves(problem: Problem) -> None:
    contraction = contraction_of(problem)
    first, again = (cpu.schedules(contraction, TARGET).schedules for _ in range(2))
    assert first == again
    assert len(set(first)) == len(first)
    for schedule in first:
        text = str(schedule)
        assert text.startswith(f"{cpu.NAME}: ")
        assert "\n" not in text
        assert schedule.family == cpu.NAME
        seconds = cpu.predict(contraction, schedule, TARGET)
        assert 0 < seconds < 1


def test_prediction_grows_with_the_work() -> None:
    seconds = []
    for extent in (100, 200, 400, 800, 1600):
        contraction = contraction_of(huge("mk,kn->mn", extent))
        schedules = cpu.schedules(contraction, TARGET).schedules
        seconds.append(min(cpu.predict(contraction, schedule, TARGET) for schedule in schedules))
    assert seconds == sorted(seconds)
    assert 4 < seconds[-1] / seconds[-2] < 16


def test_supports() -> None:
    problem = Problem("mk,kn->mn", *operands("mk,kn->mn", EXTENTS))
    contraction = contraction_of(problem)
    assert cpu.supports(contraction, TARGET) is None
    assert "cuda" in str(cpu.supports(contraction, Target("cuda")))
    boolean = dataclasses.replace(contraction, a=contraction.a._replace(dtype=torch.bool))
    assert "bool" in str(cpu.supports(boolean, TARGET))
    half = dataclasses.replace(contraction, arithmetic=Arithmetic(torch.float16, torch.float16))
    assert cpu.supports(half, TARGET) == "sums in float16 are not supported"
    parts = dataclasses.replace(contraction, arithmetic=Arithmetic(torch.complex64, torch.float32))
    assert cpu.supports(parts, TARGET) == "products in complex64 do not add up in float32"


def test_supports_no_triton_function() -> None:
    triton = pytest.importorskip("triton")

    @triton.jit
    def twice(x):  # type: ignore[no-untyped-def]
        return 2 * x

    function = TritonFunction(twice, "twice", ("x",), (torch.float32,))
    contraction = contraction_of(Problem("mk,kn->mn", *operands("mk,kn->mn", EXTENTS)))
    sentence = cpu.supports(dataclasses.replace(contraction, epilogue=function), TARGET)
    assert sentence == "twice is a Triton function; the CPU needs it written with torch operations"
