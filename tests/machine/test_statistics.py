"""Robust statistics of timings and the means across cases."""

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.machine.statistics import (
    Interval,
    bootstrap_medians,
    mean_ratio,
    relative_robust_spread,
    summarise,
)

SECONDS = st.lists(st.floats(1e-7, 1e3), min_size=1, max_size=30)


def test_summary_of_a_sample_worked_by_hand() -> None:
    summary = summarise([4.0, 1.0, 2.0, 100.0, 3.0])
    assert summary.count == 5
    assert summary.median == 3.0
    assert summary.rrs == 1.4826 / 3.0  # deviations 1, 2, 1, 97, 0
    assert summary.count == 5
    assert 1.0 <= summary.low <= summary.high <= 100.0


def test_even_count_takes_the_mean_of_the_middle_pair() -> None:
    assert summarise([1.0, 2.0, 4.0, 8.0]).median == 3.0


@given(SECONDS)
def test_summary_agrees_with_the_standard_library(samples: list[float]) -> None:
    summary = summarise(samples, resamples=50)
    assert summary.median == statistics.median(samples)
    mad = statistics.median(abs(s - summary.median) for s in samples)
    assert summary.rrs == pytest.approx(1.4826 * mad / summary.median if mad else 0.0)
    assert min(samples) <= summary.low <= summary.high <= max(samples)


def test_robust_spread_estimates_a_normal_deviation() -> None:
    samples = np.random.default_rng(1).normal(10.0, 0.5, 20_000)
    assert relative_robust_spread(samples.tolist()) == pytest.approx(0.5 / 10.0, rel=0.03)


def test_interval_is_seeded_and_narrows_with_more_samples() -> None:
    rng = np.random.default_rng(2)
    few, many = rng.normal(1.0, 0.1, 20).tolist(), rng.normal(1.0, 0.1, 2000).tolist()
    assert summarise(few) == summarise(few)
    assert not np.array_equal(bootstrap_medians(few), bootstrap_medians(few, seed=1))
    assert summarise(many).high - summarise(many).low < 0.3 * (summarise(few).high - summarise(few).low)


def test_interval_covers_the_true_median_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(3)
    hits = 0
    for trial in range(200):
        summary = summarise(rng.lognormal(0.0, 0.3, 40).tolist(), resamples=300, seed=trial)
        hits += summary.low <= 1.0 <= summary.high
    assert 0.88 <= hits / 200 <= 0.99


def test_one_sample_is_its_own_summary() -> None:
    summary = summarise([0.25])
    assert (summary.median, summary.low, summary.high, summary.rrs) == (0.25, 0.25, 0.25, 0.0)


def test_one_outlier_leaves_the_spread_alone() -> None:
    calm = [1.0, 1.01, 0.99, 1.02, 0.98]
    assert relative_robust_spread([*calm, 50.0]) < 0.05


def test_spread_around_zero_is_infinite() -> None:
    assert relative_robust_spread([-1.0, 0.0, 1.0]) == math.inf
    assert relative_robust_spread([0.0, 0.0]) == 0.0


@pytest.mark.parametrize("samples", [[], [[1.0]], [1.0, math.nan], [math.inf]])
def test_samples_that_are_none_are_refused(samples: list[float]) -> None:
    with pytest.raises(ValueError, match="statistics need"):
        summarise(samples)


def test_no_resamples_are_refused() -> None:
    with pytest.raises(ValueError, match="0 bootstrap resamples"):
        bootstrap_medians([1.0], resamples=0)


def test_mean_ratio_holds_its_value_and_follows_the_noise() -> None:
    rng = np.random.default_rng(4)

    def case(seconds: float, noise: float) -> list[float]:
        return (seconds * rng.normal(1.0, noise, 30)).tolist()

    calm = mean_ratio([case(2.0, 0.001), case(0.5, 0.001)], [case(1.0, 0.001), case(1.0, 0.001)])
    rough = mean_ratio([case(2.0, 0.1), case(0.5, 0.1)], [case(1.0, 0.1), case(1.0, 0.1)])
    assert calm.value == pytest.approx(1.0, abs=0.01)
    assert calm.low <= calm.value <= calm.high
    assert rough.high - rough.low > 10 * (calm.high - calm.low)
    best = mean_ratio([[2.0], [0.5]], [[1.0], [1.0]], at_least_one=True)
    assert best.low == best.high == pytest.approx(best.value) == pytest.approx(math.sqrt(2))


def test_only_intervals_that_part_are_called_different() -> None:
    assert Interval(1.0, 0.9, 1.1).parts_from(Interval(1.3, 1.2, 1.4))
    assert Interval(1.3, 1.2, 1.4).parts_from(Interval(1.0, 0.9, 1.1))
    assert not Interval(1.0, 0.9, 1.2).parts_from(Interval(1.3, 1.2, 1.4))
