"""Two permutations in one launch: what they compute, which go together, and what the kernel compiles to."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import weft
from gpu.permutations import H200, described
from gpu.reporting import reported
from support import Backend
from weft.fn import trace
from weft.gpu.permute import family as permute
from weft.gpu.permute.family import PermuteMove, PermutePairLaunch, supports_pair
from weft.planner.schedule import Target
from weft.spec.permutation import Permutation

HALF = torch.float16
CASES = [
    (("ab->ba", (70, 130), HALF), ("abc->cab", (9, 30, 16), HALF)),
    (("ab->ab", (40, 24), HALF), ("ab->ba", (33, 65), torch.float32)),
    (("abc->bac", (17, 30, 3), torch.int8), ("abcd->dcba", (3, 4, 2, 5), torch.complex128)),
]


def planned(permutation: Permutation, target: Target = H200) -> PermuteMove:
    return PermuteMove(permutation, permute.best(permutation, target)[0])


def elements(permutation: Permutation, backend: Backend) -> torch.Tensor:
    generator = torch.Generator().manual_seed(permutation.size)
    found = torch.randint(-9, 9, permutation.x.shape, generator=generator).to(permutation.x.dtype)
    return found.to(backend.device)


def moved(permutation: Permutation, x: torch.Tensor) -> torch.Tensor:
    term, output = permutation.text.split("->")
    return x.permute([term.index(label) for label in output]).contiguous()


def target_of(backend: Backend) -> Target:
    x = torch.ones(2, 2, device=backend.device)
    return weft.plan_permute(x, "ab->ba", backend=backend.name)._request.target


@pytest.mark.parametrize(("first", "second"), CASES)
def test_both_are_moved(first: tuple, second: tuple, triton_backend: Backend) -> None:
    """Whatever their types and tiles, and in whichever order they come."""
    target = target_of(triton_backend)
    for pair in ((first, second), (second, first)):
        moves = [planned(described(*each), target) for each in pair]
        sources = [elements(move.permutation, triton_backend) for move in moves]
        expected = [moved(move.permutation, x) for move, x in zip(moves, sources, strict=True)]
        results = [torch.full_like(each, 77) for each in expected]  # poison: no element is as large
        PermutePairLaunch(*moves, target)(sources[0], results[0], sources[1], results[1])
        for result, wanted in zip(results, expected, strict=True):
            assert torch.equal(result, wanted), pair


def test_each_has_a_function_of_its_own(triton_backend: Backend) -> None:
    """One of halves, one that only rounds its values to them."""
    target = target_of(triton_backend)
    relu = replace(described("ab->ba", (40, 72), HALF), fn=trace(torch.relu, (HALF,)))
    rounding = described("abc->bca", (6, 16, 24), torch.float32)
    rounding = replace(rounding, d=rounding.d._replace(dtype=HALF))
    x, y = (elements(each, triton_backend) for each in (relu, rounding))
    y = y / 3
    d, e = torch.zeros(72, 40, device=x.device, dtype=HALF), torch.zeros(16, 24, 6, device=x.device, dtype=HALF)
    PermutePairLaunch(planned(relu, target), planned(rounding, target), target)(x, d, y, e)
    assert torch.equal(d, moved(relu, x).relu())
    assert torch.equal(e, moved(rounding, y).half())


def test_tiles_of_few_elements_do_not_take_the_warps_of_large_ones() -> None:
    large, small = (described("ab->ba", shape, HALF) for shape in ((4096, 4096), (16, 24)))
    transposed, copied = planned(large), planned(small)
    assert transposed.schedule.warps == 8
    assert copied.schedule.warps == 4
    assert not supports_pair(transposed, copied)
    assert supports_pair(copied, copied)
    assert supports_pair(transposed, transposed)


def test_what_is_scaled_or_conjugated_goes_alone() -> None:
    plain = planned(described("ab->ba", (64, 64), torch.float32))
    for changed in ({"scaled": True}, {"conjugate": True}):
        other = PermuteMove(replace(plain.permutation, **changed), plain.schedule)
        assert not supports_pair(plain, other)
        assert not supports_pair(other, plain)


def test_the_kernel_holds_what_the_two_would() -> None:
    """As many and as wide accesses as both alone, the shared memory of the larger, nothing spilled."""
    found = reported("permute_pair_report.py")
    assert found
    for name, (x, y, both) in found.items():
        for access in ("ld.global", "ld.global.16", "st.global", "st.global.16"):
            assert both[access] == x[access] + y[access], (name, access)
        assert both["shared"] == max(x["shared"], y["shared"]), name
        assert both["local"] == 0, name
