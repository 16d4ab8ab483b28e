"""Groups by torch's operations: alike or not, stacked or in turn, added to what is there."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from library.test_values import DEVICES, place_of, target_for, without_halves
from weft.library.groups import Layouts, LibraryGroupLaunch
from weft.planner.options import Options
from weft.plans.resolving import resolved
from weft.spec import Contraction, Layout, parse
from weft.testing import poisoned, random_operand

__all__ = ["without_halves"]  # a fixture of every test here

EXTENTS = [(3, 5, 4), (17, 9, 6)] * 5 + [(1, 2, 3), (300, 8, 70)]


def describe(add: bool, layouts: Layouts) -> Contraction:
    """The contraction of a pair that lies so."""
    a, b, d = layouts
    x, y = (torch.empty_strided(each.shape, each.strides, dtype=each.dtype, device="meta") for each in (a, b))
    request = resolved(parse("mk,kn->nm"), "mk,kn->nm", x, y, Options(backend="reference"))
    return request.contraction(d if add else None, d, ())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32], ids=str)
def test_a_group(dtype: torch.dtype, add: bool, device: str) -> None:
    place = place_of(device)
    pairs = [
        [random_operand(shape, dtype, at, integers=True, device=place) for at, shape in enumerate(((m, k), (k, n)))]
        for m, k, n in EXTENTS
    ]
    a, b = zip(*pairs, strict=True)
    d = [poisoned((n, m), dtype, layout="padded", device=place).tensor for m, _, n in EXTENTS]
    if add:
        for each in d:
            each.copy_(torch.arange(each.numel(), device=place).reshape(each.shape) % 5)
    before = [each.double() for each in d]
    layouts = [(Layout.of(x), Layout.of(y), Layout.of(z)) for x, y, z in zip(a, b, d, strict=True)]
    launch = LibraryGroupLaunch(partial(describe, add), layouts, target_for(device), add)
    assert str(launch) == "library: 4 kinds of pairs by torch"
    launch(a, b, d)
    for x, y, z, old in zip(a, b, d, before, strict=True):
        exact = (x.double() @ y.double()).t()
        assert torch.equal(z, (exact + old if add else exact).to(dtype))
