"""The analytical models against the tables of the thesis they come from."""

import math

import pytest

from weft.bench import models


def test_table_3_1_contraction_order() -> None:
    direct = models.two_site_direct_terms(batch=1, physical=16, bond=256)
    ordered = models.two_site_ordered_terms(batch=1, physical=16, bond=256)
    assert (direct, ordered) == (16_777_216, 1_114_112)
    assert round(direct / ordered, 2) == 15.06
    assert direct / ordered == pytest.approx(16 * 256 / (16 + 256))


@pytest.mark.parametrize(
    ("m", "n", "ideal", "effective", "drop", "padded"),
    [
        (47, 84, 7.76, 6.85, 11.7, (48, 96, 64)),
        (63, 95, 8.67, 8.50, 2.0, (64, 96, 64)),
        (65, 130, 9.20, 7.23, 21.4, (80, 144, 64)),
        (111, 73, 9.27, 8.58, 7.4, (112, 80, 64)),
        (128, 128, 10.67, 10.67, 0.0, (128, 128, 64)),
    ],
)
def test_table_3_3_padding(
    m: int, n: int, ideal: float, effective: float, drop: float, padded: tuple[int, int, int]
) -> None:
    assert round(models.gemm_intensity(m, n, 64, 4), 2) == ideal
    assert round(models.padded_intensity(m, n, 64, 4, tile=16), 2) == effective
    assert round(100 * models.padding_loss(m, n, 64, 4, tile=16), 1) == drop
    assert tuple(models.padded(extent, 16) for extent in (m, n, 64)) == padded


def test_doubling_the_element_halves_the_intensity() -> None:
    assert models.gemm_intensity(47, 84, 64, 8) == models.gemm_intensity(47, 84, 64, 4) / 2


@pytest.mark.parametrize(
    ("capacity", "element_bytes", "extent"),
    [(40e9, 4, 57_735), (40e9, 8, 40_825), (164 * 1024, 4, 118), (164 * 1024, 8, 84)],
)
def test_table_3_4_capacity(capacity: float, element_bytes: int, extent: int) -> None:
    crossing = models.capacity_extent(capacity, element_bytes)
    assert round(crossing) == extent  # the table rounds to the nearest extent
    assert models.gemm_storage(math.floor(crossing), element_bytes) <= capacity
    assert models.gemm_storage(math.floor(crossing) + 1, element_bytes) > capacity


@pytest.mark.parametrize(("fraction", "four", "limit"), [(0.90, 3.08, 10.0), (0.95, 3.48, 20.0), (0.99, 3.88, 100.0)])
def test_table_3_5_amdahl(fraction: float, four: float, limit: float) -> None:
    assert round(models.amdahl(fraction, 4), 2) == four
    assert models.amdahl(fraction, math.inf) == pytest.approx(limit)


def test_scaling_laws_at_their_ends() -> None:
    assert models.amdahl(0.0, 64) == 1
    assert models.amdahl(1.0, 64) == 64
    assert models.amdahl(1.0, math.inf) == math.inf
    assert models.gustafson(0.0, 64) == 64
    assert models.gustafson(1.0, 64) == 1
    assert models.gustafson(0.1, 4) == pytest.approx(3.7)
    assert models.speedup(8.0, 2.0) == 4
    assert models.parallel_efficiency(8.0, 2.0, workers=8) == 0.5


@pytest.mark.parametrize("law", [models.amdahl, models.gustafson])
def test_fractions_outside_one_are_refused(law) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        law(1.5, 4)


def test_a_tile_has_elements() -> None:
    with pytest.raises(ValueError, match="a tile of 0"):
        models.padded(5, 0)
