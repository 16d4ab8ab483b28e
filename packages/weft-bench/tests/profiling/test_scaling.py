"""The laws at published values, and their fits."""

from __future__ import annotations

import math

import pytest

from profiling.made import profile
from weft_bench.machine.laws import Scaling, amdahl, amdahl_limit, fit_amdahl, fit_gustafson, gustafson
from weft_bench.profiling.scaling import call_share, pictures


@pytest.mark.parametrize(("f", "of_four", "limit"), [(0.90, 3.08, 10.0), (0.95, 3.48, 20.0), (0.99, 3.88, 100.0)])
def test_amdahl_is_the_published_table(f: float, of_four: float, limit: float) -> None:
    """Table 3.5 of the thesis."""
    assert amdahl(f, 4) == pytest.approx(of_four, abs=0.005)
    assert amdahl_limit(f) == pytest.approx(limit)
    assert amdahl(f, 1e12) == pytest.approx(limit)


def test_gustafson() -> None:
    assert gustafson(0.9, 1) == 1
    assert gustafson(0.9, 10) == pytest.approx(9.1)
    assert amdahl_limit(1.0) == math.inf


def test_shares_are_found_again() -> None:
    workers = (1, 2, 4, 8, 64)
    assert fit_amdahl(workers, [amdahl(0.93, p) for p in workers]) == pytest.approx(0.93)
    assert fit_gustafson(workers, [gustafson(0.7, p) for p in workers]) == pytest.approx(0.7)
    assert fit_amdahl(workers, [1.0] * 5) == 0
    assert fit_amdahl((1,), (1.0,)) == 0
    assert fit_amdahl((1, 2), (1.0, 3.0)) == 1  # more than all is parallel: caches


def test_the_share_that_faster_kernels_shorten() -> None:
    found = profile()
    found.host = found.seconds.value / 3
    assert call_share(found) == pytest.approx(0.75)
    found.host = None
    assert call_share(found) is None


def test_pictures_are_drawn_of_what_is_known() -> None:
    strong, weak = (Scaling(kind, (1, 2, 4), (1.0, 1.9, 3.5)) for kind in ("strong", "weak"))
    drawn = pictures([profile()], [strong, weak])
    assert len(drawn) == 4
    assert all(png.startswith(b"\x89PNG") for png in drawn.values())
    bare = profile()
    bare.ceilings, bare.host = {}, None
    assert pictures([bare]) == {}
