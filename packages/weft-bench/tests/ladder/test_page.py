"""The page of ladders in a real browser, of a GPU's climb and of a machine without one; the recordings beside them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

import browser as browsing
from browser import Browser
from pages import ROOT
from weft.errors import WeftError
from weft_bench.ladder import save
from weft_bench.ladder.counted import METRICS, SHARED
from weft_bench.ladder.page import retold
from weft_bench.ladder.record import Climb, read
from weft_bench.ladder.recorded import document, recordings
from weft_bench.ladder.threats import of_climb
from weft_bench.profiling.counters import CounterSet

browser = browsing.browser
MEASURED = ROOT / "results" / "h200" / "ladder"
SCREENS = 3  # that a flight may take


def on_a_laptop(climb: Climb) -> Climb:
    """The same climb as a machine without a GPU leaves it."""
    steps = [replace(step, seconds={}, share=None, gain=None, notes=[], profile={}) for step in climb.steps]
    return replace(climb, device="a laptop", measured=False, steps=steps)


@pytest.fixture(scope="module", params=["gpu", "laptop"])
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    climbs = read(MEASURED)
    return save([on_a_laptop(each) for each in climbs] if request.param == "laptop" else climbs,
                tmp_path_factory.mktemp(request.param))  # fmt: skip


def test_recordings_are_those_of_the_results() -> None:
    (recorded,) = [each for each in recordings() if each.device == "NVIDIA H200"]
    climbs = read(MEASURED)
    assert [each.ladder for each in climbs] == ["multiply", "reduce", "tensor", "transpose"]
    assert recorded.date == "2026-11-28"
    assert recorded.has("reduce")
    assert not recorded.has("cpu")
    for climb in climbs:
        for step in climb.steps:
            found = recorded.of(climb.ladder, step.flight, step.name)
            assert found == (pytest.approx(step.seconds["value"], rel=1e-3), pytest.approx(step.share, rel=1e-3))
    with pytest.raises(WeftError, match="ladders that were measured"):
        document([on_a_laptop(climbs[0])])


def test_sources_in_double_precision_stand_beside_fp64_rungs_alone(tmp_path: Path) -> None:
    """Records that were written with the thesis beside fp32 are told with the sources of today's rungs."""
    climbs = read(MEASURED)
    steps = [step for climb in climbs for step in climb.steps]
    double = [step for step in steps if any("V100" in each["figure"] for each in step.published)]
    assert double
    assert {step.flight for step in double} == {"fp64"}
    slow, fast = climbs[0].steps[:2]
    fast.published, fast.published_gain = [{"figure": "kernel 1.5: 202.2 ms, V100", "source": "a thesis"}], 7.0
    told = retold(climbs[0]).steps[1]
    assert told.published_gain == pytest.approx(6358.7 / 498.7)
    assert not any("V100" in each["figure"] for each in told.published)
    assert slow.published_gain is None
    said = save(climbs, tmp_path).read_text()
    assert "kernel 1.5: 202.2 ms, V100" not in said
    assert "6358.7 GFLOP/s, H100" in said


def test_published_counters_stand_beside_those_of_a_climb(tmp_path: Path) -> None:
    """In the source's metrics: 95.55 % of warps active here, 0.716 there; bytes from DRAM over time as a rate."""
    (counted,) = [each for each in read(MEASURED) if each.ladder == "transpose"]
    said = save([counted], tmp_path / "counted").read_text()
    _, _, rung = said.partition('id="transpose-2"')
    rung = rung.partition('id="transpose-3"')[0]
    assert "Quadro P6000, nvprof" in rung
    assert "<td>warps active</td><td>95.55 %</td><td>71.63 %</td>" in rung
    assert "<td>DRAM reads</td><td>1283 GB/s</td><td>88.77 GB/s</td>" in rung
    assert "<td>instructions a warp</td><td></td><td>161.3</td>" in rung
    plain = [replace(step, profile={}) for step in counted.steps]
    said = save([replace(counted, steps=plain)], tmp_path / "plain").read_text()
    assert "<td>warps active</td><td>71.63 %</td>" in said


def test_a_laptop_sees_what_a_gpu_took(tmp_path: Path) -> None:
    """Its own column is empty; the recorded ones are not. A GPU that was recorded is not shown twice."""
    climb = next(each for each in read(MEASURED) if each.ladder == "multiply")
    said = save([on_a_laptop(climb)], tmp_path / "laptop").read_text()
    assert "<td>275 ms</td>" in said
    bars, every = said.count('class="bar recorded-'), len(climb.steps) + 4  # and one in the legend of each flight
    assert bars == len(recordings()) * every
    assert 'class="bar here"' not in said
    there = save([climb], tmp_path / "gpu").read_text()
    assert there.count('class="bar recorded-') == bars - every
    assert there.count('class="bar here"') == every


def test_bars_without_a_roof_are_shares_of_the_fastest(tmp_path: Path) -> None:
    """Of the CPU's ladder no roof is known: ceilings are those of all threads."""
    (climb,) = read(ROOT / "results" / "cpu" / "ladder")
    said = save([climb], tmp_path).read_text()
    widths = re.findall(r'class="bar here" style="width:([\d.]+)%"', said)
    fastest = min(step.seconds["value"] for step in climb.steps)
    assert widths == [f"{100 * fastest / step.seconds['value']:.1f}" for step in climb.steps]
    assert "shares of the fastest rung" in said


def test_threats_are_those_of_the_climb() -> None:
    climb = next(each for each in read(MEASURED) if each.ladder == "multiply")
    said = of_climb(climb)
    assert "Counters were read of 31 of 31 rungs." in said["Causes"]
    short = sum(any("budget ended" in note for note in step.notes) for step in climb.steps)
    assert f"For {short} rungs the budget ended" in said["Chance"]
    climb.steps[0] = replace(climb.steps[0], seconds={}, missing="no such device")
    assert "Without a time: 1 of 31 rungs." in of_climb(climb)["What is measured"]
    assert of_climb(on_a_laptop(climb))["What is measured"].startswith("Nothing was timed")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [(390, 844), (1400, 900)], ids=["phone", "desk"])
def test_it_can_be_read(browser: Browser, page: Path, size: tuple[int, int], dark: bool) -> None:
    """Contents lead to every flight, a flight is a few screens, bars stay in their tracks, names apart from times."""
    browser.show_as(*size, dark=dark)
    browser.messages.clear()
    browser.open(page)
    assert browser.messages == []
    assert browser.overhang(size[0]) == 0
    flights = browser.run("[...document.querySelectorAll('.flight')].map((part) => [part.id, part.offsetHeight])")
    linked = browser.run("[...document.querySelectorAll('nav a')].map((link) => link.hash.slice(1))")
    assert len(flights) == 13
    for name, height in flights:
        assert name in linked
        assert height <= SCREENS * size[1], name
    assert browser.run(
        "[...document.querySelectorAll('.bars .row')].every((row) => { const [name, track, said] ="
        " [...row.children].map((part) => part.getBoundingClientRect()); const bars = [...row.querySelectorAll('.bar')]"
        ".map((bar) => bar.getBoundingClientRect().right); return said.right <= document.documentElement.clientWidth &&"
        " bars.every((end) => end <= track.right + 1) &&"
        " (name.right <= said.left || name.bottom <= said.top || said.bottom <= name.top); })"
    )


def test_the_chart_leads_to_a_rung(browser: Browser, page: Path) -> None:
    """Its link unfolds what it points to."""
    browser.show_as(1400, 900, dark=False)
    browser.open(page)
    seen = "document.getElementById('multiply-8').checkVisibility()"
    assert not browser.run(seen)
    browser.run("document.querySelector('.bars a[href=\"#multiply-8\"]').click()")
    browser.run("new Promise((done) => setTimeout(done, 200))")
    assert browser.run(seen)


def test_a_sources_metrics_follow_from_counters() -> None:
    """Those that no record has yet, of counters as a profiler tells them."""
    values = {
        "inst_warp": 2591.0, "global_ld": 3e9, "global_st": 1e9, "seconds": 0.5, "shared_ld": 10.0,
        "shared_ld_turns": 15.0, "shared_st": 4.0, "shared_st_turns": 8.0, "shared_busy": 62.0,
    }  # fmt: skip
    found = {each.name: each.of(CounterSet("kernel", values)) for each in METRICS if each not in SHARED}
    assert list(found.values()) == ["2591", "6 GB/s", "2 GB/s", "1.5", "2", "6.2"]
    assert not any(each.of(CounterSet("kernel", {})) for each in METRICS)
