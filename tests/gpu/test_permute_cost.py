"""What the cost model of permutations sees of a tile."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gpu.permutations import H200, described
from weft.gpu.common.tiling import A, D, TiledAxis
from weft.gpu.permute import family as permute
from weft.gpu.permute.model import access_of, digits, permute_params
from weft.gpu.permute.schedule import PermuteSchedule


@pytest.mark.parametrize(("tile", "expected"), [(4, 4), (8, 8), (16, 12), (32, 16), (64, 19)])
def test_runs_end_where_tiles_and_modes_do(tile: int, expected: int) -> None:
    """Tiles of `tile` indices of c and b, 24 and 10 of them: the source has c together, and b far apart."""
    permutation = described("bac->cab", (10, 8, 24), torch.float32)
    by_name = {mode.name: mode for mode in permutation.modes}
    axes = (TiledAxis((by_name["c"], by_name["b"]), tile),)
    params = permute_params(permutation, PermuteSchedule(axes, 4))
    starts = range(0, 240, tile)
    pieces = sum((min(start + tile, 240) - 1) // 24 - start // 24 + 1 for start in starts)
    together = access_of(permutation.x, A, params.load).together // 4
    assert together == expected
    assert together == pytest.approx(240 / pieces, rel=0.25), "as counted, tile by tile"


def test_a_run_of_the_source_needs_no_digits() -> None:
    permutation = described("abcd->dcba", (9, 9, 9, 9), torch.float16)
    modes = {mode.name: mode for mode in permutation.modes}
    along_x, along_d = tuple(modes[name] for name in "dc"), tuple(modes[name] for name in "ab")
    one = PermuteSchedule((TiledAxis(along_x, 64), TiledAxis((modes["a"],), 8)), 4)
    two = PermuteSchedule((TiledAxis(along_x, 64), TiledAxis(along_d, 64)), 4)
    assert digits(permutation, A, permute_params(permutation, one), 128) == 0
    assert digits(permutation, A, permute_params(permutation, two), 128) > 0
    assert digits(permutation, D, permute_params(permutation, two), 128) > 0


def test_reversed_short_modes_take_longer_than_one_long_mode() -> None:
    """As many bytes in as many tiles, with more indices to compute."""
    plain = described("ab->ba", (6561, 6561), torch.float16)
    many = described("abcdefgh->hgfedcba", (9,) * 8, torch.float16)
    assert permute.best(many, H200)[1] > 1.05 * permute.best(plain, H200)[1]


@pytest.mark.parametrize("empty", range(4))
def test_nothing_to_move_has_a_plan(empty: int) -> None:
    shape = [6, 5, 7, 3]
    shape[empty] = 0
    permutation = described("abcd->dbca", tuple(shape), torch.float32)
    assert permute.best(permutation, H200)[1] > 0


@pytest.mark.parametrize(("shape", "fastest"), [((512, 384, 640), "D"), ((64, 48, 301), "source")])
def test_tiles_follow_d_unless_the_source_shares_more_lines(shape: tuple[int, ...], fastest: str) -> None:
    """Rows of 301 words start anywhere in a line, columns of D at its beginning."""
    permutation = described("abc->cab", shape, torch.float32)
    schedule, _ = permute.best(permutation, H200)
    params = permute_params(permutation, schedule)
    tensor, layout_axes = (D, params.store.axes) if fastest == "D" else (A, params.load.axes)
    (first,) = (axis for axis in layout_axes if axis.pitch == 1 and axis.blocks > 1)
    assert first.strides[tensor][0] == 1, schedule


def test_lanes_read_whole_accesses_of_small_elements() -> None:
    """16 bytes of float8 are 16 elements: tiles of 512 would leave each of 128 lanes a quarter of an access."""
    cast = described("ab->ab", (4096, 4096), torch.float8_e4m3fn, out=torch.float16)
    schedule, _ = permute.best(cast, H200)
    assert schedule.size >= 16 * 32 * schedule.warps


@pytest.mark.parametrize("capability", [80, 90])
def test_only_types_that_triton_lacks_are_refused(capability: int) -> None:
    """What a device cannot convert is the compiler's to say: it converts e5m2 on Ampere as well."""
    target = replace(H200, capability=capability)
    assert permute.supports(described("ab->ba", (8, 8), torch.float8_e5m2, out=torch.float16), target) is None
    assert permute.supports(described("ab->ba", (8, 8), torch.uint16), target) is None
    cast = described("ab->ba", (8, 8), torch.uint16, out=torch.int32)
    assert permute.supports(cast, target) == "uint16 has no Triton type here"
