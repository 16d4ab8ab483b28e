"""Contractions over ranks against `weft.contract` on the whole tensors, whatever is placed how and whatever travels."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch

import distributed_cases
import rank_problems
import weft
from distributed_cases import random_case
from gpu.reporting import PARTS
from on_ranks import Outcome, on_ranks
from rank_problems import Case
from weft.api.describe import find_target
from weft.distributed import Placement
from weft.distributed.link import GLOO
from weft.distributed.placement import Placed, RankProblem, Span, chunks, runs_of
from weft.distributed.prediction import KernelModel, Prediction, ranked
from weft.planner.schedule import Target

pytestmark = pytest.mark.early
MATRIX = {"m": 10, "n": 9, "k": 13}


def whole_matrix_products() -> list[Case]:
    """Every placement of A, B and D on a line of ranks."""
    return [
        Case("mk,kn->mn", MATRIX, {"a": a, "b": b, "d": d}, (2,))
        for d in ("m", "n", None) for a in ("m", "k", None) for b in ("n", "k", None)
    ]  # fmt: skip


FUSED = Case(
    "bmk,bkn->bmn", {"b": 3, "m": 7, "n": 5, "k": 8}, {"a": "k", "b": "k", "d": "m", "bias": "n"}, (2,), torch.float32,
    {"a_fn": rank_problems.leaky, "c_fn": torch.neg, "epilogue": rank_problems.biased, "indices": {"row": "m"}},
    {"bias": "mn"}, c="b1n", alpha=2, beta=3,
)  # fmt: skip


#: Ranks that meet in a collective need other indices of a mode that does not travel.
APART = [
    Case("mk,kn->mn", {"m": 9, "n": 9, "k": 3}, {"a": ("k", "m"), "b": ("k", "n"), "d": ("n", "n")}, (2, 2)),
    Case("mkl,lkn->nm", {"m": 1, "n": 3, "k": 8, "l": 5}, {"a": ("l", None), "b": ("k", "k")}, (2, 2),
         options={"algebra": "min_plus", "a_fn": torch.abs}),
]  # fmt: skip


def checked(outcomes: list[Outcome]) -> list[Any]:
    assert [outcome.message for outcome in outcomes] == [""] * len(outcomes)
    return [outcome.value for outcome in outcomes]


@pytest.fixture(scope="module")
def on_two() -> list[Any]:
    return checked(on_ranks(2, distributed_cases.on_two, [*whole_matrix_products(), FUSED], limit=240))


@pytest.fixture(scope="module", params=PARTS)
def on_four(request: pytest.FixtureRequest) -> list[Any]:
    cases = [random_case(seed, 4, distributed_cases.FEW) for seed in range(request.param, 10, 2)]
    return checked(on_ranks(4, distributed_cases.on_four, cases, APART))


def wrong_of(results: list[tuple[int, list[str]]]) -> list[str]:
    return [text for _, wrong in results for text in wrong]


def test_every_way_of_every_placement_is_the_whole_on_one_process(on_two: list[Any]) -> None:
    for one in on_two:
        assert not wrong_of(one["cases"])
    ways = [count for count, _ in on_two[0]["cases"]]
    assert sum(ways) > 100  # each placement in several ways, by parts along every mode
    assert on_two[0]["cases"] == on_two[1]["cases"]


def test_random_contractions_on_meshes_of_four(on_four: list[Any]) -> None:
    for results in on_four:
        assert not wrong_of(results)


def test_eight_ranks_on_meshes_of_up_to_three_dimensions() -> None:
    """Contractions are the whole; one error names the rank that is wrong; one that is slow is waited for."""
    cases = [random_case(seed, 8, distributed_cases.FEW) for seed in (1, 3, 5, 6, 8, 10)]
    assert {len(case.mesh) for case in cases} == {1, 2, 3}
    results = checked(on_ranks(8, distributed_cases.on_eight, cases, limit=300))
    for one in results:
        assert not wrong_of(one["cases"])
        assert one["error"][0] == "ShapeError"
        assert "rank 5 of 8" in one["error"][1]
        assert one["slow"]


@pytest.mark.parametrize("mesh", [(4,), (2, 4)])
def test_a_rank_that_ends_within_a_call_is_named_on_all_others(mesh: tuple[int, ...]) -> None:
    size = math.prod(mesh)
    outcomes = on_ranks(size, distributed_cases.one_ends, mesh, limit=90)
    assert outcomes[3].ended
    for outcome in (*outcomes[:3], *outcomes[4:]):
        assert outcome.error == "RankError"
        assert f"rank 3 of {size}" in outcome.message
        assert "ended" in outcome.message
        assert "distributed.plan('mk,kn->mn')" in outcome.message


@pytest.mark.keeps
def test_contract_keeps_its_plan(on_two: list[Any]) -> None:
    for one in on_two:
        assert one["contract"] == (True, True)
        assert one["plans made"] == 1


def test_tuples_of_results_and_calls_without_agreement(on_two: list[Any]) -> None:
    for one in on_two:
        count, right = one["further results"]
        assert right
        assert count > 20


def test_dtensors_say_how_they_lie(on_two: list[Any]) -> None:
    for one in on_two:
        assert one["dtensor"] == ("DTensor", [12, 6], True)
        assert one["partial"] == ("UnsupportedError", True)


def test_one_error_on_every_rank(on_two: list[Any]) -> None:
    said = [
        {name: (kind, text.partition("\n  in ")[0]) for name, (kind, text) in one["errors"].items()} for one in on_two
    ]
    assert said[0] == said[1]
    errors = on_two[0]["errors"]
    expected = {
        "no mesh": ("ArgumentError", "the mesh 2 x 2 has 4 places, the group 2 ranks"),
        "two dimensions": ("ArgumentError", "ranks 0, 1 of 2: a is placed along 2 dimensions ('m', 'k'), the mesh of 2 "
                           "ranks has 1"),
        "no label": ("NotationError", "ranks 0, 1 of 2: b is placed by mode 'm', which 'kn' has not"),
        "diagonal": ("NotationError", "a is placed by mode 'm', which 'mm' has twice, as a diagonal"),
        "other shapes": ("ShapeError", "rank 1 of 2: b has extent 5 along 'n', its part of 4 is 4"),
        "odd parts": ("ShapeError", "a has extent 3 along 'k', its part of 7 is 4"),
        "other equations": ("RankError", "ranks are at different calls: rank 0 of 2: distributed.plan('mk,kn->mn'); "
                            "rank 1 of 2: distributed.plan('mk,kn->nm')"),
        "other placements": ("ShapeError", "the placement of d differs: rank 0 of 2: ['m']; rank 1 of 2: ['n']"),
        "other types": ("ShapeError", "the type of b differs: rank 0 of 2: float32; rank 1 of 2: float64"),
        "other alpha": ("ShapeError", "alpha differs: rank 0 of 2: 1; rank 1 of 2: 2"),
        "a call's shape": ("ArgumentError", "rank 1 of 2: a 'mk' has shape (4, 9) here, the plan was made for (4, 3)"),
        "other functions": ("ShapeError", "what epilogue computes differs: rank 0 of 2: %0: float32; "),
        "other algebras": ("ShapeError", "what the algebra's combine computes differs: rank 0 of 2: "),
        "a function": ("FunctionError", "ranks 0, 1 of 2: "),
        "return_arg": ("UnsupportedError", "ranks 0, 1 of 2: return_arg is for algebras that select"),
        "return_arg, c": ("UnsupportedError", "return_arg finds a pair of A and B: c has no place"),
        "return_arg, two values": ("UnsupportedError", "return_arg is for an epilogue of one value"),
        "return_arg on one rank": ("ShapeError", "return_arg differs: rank 0 of 2: False; rank 1 of 2: True"),
        "return_arg, gradient": ("UnsupportedError", "a requires a gradient: over ranks the algebra max_plus has none"),
        "mesh of one rank": ("ArgumentError", "rank 1 of 2: the mesh 2 x 2 has 4 places, the group 2 ranks"),
        "a word": ("ArgumentError", "distributed takes no keyword 'epilog': did you mean 'epilogue'?"),
        "a link": ("ArgumentError", "no link is called 'nvlnk': did you mean 'nvlink'?"),
    }  # fmt: skip
    for name, (kind, words) in expected.items():
        assert errors[name][0] == kind, (name, errors[name])
        assert words in errors[name][1], (name, errors[name])


def test_where_a_value_was_selected(on_two: list[Any]) -> None:
    """Of equal values the first index of the whole tensors, whichever rank has it, and -1 where there is nothing."""
    for one in on_two:
        ways, wrong, said = one["selected"]
        assert not wrong
        assert ways > 60
        assert said["validated"]
        assert said["dtensor"] == ("DTensor", True)
        assert "D: reduce-scatter of values with their indices along 'm', after all parts" in said["explain"]
        assert "rank 0 sends 192 B" in said["explain"]  # half of 6 x 4 pairs of 16 bytes


def test_explain_says_what_travels(on_two: list[Any]) -> None:
    text = on_two[0]["explain"]
    assert "ranks share out 'k' (k) along dimension 0" in text
    assert "D: reduce-scatter of sums along 'm', part by part" in text
    assert "in 4 parts along 'n'" in text
    assert "rank 0 sends 1.05 MB over nvlink" in text  # half of 1024 x 512 sums of four bytes
    assert "bounds it" in text
    paper = on_two[0]["on paper"]
    assert "over 256 ranks" in paper
    assert "8 ranks a machine" in paper
    assert "assumed:" in paper
    assert re.search(r"over nvlink, .* over ib", paper)


def test_a_timeline_is_measured(on_two: list[Any]) -> None:
    for one in on_two:
        timeline = one["timeline"]
        assert timeline.kind == "measured"
        assert timeline.compute > 0
        assert timeline.transfer > 0
        assert timeline.seconds >= max(timeline.compute, timeline.transfer)
        assert 0 <= timeline.hidden <= 1
        text = str(timeline)
        assert "compute  |" in text
        assert "transfer |" in text


def test_a_profile_has_the_timelines_of_all_ranks(on_two: list[Any]) -> None:
    first, second = (one["profile"] for one in on_two)
    assert first.samples == second.samples
    assert first.measured == second.measured
    assert len(first.samples) >= 3
    assert min(timeline.begin for timeline in first.measured) == pytest.approx(0.0, abs=1e-3)
    for timeline in first.measured:
        computed = {event.step: event for event in timeline.events if event.name.startswith("part")}
        summed = {event.step: event for event in timeline.events if event.name.startswith("D: reduce-scatter")}
        assert list(computed) == list(summed) == [0, 1, 2, 3]
        assert all(summed[at].begin >= computed[at].end for at in computed)  # a part's sums go when they are there
        (agreement,) = (event for event in timeline.events if event.lane == "host")
        assert agreement.end <= computed[0].begin
        busy = timeline.busy("compute", "transfer")
        assert timeline.orchestration == pytest.approx(timeline.seconds - busy)
        hidden = timeline.compute + timeline.transfer - busy
        assert timeline.hidden == pytest.approx(hidden / timeline.transfer)
    assert first.predicted.kind == "predicted"
    assert {event.step for event in first.predicted.events} == {0, 1, 2, 3}
    text = str(first)
    for words in ("over 2 ranks, mesh 2", "predicted compute  |", "rank 0    compute  |", "rank 1    compute  |"):
        assert words in text
    assert re.search(r"^rank 1 +2 .* transfer +D: reduce-scatter along 'm', part 2$", first.table(), re.MULTILINE)


def test_validate_judges_the_whole_and_names_the_rank(on_two: list[Any]) -> None:
    a, b = rank_problems.values((6, 9), torch.float64, 1), rank_problems.values((9, 7), torch.float64, 2)
    right = a @ b
    for rank, one in enumerate(on_two):
        found = one["validated"]
        assert torch.equal(found["right"], right.chunk(2)[rank])
        value = right[5, 2].item()
        for d in ("m", None):
            kind, text = found[f"spoilt, {d}"]
            assert kind == "AccuracyError"
            assert f"rank 1 of 2: D[m=5, n=2] is {value + 1}, expected {value} within" in text
            count = 21 if d == "m" else 42  # of those that the rank has
            assert f"1 of {count} sampled elements are off" in text
        assert found["a word"][0] == "ArgumentError"
        assert "validate is True or False, not 'often'" in found["a word"][1]
        assert found["in a plan"][0] == "UnsupportedError"
        assert "it is of a call, plan(a, b, validate=True)" in found["in a plan"][1]


def test_a_link_is_measured(on_two: list[Any]) -> None:
    for one in on_two:
        link = one["link"]
        assert link == on_two[0]["link"]
        assert 1e-7 < link.latency < 1
        assert 1e6 < link.bandwidth < 1e12
        assert one["link is used"] == link


def test_chunks_are_those_of_torch() -> None:
    for extent in (0, 1, 5, 8, 9):
        for parts in (1, 2, 3, 4, 7):
            mine = [span.extent for span in chunks(Span(0, extent), parts) if span.extent]
            assert mine == [len(one) for one in torch.arange(extent).chunk(parts) if len(one)]


def test_even_spans_are_one_run() -> None:
    spans = [Span(0, 2), Span(5, 7), Span(10, 12), Span(12, 13), Span(20, 20)]
    assert list(runs_of(spans)) == [Span(0, 2, 3, 5), Span(12, 13)]
    apart = [Span(0, 2), Span(0, 0), Span(4, 6), Span(6, 8), Span(10, 12)]  # the piece between is the rank's own
    assert list(runs_of(apart)) == [Span(0, 2), Span(4, 6, 2, 2), Span(10, 12)]


def test_placements_print_and_compare() -> None:
    assert repr(Placement("m", None)) == "Placement('m', None)"
    assert Placement("m") == Placement("m") != Placement("k")
    assert len({Placement("m"), Placement("m")}) == 1


def test_without_a_group_there_is_an_error() -> None:
    with pytest.raises(weft.ArgumentError, match="no process group"):
        weft.distributed.contract("mk,kn->mn", torch.ones(2, 3), torch.ones(3, 4), placements={"a": "k", "b": "k"})
    with pytest.raises(weft.ArgumentError, match="memory_limit= is for device="):
        weft.distributed.contract("mk,kn->mn", torch.ones(2, 3), torch.ones(3, 4), memory_limit="1GB")


@pytest.mark.parametrize(("extent", "parts"), [(128, False), (512, False), (4096, True)])
def test_on_cpus_a_product_too_small_to_split_is_summed_at_once(extent: int, parts: bool) -> None:
    """A part costs a thread's waking there; large ones are worth it."""
    terms = ("m", "k"), ("k", "n"), ("m", "n")
    extents = dict.fromkeys("mnk", extent)
    tensors = [Placed(name, term, (at,)) for name, term, at in zip("abd", terms, ("k", "k", None), strict=True)]
    shapes = dict.fromkeys("abd", (extent, extent))
    kernel = KernelModel(terms, (torch.float32,) * 3, Target("cpu", name="CPU", processors=1))
    problem = RankProblem(*tensors, shapes, extents, (2,), {"a": 4, "b": 4, "d": 4, "sum": 4})
    best = ranked(problem, kernel, GLOO)[0]
    assert (best.strategy.loop is not None) is parts
    assert best.strategy.reductions


def test_what_travels_beside_kernels_that_hold_a_gpu_is_counted_in_full() -> None:
    """Two H200: an operand is gathered in one piece while a rank's own is contracted; sums leave in one piece."""
    term_a, term_b, term_d = ("m", "k"), ("k", "n"), ("m", "n")
    extents = {"m": 31744, "n": 31744, "k": 126976}
    named = {"a": term_a, "b": term_b, "d": term_d}
    shapes = {name: tuple(extents[label] for label in term) for name, term in named.items()}
    items = {"a": 2, "b": 2, "d": 4, "sum": 4}
    kernel = KernelModel((term_a, term_b, term_d), (torch.float16, torch.float16, torch.float32), find_target("h200"))
    link = weft.distributed.Link("nvlink", 10e-6, 247e9, "measured")

    def best(*places: str) -> Prediction:
        terms = zip("abd", (term_a, term_b, term_d), places, strict=True)
        a, b, d = (Placed(name, term, (at,)) for name, term, at in terms)
        return ranked(RankProblem(a, b, d, shapes, extents, (2,), items), kernel, link)[0]

    gathered, summed = best("m", "n", "m"), best("k", "k", "m")
    travel = link.seconds("all-gather", 2 * extents["k"] * extents["n"], 2)
    alone = kernel.whole({**extents, "m": extents["m"] // 2})
    assert kernel.stays(extents)
    assert gathered.strategy.parts == 1
    assert gathered.strategy.own_first == "b"
    assert alone + travel <= gathered.seconds <= 1.01 * (alone + travel)
    assert summed.strategy.parts == 1
    assert summed.seconds >= kernel.whole({**extents, "k": extents["k"] // 2}) + summed.timeline.transfer
