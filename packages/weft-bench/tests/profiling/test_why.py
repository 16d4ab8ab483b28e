"""Correlations of a lead with what cases are, and the threats that a run names of itself."""

import numpy as np
import pytest

from runs import case, run
from weft.errors import WeftError
from weft_bench.profiling.counters import CounterSet
from weft_bench.profiling.record import Record
from weft_bench.profiling.why import correlations, why
from weft_bench.records import CaseRecord, Result, Run
from weft_bench.report.threats import threats

SUMS = (20, 30, 50, 80, 130, 210, 340)


def grown(k: int, power: float = 0.5) -> CaseRecord:
    """A case whose lead over torch grows as a power of K."""
    found = case(f"tccg-{k}", weft=10, torch=10 * k**power)
    found.modes = {**found.modes, "k": k}
    found.work = {**found.work, "bytes": k}
    return found


def known() -> Run:
    return run(*map(grown, SUMS))


def test_a_lead_that_is_a_power_of_k_goes_with_k_and_with_nothing_that_is_constant() -> None:
    rows = {row[0].text: [cell.key for cell in row] for row in why(known(), "torch", "fp16_fp32").rows}
    assert rows["K"][1] == len(SUMS)
    assert rows["K"][2] == pytest.approx(1)
    assert rows["K"][4] == pytest.approx(1)
    assert "M" not in rows


def test_counters_are_those_of_profiles_of_the_same_types() -> None:
    profiles = {f"tccg-{k}": Record("weft", "", "", bytes=k, counters=[CounterSet("", {"K1": 1 / k})]) for k in SUMS}
    rows = {row[0].text: row[2].key for row in why(known(), "torch", "fp16_fp32", profiles).rows}
    assert rows["counter: SM throughput"] == pytest.approx(-1)
    for each in profiles.values():
        each.bytes += 1
    assert not any("counter" in row[0].text for row in why(known(), "torch", "fp16_fp32", profiles).rows)


def test_few_cases_are_refused() -> None:
    with pytest.raises(WeftError, match="3 cases of fp16_fp32 have times of torch: correlations need 5"):
        why(run(*map(grown, SUMS[:3])), "torch", "fp16_fp32")


def test_equal_values_share_a_rank() -> None:
    # Ranks 0, 1.5, 1.5, 3, 4 against 0, 1, 3, 2, 4: covariance 8, variances 9.5 and 10.
    rank, line = correlations(np.array([1.0, 2, 2, 3, 4]), np.array([1.0, 2, 4, 3, 5]))
    assert rank.value == pytest.approx(8 / (9.5 * 10) ** 0.5)
    assert rank.low <= rank.value <= rank.high
    assert line.value == pytest.approx(np.corrcoef(np.log([1, 2, 2, 3, 4]), np.log([1, 2, 4, 3, 5]))[0, 1])


def test_threats_are_what_the_record_says() -> None:
    plain = " ".join(threats(known()).values())
    assert "slowed itself down" not in plain
    assert "operands out of the cache" in plain
    assert "modes to choose from" not in plain
    assert "the host's work may be longer" in threats(run(case("tccg-01", weft=10), host=True))["What is measured"]
    quick = run(case("tccg-01", weft=10, cutensor=20), contenders=["weft", "cutensor"])
    quick.environment["artifacts"]["command"] = "weft bench tccg --quick"
    assert "cuTENSOR had fewer of its modes to choose from." in threats(quick)["What is measured"]
    quick.contenders[1] = "torch"
    assert "modes to choose from" not in threats(quick)["What is measured"]
    risky = run(case("tccg-01", weft=10, torch=20), commit="abc+changes", selected=True)
    risky.cases[0].results["weft"].timing["clocks"] = {"throttled": ["power cap"], "sm_mhz": 1710}
    risky.cases[0].results["cutensor"] = Result(cannot="no")
    said = threats(risky)
    assert "slowed itself down in 1 of 2 timings" in said["Causes"]
    assert "not those of a commit" in said["Other places"]
    assert "selected cases" in said["Other places"]
    assert "Missing from means: 1 of 3 results" in said["What is measured"]
