"""What rules say of recorded counters, those of the thesis that states the patterns among them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from profiling.made import profile
from weft.errors import UnsupportedError, WeftError
from weft_bench.profiling.attribution import RULES, attribute, binds, sentence
from weft_bench.profiling.counters import PACK, CounterSet
from weft_bench.profiling.evidence import Variant, weigh
from weft_bench.profiling.record import append_recorded

RECORDED = json.loads((Path(__file__).parent / "data" / "counter_sets.json").read_text())["sets"]
SETS = {each["kernel"]: CounterSet.from_dict(each) for each in RECORDED}


@pytest.mark.parametrize("entry", RECORDED, ids=lambda entry: entry["kernel"])
def test_recorded_sets_are_bound_by_what_their_source_says(entry: dict[str, Any]) -> None:
    found = SETS[entry["kernel"]]
    first = binds(attribute(found))
    assert (first.pattern if first else None) == entry["binds"]
    if first is not None:
        assert f"bound by {entry['binds']}" in sentence(found)
        counted = found.values
        made = {
            "pipe": max((counted[key] for key in ("K5", "tensor", "fp64") if key in counted), default=None),
            "memory": max((counted[key] for key in ("K2", "K3") if key in counted), default=None),
        }
        assert first.numbers
        for name, value in first.numbers.items():
            assert value == (made[name] if name in made else counted[name]), name


def test_a_profile_adds_its_counters_to_those_recorded(tmp_path: Path) -> None:
    """Once for each call and device, with what binds it: what the test above then holds against the rules."""
    file = tmp_path / "sets.json"
    assert append_recorded(file, [profile()]) == 1
    assert append_recorded(file, [profile(K1=3.0)]) == 1
    (entry,) = json.loads(file.read_text())["sets"]
    assert entry["binds"] == "memory"
    assert entry["values"]["K1"] == 3.0
    assert CounterSet.from_dict(entry).dram_bytes == 1e8
    bare = profile()
    bare.counters = []
    with pytest.raises(UnsupportedError, match="nothing was counted of mk,kn->mn"):
        append_recorded(file, [bare])


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"sets": [1]}', b'{"sets": [{}]}', b"\xff\x00"])
def test_a_file_of_other_content_takes_no_counters(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "sets.json"
    file.write_bytes(content)
    with pytest.raises(WeftError, match=r"sets.json is no file of recorded sets: "):
        append_recorded(file, [profile()])
    assert file.read_bytes() == content


def made(**values: float) -> CounterSet:
    return CounterSet("made", values)


COMPLETE = {
    "K1": 30.0, "K2": 20.0, "K3": 20.0, "K4": 50.0, "K5": 10.0, "K6": 80.0, "K7": 8.0, "K8": 1.5, "K9": 55.0,
    "K10": 100.0, "tensor": 0.0, "fp64": 0.0, "limit_shared": 4.0, "limit_warps": 8.0, "limit_blocks": 32.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("values", "pattern"),
    [
        ({"K1": 90.0, "tensor": 92.0}, "compute"),  # a contraction lives in the tensor pipe: K5 is near 0 then
        ({"K1": 85.0, "K9": 91.0, "K5": 45.0}, "compute"),  # issue slots are full
        ({"K1": 85.0, "K9": 50.0, "K5": 45.0}, None),
        ({"K2": 88.0, "K8": 0.4, "K9": 25.0}, "memory"),
        ({"K3": 75.0}, "memory"),
        ({"K1": 70.0, "K5": 65.0, "K2": 92.0}, "memory"),  # both are high, and memory dominates
        ({"K10": 60.0}, "divergence"),
        ({"K7": 2.0, "K6": 25.0}, "occupancy"),
        ({"K7": 2.0, "K6": 75.0}, None),  # few blocks, and yet enough warps
        ({"K7": 8.0, "K6": 25.0}, None),  # few warps, but registers are not why
        ({"K8": 0.3, "K9": 20.0}, "starvation"),
        ({"K8": 2.0, "K9": 20.0}, None),  # warps were eligible: something else holds issue back
    ],
)
def test_each_pattern_is_found_and_its_near_misses_are_not(values: dict[str, float], pattern: str | None) -> None:
    first = binds(attribute(made(**COMPLETE | values)))
    assert (first.pattern if first else None) == pattern


def test_missing_counters_are_not_taken_for_low_ones() -> None:
    findings = attribute(made(K1=90.0))
    assert {each.pattern: each.holds for each in findings}["compute"] is None
    assert "counters are missing" in sentence(made(K1=90.0))
    assert all(each.holds is None for each in attribute(made()))


def test_numbers_stand_in_the_sentence() -> None:
    text = sentence(made(**COMPLETE | {"K1": 90.0, "tensor": 92.0}))
    assert "K1 90 %" in text
    assert "tensor pipe 92 %" in text
    assert "memory 20 %" in text


def test_patterns_are_the_five() -> None:
    assert [rule.name for rule in RULES] == ["compute", "memory", "divergence", "occupancy", "starvation"]
    assert [counter.key for counter in PACK] == [f"K{at}" for at in range(1, 11)]


def variant(kernel: str, seconds: float, **about: Any) -> Variant:
    samples = tuple(seconds * (1 + 0.001 * at) for at in range(-5, 6))
    provenance = {"command": "weft profile", "commit": "abc", "device": "A100"}
    figures = dict(SETS[kernel].values) if kernel in SETS else {}
    return Variant(kernel, samples, {**figures, **about.pop("figures", {})}, about.pop("error", 0.2), provenance)


def test_the_gemm_pair_is_attributed() -> None:
    found = weigh(variant("FP32 GEMM, naive", 3.0), variant("FP32 GEMM, cuBLAS", 1.0), "compute efficiency")
    assert (found.slow, found.fast) == ("FP32 GEMM, naive", "FP32 GEMM, cuBLAS")
    assert found.effect is not None
    assert found.effect.value == pytest.approx(3.0)
    assert found.effect.low > 2.9
    assert found.attributed
    assert found.mechanisms == ("compute efficiency",)
    assert found.missing == ()


def test_the_divergence_pair_is_attributed_to_divergence_alone() -> None:
    found = weigh(variant("forced 16/16 branch", 2.0), variant("warp-uniform branch", 1.0))
    assert found.verdict == "attributed to divergence"
    wrong = weigh(variant("forced 16/16 branch", 2.0), variant("warp-uniform branch", 1.0), "occupancy")
    assert wrong.verdict.startswith("empirical, not attributed: what tells occupancy was not counted")
    assert "divergence" in wrong.verdict
    still = variant("a", 2.0, figures={"bytes": 9.0}), variant("b", 1.0, figures={"bytes": 8.9})
    assert "the counters of traffic did not move as they must" in weigh(*still, "traffic").verdict


def test_register_pressure_is_attributed_to_occupancy() -> None:
    """Table 5.4: 0.594 ms at 100 % of the warps, 0.671 ms at 62.5 %."""
    low = variant("low", 0.594150e-3, figures={"theoretical": 100.0})
    high = variant("high", 0.671002e-3, figures={"theoretical": 62.5})
    found = weigh(low, high, "occupancy")
    assert found.fast == "low"
    assert found.attributed
    assert found.effect is not None
    assert found.effect.value == pytest.approx(1.129, abs=0.001)


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        (variant("a", 1.0), variant("b", 1.0), "no effect"),
        (variant("a", 2.0), variant("b", 1.0), "empirical, not attributed: nothing was counted"),
        (variant("a", 2.0), variant("b", 1.0, error=3.0), "invalid"),
        (variant("a", 2.0, figures={"bytes": 9.0}), variant("b", 1.0, figures={"bytes": 5.0}), "attributed to traffic"),
        (
            variant("a", 2.0, figures={"launches": 5.0}),
            variant("b", 1.0, figures={"launches": 1.0}),
            "attributed to launches",
        ),
        (variant("a", 2.0, figures={"bytes": 9.0}), variant("b", 1.0, figures={"bytes": 8.9}), "empirical"),
    ],
)
def test_verdicts(first: Variant, second: Variant, verdict: str) -> None:
    assert weigh(first, second).verdict.startswith(verdict)


def test_what_is_missing_is_listed() -> None:
    bare = weigh(Variant("a"), Variant("b"))
    assert bare.effect is None
    assert bare.valid is None
    assert not bare.reproducible
    for part in ("samples", "no counters of a and b", "nobody has checked", "nobody can repeat it"):
        assert any(part in sentence for sentence in bare.missing), part
    with pytest.raises(ValueError, match="claim 'magic' is none of launches, traffic"):
        weigh(Variant("a"), Variant("b"), "magic")
