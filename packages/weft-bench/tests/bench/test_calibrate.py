"""Fitting the cost model: made-up times that follow other numbers lead back to them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from commands import told
from tune_problems import choice_of, described
from weft.api.describe import TARGETS, choice_for, hypothetical
from weft.cli.tuning import Job
from weft.errors import UnsupportedError
from weft.machine.store import Store
from weft.planner import coefficients as room
from weft.planner.coefficients import Coefficients, coefficients, is_fitted, using
from weft.planner.planner import choose
from weft.tune.candidates import Candidate
from weft_bench.tuning import calibrate
from weft_bench.tuning.calibrate import ENOUGH, Sample, calibrated, observed, on_device, quality, report, shipped

H200 = TARGETS["sm_90"]
TRUE = replace(Coefficients(), memory_rate=2e12, step_seconds=0.4e-6, launch=4e-6)
EQUATIONS = (
    ("abcd,ed->eacb", {"a": 40, "b": 30, "c": 32, "d": 64, "e": 96}),
    ("ak,kb->ab", {"a": 2048, "b": 2000, "k": 512}),
    ("abk,kc->bca", {"a": 300, "b": 40, "k": 2000, "c": 24}),
)


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    room._known.cache_clear()
    yield
    room._known.cache_clear()


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    """Schedules of a few contractions, each measured as the model with the true numbers says."""
    found = []
    for equation, extents in EQUATIONS:
        request = hypothetical(equation, extents, dtype=torch.float16, out_dtype=torch.float32, target="sm_90")
        contraction, choice = choice_for(request)
        with using(TRUE):
            true = {rank.schedule: rank.seconds for rank in choose(contraction, "triton", H200).ranked}
        candidates = [
            Candidate(rank, "measured", seconds=true[rank.schedule])
            for rank in choice.ranked[:: max(1, len(choice.ranked) // 40)]
            if rank.schedule.family != "ttgt"  # its steps were predicted when they were chosen
        ]
        job = Job("", equation, equation, extents, contraction, "triton", H200)
        found.append(Sample(job, choice, candidates))
    return found


def test_the_numbers_behind_the_times_are_found_and_kept(samples: list[Sample]) -> None:
    fit = calibrated(samples, H200)
    assert fit.observations >= ENOUGH
    assert fit.before.deviation > 0.05
    assert fit.after.deviation < 0.35 * fit.before.deviation
    assert fit.after.regret <= fit.before.regret * 1.01
    assert fit.found.memory_rate == pytest.approx(2e12, rel=0.3)
    assert fit.kept
    assert coefficients(H200) == fit.found
    assert "kept in the cache" in report(fit)
    assert shipped(fit)["device"] == "NVIDIA H200"
    gathering = shipped(fit)["sections"]["gathering"]
    values = {name: entry["value"] for name, entry in gathering["values"].items()}
    assert Coefficients.from_json(values | {"families": gathering["families"]}) == fit.found


def test_what_agrees_already_is_left_alone(samples: list[Sample]) -> None:
    with using(TRUE):
        observations = observed(samples, H200)
        assert quality(observations, TRUE).deviation < 1e-9
        fit = calibrated(samples, H200)
    assert not fit.kept
    assert "not kept" in report(fit)
    assert not Store("coefficients").directory.exists()


def test_too_few_measurements_fit_nothing(samples: list[Sample]) -> None:
    few = [replace(samples[0], candidates=samples[0].candidates[:5])]
    with pytest.raises(UnsupportedError, match="too few"):
        calibrated(few, H200)


def test_a_cpu_has_no_such_numbers() -> None:
    target = choice_of(described("ik,jk->ij", (3, 4), (5, 4))).target
    with pytest.raises(UnsupportedError, match="fitted on a GPU"):
        calibrated([], target)
    assert coefficients(target) == Coefficients()


@pytest.mark.parametrize(
    "damage",
    [
        lambda value: value.pop("launch"),
        lambda value: value.update(clock=-1.0),
        lambda value: value.update(l2_rate="fast"),
        lambda value: value.update(families={"gett": float("inf")}),
        lambda value: value.update(families=[1]),
    ],
)
def test_numbers_that_make_no_sense_are_not_taken(damage) -> None:
    value = TRUE.as_json()
    assert Coefficients.from_json(value) == TRUE
    damage(value)
    assert Coefficients.from_json(value) is None
    assert Coefficients.from_json(None) is None


def test_kept_numbers_go_before_shipped_ones(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    values = TRUE.as_json()
    gathering = {"families": values.pop("families"), "values": {name: {"value": each} for name, each in values.items()}}
    (tmp_path / "h200.json").write_text(json.dumps({"device": "NVIDIA H200", "sections": {"gathering": gathering}}))
    (tmp_path / "damaged.json").write_text("{")
    monkeypatch.setattr(room, "SHIPPED", tmp_path)
    room._shipped.cache_clear()
    try:
        assert coefficients(H200) == TRUE
        assert coefficients(TARGETS["sm_80"]) == Coefficients()
        room.keep(H200, replace(TRUE, launch=1e-6))
        assert coefficients(H200).launch == 1e-6
    finally:
        room._shipped.cache_clear()


def test_a_factor_for_a_family_changes_its_predictions() -> None:
    contraction = described("ik,jk->ij", (512, 512), (512, 512), dtype=torch.float16)
    plain = {rank.schedule: rank.seconds for rank in choose(contraction, "triton", H200).ranked}
    with using(replace(Coefficients(), families={"gett": 2.0})):
        ranked = choose(contraction, "triton", H200).ranked
    for rank in ranked:
        factor = 2.0 if rank.schedule.family == "gett" else 1.0
        if rank.schedule.family in ("gett", "simt"):
            assert rank.seconds == pytest.approx(factor * plain[rank.schedule])


OTHER = replace(H200, name="NVIDIA GH200 480GB")  # no numbers of it ship with weft


@pytest.fixture
def measuring(samples: list[Sample], monkeypatch: pytest.MonkeyPatch) -> list[Sample]:
    """A GPU without numbers, on which the samples are measured."""
    there = [replace(each, job=replace(each.job, target=OTHER)) for each in samples]
    monkeypatch.setattr(calibrate, "of_suite", lambda *_, **__: ([each.job for each in there], {}))
    monkeypatch.setattr(calibrate, "sampled", lambda *_: (there, {}))
    return there


def test_a_device_without_numbers_is_fitted_once(measuring: list[Sample]) -> None:
    assert is_fitted(H200)
    assert not is_fitted(OTHER)
    fit = on_device(torch.device("cuda"))
    assert fit.kept
    assert is_fitted(OTHER)
    assert coefficients(OTHER) == fit.found != Coefficients()
    assert coefficients(H200) == Coefficients()


def test_numbers_that_agree_become_the_devices_own(measuring: list[Sample]) -> None:
    with using(TRUE):
        assert not on_device(torch.device("cuda")).kept
    assert is_fitted(OTHER)
    assert coefficients(OTHER) == TRUE


@pytest.mark.parametrize("broken", [b"", b"{}", b'{"schema": 1, "value": {"launch": -1}}'])
def test_a_damaged_file_is_fitted_anew(measuring: list[Sample], tmp_path: Path, broken: bytes) -> None:
    on_device(torch.device("cuda"))
    (file,) = (tmp_path / room.ROOM).glob("*.json")
    file.write_bytes(broken)
    room._known.cache_clear()
    assert not is_fitted(OTHER)
    assert on_device(torch.device("cuda")).kept
    assert is_fitted(OTHER)


def test_numbers_of_other_models_are_fitted_anew(measuring: list[Sample], monkeypatch: pytest.MonkeyPatch) -> None:
    on_device(torch.device("cuda"))
    monkeypatch.setattr(room, "of_files", lambda *_: "those of a later release")
    room._known.cache_clear()
    assert not is_fitted(OTHER)
    assert coefficients(OTHER) == Coefficients()


def test_warm_fits_a_device_without_numbers(measuring: list[Sample], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.api.describe.warm", lambda *_, **__: 7)
    monkeypatch.setattr("weft.planner.target.target_of", lambda *_: OTHER)
    assert "cost model of NVIDIA GH200 480GB, fitted to" in told("warm")
    assert told("warm").strip() == "7 kernels compiled"


def test_without_weft_bench_warm_says_what_fitting_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.api.describe.warm", lambda *_, **__: 7)
    monkeypatch.setattr("weft.planner.target.target_of", lambda *_: OTHER)
    monkeypatch.setattr("weft.cli.main.found", lambda *_: None)
    said = told("warm")
    assert "not fitted to NVIDIA GH200 480GB" in said
    assert "pip install weft-tensor-bench" in said
