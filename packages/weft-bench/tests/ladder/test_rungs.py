"""Every rung is a value that can be read: its file, its idea, where its figures come from."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from weft.errors import DTypeError, ShapeError, UnsupportedError
from weft_bench.ladder import LADDERS, Flight, Ladder, Rung, Size, ladder
from weft_bench.ladder.problems import Transposition
from weft_bench.ladder.rung import predicted_gain, published_gain, read_head

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
