"""Kernels against the oracle at odd extents, in numba's simulator and Triton's interpreter; on a GPU at larger ones."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from weft.errors import DTypeError, ShapeError, UnsupportedError
from weft_bench.cases import Case
from weft_bench.ladder import LADDERS, Flight, Ladder, Rung, Size, ladder
from weft_bench.ladder.problems import (
    Histogram,
    LadderContraction,
    LadderProblem,
    Sums,
    Transposition,
    TwoSite,
    product,
)
from weft_bench.ladder.rung import predicted_gain, published_gain, read_head
from weft_bench.ladder.threads import SIMULATED

CPU = torch.device("cpu")
#: A tile and a bit of what a kernel takes at once along m, n or k: several blocks or steps, the last ones cut.
PRODUCTS = {
    "naive": (33, 2, 3), "coalesced": (3, 33, 5), "shared sums": (33, 2, 33), "shared tiles": (2, 3, 33),
    "padded tiles": (33, 2, 3), "column a thread": (65, 3, 9), "4 x 4 a thread": (3, 65, 17),
    "8 x 8 a thread": (129, 2, 3), "vectors": (2, 129, 3), "warp tiles": (129, 2, 3), "double buffers": (2, 3, 17),
    "cuBLAS": (5, 6, 7),
}  # fmt: skip
MATRICES = {"thread an element": (3, 34), "padded tiles": (33, 3), "wide tiles": (67, 3)}
#: Kernels that single precision has too: one block, and a step cut.
DOUBLES = {"4 x 4 a thread": (3, 2, 17)}
#: Runs of eight along a and d; where each element has a thread of its own, few of them.
EXTENTS = {"loops": {"a": 8, "b": 3, "c": 2, "d": 16, "e": 5, "f": 7}}
TWO_SITE = {"0 direct": (2, 3, 5), "3 on the chip": (2, 3, 17), "6 one launch": (2, 3, 17), "5 balance": (1, 3, 17)}


def right(rung: Rung, problem: LadderProblem, device: torch.device = CPU) -> None:
    """The error is within the bound; not all of it is zero by accident."""
    assert problem.checker(device)(rung.run) <= 1


def rungs(name: str, flight: str) -> Iterator[Rung]:
    """Those with a kernel of their own that runs without a GPU: what weft does on a CPU has tests elsewhere."""
    for of, rung in ladder(name).rungs:
        if of.name == flight and rung.tool not in ("Gluon", "weft family", "weft"):
            yield rung


@pytest.mark.one_of(4)
@pytest.mark.parametrize("rung", rungs("multiply", "fp32"), ids=lambda rung: rung.name)
def test_products(rung: Rung) -> None:
    right(rung, product(*PRODUCTS[rung.name], torch.float32))


DOUBLE = [
    pytest.param(rung, marks=[] if rung.name in ("shared tiles", "4 x 4 a thread", "cuBLAS") else pytest.mark.slow)
    for rung in rungs("multiply", "fp64")
]  # what single precision has too


@pytest.mark.one_of(3)
@pytest.mark.parametrize("rung", DOUBLE, ids=lambda rung: rung.name)
def test_products_in_double(rung: Rung) -> None:
    right(rung, product(*DOUBLES.get(rung.name, (3, 2, 33)), torch.float64))


@pytest.mark.parametrize("rung", rungs("reduce", "sums"), ids=lambda rung: rung.name)
def test_sums_of_rows(rung: Rung) -> None:
    if rung.name == "shuffles" and SIMULATED:
        with pytest.raises(UnsupportedError, match="simulator has no shuffles"):
            right(rung, Sums(3, 5))
        return
    right(rung, Sums(3, 515))


@pytest.mark.parametrize("count", [1, 700])
@pytest.mark.parametrize("rung", rungs("reduce", "histogram"), ids=lambda rung: rung.name)
def test_histograms(rung: Rung, count: int) -> None:
    right(rung, Histogram(count))


@pytest.mark.parametrize("shape", [(7, 13, 9), (1, 1, 3), (8, 16, 4)])
@pytest.mark.parametrize("rung", rungs("cpu", "one thread"), ids=lambda rung: rung.name)
def test_products_on_a_cpu(rung: Rung, shape: tuple[int, int, int]) -> None:
    right(rung, product(*shape, torch.float32))


@pytest.mark.parametrize("rung", rungs("multiply", "tf32"), ids=lambda rung: rung.name)
def test_products_in_tf32(rung: Rung) -> None:
    right(rung, product(129, 130, 33, torch.float32, "tf32"))


@pytest.mark.parametrize("rung", rungs("multiply", "fp16"), ids=lambda rung: rung.name)
def test_products_of_halves(rung: Rung) -> None:
    right(rung, product(133, 264, 72, torch.float16))


@pytest.mark.one_of(3)
@pytest.mark.parametrize("rung", rungs("transpose", "rows"), ids=lambda rung: rung.name)
def test_transpositions(rung: Rung) -> None:
    rows, columns = (35, 35) if rung.kind == "in place" else MATRICES.get(rung.name, (35, 66))
    right(rung, Transposition(rows, columns, torch.float32, kind=rung.kind))


@pytest.mark.parametrize("at", [2, 4, 8], ids=["one kernel", "in place", "copy"])
def test_transpositions_of_matrices_stored_by_columns(at: int) -> None:
    rung = ladder("transpose").flights[1].rungs[at]
    right(rung, Transposition(35, 35 if rung.kind == "in place" else 3, torch.float32, True, rung.kind))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64], ids=str)
def test_transpositions_of_other_types_and_of_whole_tiles(dtype: torch.dtype) -> None:
    diagonal = ladder("transpose").flights[0].rungs[1]
    right(diagonal, Transposition(64, 32, dtype))


@pytest.mark.one_of(3)
@pytest.mark.parametrize("rung", rungs("tensor", "two-site"), ids=lambda rung: rung.name)
def test_updates_of_two_sites(rung: Rung) -> None:
    right(rung, TwoSite(*TWO_SITE.get(rung.name, (2, 3, 9))))


def case(equation: str, **extents: int) -> Case:
    a, b = equation.partition("->")[0].split(",")
    shapes = tuple(extents[label] for label in a), tuple(extents[label] for label in b)
    return Case("case", equation, shapes, (torch.float16, torch.float16, torch.float32))


@pytest.mark.parametrize("rung", rungs("tensor", "methods"), ids=lambda rung: rung.name)
def test_contractions(rung: Rung) -> None:
    """Every extent another one, so that strides cannot be mixed up; a and d in runs of eight."""
    extents = EXTENTS.get(rung.name, {"a": 16, "b": 9, "c": 5, "d": 24, "e": 3, "f": 7})
    right(rung, LadderContraction(case("fbea,ecfd->dcba", **extents)))


def test_a_wrong_kernel_is_found_out() -> None:
    """By each kind of problem: the checks of the tests above can fail."""
    wrong = {
        product(5, 6, 7, torch.float32): lambda a, b, d: torch.mm(a, b, out=d).mul_(1 + 1e-5),
        Transposition(4, 5, torch.float32): lambda x, d: d.copy_(x.t()).fill_diagonal_(0),
        Transposition(4, 4, torch.float32, kind="in place"): lambda x: x,
        TwoSite(2, 3, 5): lambda g, x, m, y: torch.matmul(g @ x, m, out=y).mul_(1 + 1e-4),
    }
    for problem, run in wrong.items():
        with pytest.raises(AssertionError):
            problem.checker(CPU)(run)


def test_empty_matrices_are_no_error() -> None:
    a, b, d = torch.ones(0, 3), torch.ones(3, 4), torch.empty(0, 4)
    for name in ("naive", "vectors"):
        rung = next(rung for _, rung in ladder("multiply").rungs if rung.name == name)
        assert rung.run(a, b, d).shape == (0, 4)


def test_what_a_kernel_does_not_take_is_refused_with_the_figures() -> None:
    maps = next(rung for _, rung in ladder("multiply").rungs if rung.name == "TMA")
    half = torch.float16
    with pytest.raises(UnsupportedError, match=r"multiple of 16 bytes; those of the 4 x 5 matrix.*10 bytes apart"):
        maps.run(torch.ones(4, 5, dtype=half), torch.ones(5, 8, dtype=half), torch.ones(4, 8, dtype=half))
    brain = torch.ones(8, 8, dtype=torch.bfloat16)
    with pytest.raises(UnsupportedError, match="interpreter does not multiply bfloat16"):
        maps.run(brain, brain, brain.clone())
    runs = next(rung for _, rung in ladder("tensor").rungs if rung.name == "runs stated")
    with pytest.raises(UnsupportedError, match="extents a and d to be multiples of it, not 9, 8"):
        runs.run(torch.ones(2, 2, 2, 9, dtype=half), torch.ones(2, 2, 2, 8, dtype=half), torch.empty(8, 2, 2, 9))
    one = next(rung for _, rung in ladder("tensor").rungs if rung.name == "6 one launch")
    with pytest.raises(UnsupportedError, match="a bond of at most 256 on the chip, not of 257"):
        one.run(torch.ones(2, 2), torch.ones(1, 2, 257), torch.ones(257, 2), torch.empty(1, 2, 2))
    family = next(rung for _, rung in ladder("multiply").rungs if rung.tool == "weft family")
    with pytest.raises(UnsupportedError, match="family 'gett' is one of GPUs"):
        family.run(torch.ones(2, 2), torch.ones(2, 2), torch.ones(2, 2))


@pytest.mark.gpu
@pytest.mark.parametrize("name", LADDERS)
@pytest.mark.parametrize("extent", [40, 264])
def test_every_rung_is_right_on_a_gpu(name: str, extent: int) -> None:
    """Those that say why they do not run: Gluon's on another GPU, families without a schedule for such extents."""
    if extent > 100 and name == "tensor":
        pytest.skip("six modes of this extent do not fit")
    from weft_bench.ladder import How, Size, climb

    found = climb(ladder(name), How(Size(extent), torch.device("cuda"), budget=0.0))
    assert not [(step.name, step.wrong) for step in found.steps if step.wrong]
    assert all(step.seconds for step in found.steps if not step.missing)
    assert {step.tool for step in found.steps if step.missing} <= {"Gluon", "weft family"}


ALL = [(which, flight, rung) for which in LADDERS.values() for flight, rung in which.rungs]
LINES = 80  # of a kernel's file, its docstring aside: one screen, and a half for roles of warps
ids = [f"{which.name} {flight.name} {rung.name}" for which, flight, rung in ALL]


@pytest.mark.parametrize(("which", "flight", "rung"), ALL, ids=ids)
def test_a_rung_says_what_it_is(which: Ladder, flight: Flight, rung: Rung) -> None:
    assert rung.title
    assert not rung.title.endswith(".")
    assert len(rung.idea) > 60
    assert rung.picture
    assert len(rung.source.splitlines()) <= (LINES if rung.tool != "Gluon" else LINES + 30)
    assert f"def {rung.function}(" in rung.source
    assert rung.predicted.times_floor >= 1
    assert rung.predicted.because
    assert all(each.source and each.figure for each in rung.published)
    assert callable(rung.run)
    assert flight.problem(Size(which.tiny), rung.kind).work.traffic > 0


@pytest.mark.parametrize("which", LADDERS.values(), ids=list(LADDERS))
def test_names_are_unique_within_a_flight_and_gains_over_rungs_below(which: Ladder) -> None:
    for flight in which.flights:
        names = [rung.name for rung in flight.rungs]
        assert len(set(names)) == len(names)
        for at, rung in enumerate(flight.rungs):
            before = flight.before(rung)
            assert (before is None) == (at == 0)
            assert before is None or names.index(before.name) < at


def test_gains_are_ratios_of_predicted_times_and_of_published_figures() -> None:
    flight = ladder("multiply").flights[0]
    naive, coalesced = flight.rungs[:2]
    assert predicted_gain(None, naive) is None
    assert predicted_gain(naive, coalesced) == pytest.approx(33 / 2)
    assert published_gain(coalesced) == pytest.approx(6358.7 / 498.7)
    assert published_gain(naive) is None


def test_published_products_stand_in_the_order_of_their_source() -> None:
    """The thesis's kernels, each faster than the one that its gain is over."""
    gains = {each.figure.split(":")[0]: each.gain for _, _, rung in ALL for each in rung.published if each.gain}
    assert gains["kernel 1.6"] == pytest.approx(2.021816 / 1.130343)
    assert gains["kernel 2.3"] == pytest.approx(6.498019 / 3.821392)
    assert all(gain > 1 for gain in gains.values())


def test_an_unknown_ladder_is_an_error_that_names_the_others() -> None:
    with pytest.raises(UnsupportedError, match=r"'multipy': multiply, transpose, tensor, reduce, cpu.*multiply"):
        ladder("multipy")


def test_types_and_shapes_that_a_flight_does_not_have_are_refused() -> None:
    single, _, half, _ = ladder("multiply").flights
    with pytest.raises(DTypeError, match="flight 'fp32' is of float32, not of float16"):
        single.problem(Size(8, torch.float16), "")
    with pytest.raises(DTypeError, match="'fp16' is of float16 or bfloat16, not of float64"):
        half.problem(Size(8, torch.float64), "")
    with pytest.raises(DTypeError, match="'methods' is of float16 or bfloat16, not of float32"):
        ladder("tensor").flights[0].problem(Size(8, torch.float32), "")
    with pytest.raises(DTypeError, match="'two-site' is of float32"):
        ladder("tensor").flights[3].problem(Size(8, torch.float16), "")
    with pytest.raises(ShapeError, match="3 x 4 is not square"):
        Transposition(3, 4, torch.float32, kind="in place").tensors(torch.device("cpu"))


def test_a_head_is_title_idea_and_picture() -> None:
    head = read_head('"""A title\n\nAn idea\nin two lines.\n\n    a\n      picture\n\nMore.\n"""\nx = 1\n')
    assert head.title == "A title"
    assert head.idea == "An idea in two lines.\n\nMore."
    assert head.picture == "a\n  picture"


def test_what_can_be_read_imports_no_kernel() -> None:
    """A list of rungs neither needs nor loads what they are written in."""
    code = (
        "import sys; from weft_bench import ladder; [rung.source for _, _, rung in ladder.ladder('tensor')]; "
        "assert not {'triton', 'numba.cuda'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
