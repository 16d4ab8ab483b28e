"""Profiles of contractions over ranks and in blocks; those of several ranks are in tests/distributed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from weft.distributed import Event, OutOfCorePlan, Timeline
from weft_bench.profiling.timelines.page import JSON_FILE
from weft_bench.profiling.timelines.profile import TimelineProfile

A, B = torch.randn(64, 48), torch.randn(48, 40)


def made(ranks: int = 2) -> TimelineProfile:
    """Four parts: each is contracted for 2 ms and travels for 3 ms, while the next is contracted; 1 ms before all."""
    events = [Event("host", "agreement", 0.0, 1e-3)]
    for part in range(4):
        events.append(Event("compute", f"part {part}", 1e-3 + 3e-3 * part, 3e-3 + 3e-3 * part, part))
        events.append(Event("transfer", f"D: sums, part {part}", 3e-3 + 3e-3 * part, 6e-3 + 3e-3 * part, part))
    one = Timeline("measured", tuple(events))
    predicted = Timeline("predicted", tuple(event for event in one.events if event.lane != "host"))
    measured = tuple(one.shifted(5e-3 * rank) for rank in range(ranks))
    return TimelineProfile("mk,kn->mn over ranks", "a CPU", (0.015, 0.016, 0.017), measured, predicted, "the plan", {})


def blocks() -> OutOfCorePlan:
    found = weft.distributed.plan("mk,kn->mn", A, B, device="cpu", memory_limit="12 KB")
    assert isinstance(found, OutOfCorePlan)
    return found


def test_what_is_hidden_and_what_is_neither() -> None:
    one = made().measured[1]
    assert (one.begin, one.end) == (5e-3, pytest.approx(20e-3))
    assert one.seconds == pytest.approx(15e-3)
    assert one.compute == pytest.approx(8e-3)
    assert one.transfer == pytest.approx(12e-3)
    assert one.orchestration == pytest.approx(1e-3)  # while the host agrees with others
    assert one.hidden == pytest.approx(0.5)
    assert one.bounds == "transfer"
    assert Timeline("measured", ()).hidden == 1


def test_the_text_puts_all_ranks_on_one_axis() -> None:
    lines = str(made()).splitlines()
    rows = [line.partition("|")[2] for line in lines if line.endswith("|")]
    compute, transfer, host = rows[2:5]  # 3 characters a millisecond
    assert compute.startswith("...000000...111111...222222...333333...")
    assert transfer.startswith("." * 9 + "000000000111111111")
    assert host.startswith("===...")
    assert rows[5].startswith("." * 15 + "...000000...111111")  # rank 1 begins 5 ms later
    assert "15.0 ms" in str(made(1))
    assert any("transfer bounds it; 50% of the transfers is hidden" in line for line in lines)
    many = str(made(20))
    assert "... and 12 more ranks" in many
    assert "rank 8 " not in many
    assert "rank 19" in made(20).table()


def test_blocks_are_profiled_and_read_again(tmp_path: Path) -> None:
    plan = blocks()
    found = weft.profile(plan, A, B, budget=0.01)
    (measured,) = found.measured
    steps = [event.step for event in measured.events if event.lane == "compute"]
    assert steps == list(range(plan.grid.steps))
    assert found.seconds.low <= found.seconds.value <= found.seconds.high
    assert found.predicted.seconds == pytest.approx(plan.predict().seconds)
    assert found.predicted.busy("copy in") == pytest.approx(plan.predict().busy("copy in"))
    assert {"checks", "pinning"} == {event.name for event in measured.events if event.lane == "host"}
    text = str(found)
    for words in (f"in {plan.grid.steps} steps on cpu", "copy out |", "predicted", "times what was predicted"):
        assert words in text
    page = found.save(tmp_path)
    saved = json.loads((tmp_path / JSON_FILE).read_text())
    assert TimelineProfile.from_dict(saved) == found
    assert "step 0" in page.read_text()
    assert "<img" in found._repr_html_()
    with pytest.raises(weft.WeftError, match="have format 9"):
        TimelineProfile.from_dict({**saved, "format": 9})


def test_the_picture_has_a_row_for_each_lane(tmp_path: Path) -> None:
    figure = made().draw(tmp_path / "timelines.png")
    (axes,) = figure.axes
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names[:3] == ["predicted  compute", "predicted  transfer", "rank 0  compute"]
    assert len(names) == 8
    assert (tmp_path / "timelines.png").stat().st_size > 1000


def test_a_profile_records_no_gradients_and_writes_out() -> None:
    out = torch.zeros(64, 40)
    weft.profile(blocks(), A, B, out=out, budget=0.0)
    torch.testing.assert_close(out, A @ B, atol=1e-3, rtol=1e-4)


def test_bad_input_is_named() -> None:
    plan: Any = blocks()
    with pytest.raises(weft.ArgumentError, match="takes c and out, not operands"):
        weft.profile(plan, A, B, operands={"x": A})
    with pytest.raises(weft.ArgumentError, match="takes 2 tensors, a and b, not 1"):
        weft.profile(plan, A)
    with pytest.raises(weft.ArgumentError, match="a 'mk' has shape"):
        weft.profile(plan, A[:8], B)
    with pytest.raises(weft.UnsupportedError, match="energy= is for plans of one device, not for OutOfCorePlan"):
        weft.profile(plan, A, B, energy=True)
    with pytest.raises(weft.UnsupportedError, match="energy is measured of plans of one device, not of OutOfCorePlan"):
        weft.energy(plan, A, B)
    assert replace(made(), samples=(1.0,)).seconds.value == 1.0
