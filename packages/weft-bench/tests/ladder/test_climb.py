"""A climb: what it writes down, what it says of rungs that cannot run or are wrong, its page, and the command."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from commands import told
from weft.errors import DTypeError, UnsupportedError, WeftError
from weft.machine.ceilings import from_datasheet
from weft_bench.ladder import Climb, Flight, How, Ladder, Prediction, Rung, Size, Step, climb, ladder, save
from weft_bench.ladder import climbing as climbing_module
from weft_bench.ladder.climbing import RungRecipe, floor_of
from weft_bench.ladder.problems import Transposition, product
from weft_bench.ladder.record import read
from weft_bench.ladder.text import NOT_MEASURED, rows

HOW = How(Size(6), torch.device("cpu"))
QUICK = (14, 17, 21)  # of multiply: the library twice, and one in Gluon


@pytest.fixture(scope="module")
def climbed() -> Climb:
    return climb(ladder("multiply"), HOW, QUICK)


def timed(name: str, seconds: float, over: str = "", **more: object) -> Step:
    """A step as a GPU would have left it."""
    return Step(
        1, "fp32", name, "A title", "Triton", "a problem", over, 2.0 if over else None, 0.5, "a reason",
        [{"figure": "9 GFLOP/s", "source": "a book", "gain": 3.0, "share": 0.4, "of": "peak"}], 3.0,
        {"value": seconds, "low": seconds, "high": seconds}, share=0.25, flops=10**12, bytes=10**9,
        error_over_bound=0.5, **more,
    )  # fmt: skip


def said_of(*words: Any, code: int = 0) -> str:
    """What the command says, in one line."""
    return " ".join(told("ladder", *words, code=code).split())


def test_without_a_gpu_values_are_checked_and_nothing_is_timed(climbed: Climb) -> None:
    assert not climbed.measured
    assert [step.number for step in climbed.steps] == list(QUICK)
    library, tf32, gluon = climbed.steps
    assert library.state == tf32.state == "right"
    assert library.error_over_bound is not None
    assert 0 < library.error_over_bound <= 1
    assert gluon.state == "not run"
    assert "Gluon has no interpreter" in gluon.missing
    assert not any(step.seconds or step.share or step.gain for step in climbed.steps)
    assert climbed.environment["workloads"]["ladder"] == "multiply"


def test_bad_numbers_sizes_and_types_are_refused_before_anything_runs() -> None:
    with pytest.raises(UnsupportedError, match="'transpose' has rungs 1 to 25, no 26"):
        climb(ladder("transpose"), HOW, [1, 26])
    with pytest.raises(DTypeError, match="flight 'fp32' is of float32, not of float16"):
        climb(ladder("multiply"), replace(HOW, size=Size(4, torch.float16)), [14])
    (found,) = climb(ladder("multiply"), replace(HOW, size=Size(4, torch.bfloat16)), [23]).steps
    assert (found.state, "bfloat16" in found.problem) == ("right", True)


def last_cell(step: Step) -> str:
    (row,) = rows(Climb("multiply", "", "", "", True, [step]), step.flight)
    return row[-1]


def broken(*tensors: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("no such instruction\nand more")


def wrong(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    return torch.mm(a, b, out=d).add_(1)


def test_a_rung_that_breaks_or_is_wrong_says_so_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {"breaks": broken, "errs": wrong, "works": lambda a, b, d: torch.mm(a, b, out=d)}
    monkeypatch.setattr(Rung, "run", property(lambda rung: made[rung.name]))
    each = tuple(Rung(name, "multiply.library", Prediction(1.0, "so")) for name in made)
    one = Flight("one", "Once.", lambda size, kind: product(3, 4, 5, torch.float32), each)
    small = Ladder("small", "Three.", (one,), 4)
    found = climb(small, HOW)
    assert [step.state for step in found.steps] == ["wrong", "wrong", "right"]
    assert found.steps[0].wrong == "RuntimeError: no such instruction"
    assert "elements are off" in found.steps[1].wrong


def test_a_timed_climb_has_times_floors_and_profiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of a GPU, gone on a CPU by the library's rung, which runs on either."""
    monkeypatch.setattr(How, "timed", property(lambda how: True))
    known = from_datasheet("NVIDIA H200")
    how = replace(HOW, size=Size(64), ceilings=known, budget=0.01, profile=True, energy=True)
    (step,) = climb(ladder("multiply"), how, [14]).steps
    assert step.state == "right"
    assert 0 < step.seconds["low"] <= step.seconds["value"] <= step.seconds["high"]
    assert step.share == pytest.approx(step.floor["seconds"] / step.seconds["value"])
    assert step.rate == (pytest.approx(2 * 64**3 / step.seconds["value"] / 1e12), "TFLOP/s")
    assert step.profile["missing"]["counters"].startswith("hardware counters are read of NVIDIA's GPUs")
    assert "energy" in step.profile["missing"]
    assert last_cell(step) == ""
    step.profile["energy"] = {"joules": 0.0123}
    assert last_cell(step) == "0.0123 J"
    assert Step(**json.loads(json.dumps(climb(ladder("multiply"), how, [14]).to_dict()))["steps"][0]).profile


def test_a_resumed_climb_reads_the_counters_that_are_missing_and_times_nothing_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(How, "timed", property(lambda how: True))
    how = replace(HOW, size=Size(64), ceilings=from_datasheet("NVIDIA H200"), budget=0.01, energy=True)
    before = climb(ladder("multiply"), how, [14, 17])
    assert {step.profile["missing"]["counters"] for step in before.steps} == {"not asked for"}
    read_of: list[str] = []

    def counted(profiles: Any, device: torch.device) -> None:
        for profile, recipe in profiles:
            call, tensors = pickle.loads(recipe).make()
            call(*tensors)
            read_of.append(profile.name)
            profile.missing["counters"] = "counted"

    monkeypatch.setattr(climbing_module, "add_counters", counted)
    after = climb(ladder("multiply"), replace(how, profile=True), [14, 17, 23], before)
    assert [step.seconds for step in after.steps[:2]] == [step.seconds for step in before.steps]
    assert read_of == ["cuBLAS", "cuBLAS", "cuBLAS"]
    assert {step.profile["missing"]["counters"] for step in after.steps} == {"counted"}
    again = climb(ladder("multiply"), replace(how, profile=True), [14, 17, 23], after)
    assert (len(read_of), again.steps) == (3, after.steps)


def test_gains_are_over_the_rung_that_is_named() -> None:
    found = Climb("multiply", "Says.", "a GPU", "2026-01-01", True)
    found.steps = [timed("first", 0.9), timed("second", 0.6), timed("third", 0.3, over="first")]
    climbing_module._add_gains(found)
    assert [step.gain for step in found.steps] == [None, None, pytest.approx(3.0)]
    assert found.steps[2].rate == (pytest.approx(1 / 0.3), "TFLOP/s")
    third = list(rows(found, "fp32"))[2]
    assert third[1:5] == ("third", "300 ms", "3.33 TFLOP/s", "25%")
    assert third[7:] == ("3 x", "2 x", "3 x", "first", "0.5", "")


def test_the_floor_is_the_roofline_of_products_and_the_copy_rate_of_moves() -> None:
    known = from_datasheet("NVIDIA H200")
    single = floor_of(product(4096, 4096, 4096, torch.float32), known)
    assert single is not None
    assert single.binds == "compute"
    assert single.seconds == pytest.approx(2 * 4096**3 / known.matrix["float32"])
    moved = floor_of(Transposition(100, 50, torch.float64), known)
    assert moved is not None
    assert moved.seconds == pytest.approx(2 * 8 * 5000 / known.copy)
    assert floor_of(Transposition(100, 50, torch.float64), None) is None


def test_the_profilers_process_makes_the_same_call() -> None:
    call, tensors = RungRecipe("multiply", 14, Size(3), "cpu").make()
    assert torch.equal(call(*tensors), tensors[0] @ tensors[1])


def test_json_and_page_are_written_and_the_page_anew_from_json_alone(climbed: Climb, tmp_path: Path) -> None:
    page = save([climbed], tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["index.html", "ladder-multiply.json"]
    assert read(tmp_path) == [climbed]
    first = page.read_text()
    page.unlink()
    assert said_of("--page", tmp_path) == f"wrote {page}"
    assert page.read_text() == first
    assert NOT_MEASURED in first
    assert "torch.mm(a, b, out=d)" in first  # the kernel


def test_a_page_of_measured_rungs_has_times_shares_sources_and_the_chart(tmp_path: Path) -> None:
    found = Climb("of another version", "Says.", "a GPU", "2026-01-01", True)
    found.steps = [timed("naive", 0.9), timed("coalesced", 0.45, over="naive", notes=["the budget ended"])]
    climbing_module._add_gains(found)
    text = save([found], tmp_path).read_text()
    for part in ("900 ms", "25%", "9 GFLOP/s: a book", "2 x", "40% of peak", "width:25.0%", "the budget ended"):
        assert part in text
    assert NOT_MEASURED not in text


def test_what_is_no_climb_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(WeftError, match="holds no ladder"):
        read(tmp_path)
    (tmp_path / "ladder-multiply.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(WeftError, match="format 99, this version of weft reads 1"):
        read(tmp_path)


def test_the_command_lists_shows_climbs_and_writes(tmp_path: Path) -> None:
    said = said_of()
    assert all(part in said for part in ("multiply:", "double buffers", "in place", "7 sizes for the shape"))
    said = said_of("transpose", "--rung", "4", "--show")
    assert "cuda.shared.array((TILE, PADDED), x.dtype)" in said
    assert "predicted gain over 'one kernel'" in said
    said = said_of("multiply", "--rung", "14-14,21", "--size", "5", "--device", "cpu", "--out", tmp_path)
    assert NOT_MEASURED in said
    assert "21 warp specialization: not run" in said
    assert [step.number for step in read(tmp_path)[0].steps] == [14, 21]


def test_the_command_goes_on_with_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("multiply", "--size", "5", "--device", "cpu", "--out", str(tmp_path), "--resume")
    ended: list[int] = []

    def cut_off(bench: Any, number: int, *of: Any) -> Step:
        if number == 17 and not ended:
            ended.append(number)
            raise KeyboardInterrupt
        return climbed(bench, number, *of)

    climbed = climbing_module._Bench.step
    monkeypatch.setattr(climbing_module._Bench, "step", cut_off)
    said_of(*words, "--rung", "21")
    said_of(*words, "--rung", "14,17", code=130)
    assert [step.number for step in read(tmp_path)[0].steps] == [14, 21]
    monkeypatch.setattr("weft_bench.ladder.multiply.library.run", wrong)  # the rung that is there is not run again
    said_of(*words, "--rung", "14,17")
    assert [step.number for step in read(tmp_path)[0].steps] == [14, 17, 21]
    file = tmp_path / "ladder-multiply.json"
    file.write_text(file.read_text().replace('"commit": "', '"commit": "another-'))
    assert "the ladder 'multiply' to continue has commit another-" in said_of(*words, "--rung", "16", code=2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("multiply", "--resume"), "name it with --out"),
        (("multipy",), "no ladder is called 'multipy'"),
        (("multiply", "--rung", "x"), "'x' in --rung is not of the form 3 or 8-11"),
        (("all", "--rung", "3"), "--rung is of one ladder"),
        (("all", "--show"), "--show prints rungs of one ladder"),
        (("multiply", "--show", "--rung", "99"), "has rungs 1 to 31, no 99"),
        (("multiply", "--dtype", "float16", "--device", "cpu"), "flight 'fp32' is of float32"),
        (("multiply", "--profile", "--device", "cpu"), "--profile reads hardware counters of a GPU"),
        (("multiply", "--energy", "--device", "cpu"), "--energy reads the sensor of a GPU"),
    ],
)
def test_the_command_refuses_what_makes_no_sense(words: tuple[str, ...], said: str) -> None:
    assert said in said_of(*words, code=2)


def test_a_wrong_rung_ends_the_command_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft_bench.ladder.multiply.library.run", wrong)
    assert "wrong: multiply 14" in said_of("multiply", "--rung", "14", "--size", "5", "--device", "cpu", code=1)


def test_the_ladder_of_the_cpu_is_timed_on_one_thread() -> None:
    """Each rung has a time and a gain, and the disclosure says one thread, whatever torch has."""
    found = climb(ladder("cpu"), replace(HOW, size=Size(24), budget=0.01))
    assert found.measured
    assert [step.state for step in found.steps] == ["right"] * 5
    assert all(step.seconds["value"] > 0 for step in found.steps)
    assert [step.gain is not None for step in found.steps] == [False, True, True, True, True]
    assert found.environment["timing"]["threads"] == 1
