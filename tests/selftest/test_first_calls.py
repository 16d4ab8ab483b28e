"""The path of every user's first call, the self-test on: with an empty cache, and with what that call has left."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from first_calls import CALLS, First, expected, first
from support import link_compiled

#: Families that the first call of each kind tries; kernels for groups have no trials.
TRIED = {
    "contract": {"weft.cpu.gett.family"}, "permute": {"weft.cpu.permute.family"}, "network": {"weft.cpu.gett.family"},
    "grouped": set(), "grouped_alike": {"weft.cpu.gett.family"},
}  # fmt: skip


def check(name: str, found: First) -> None:
    for values in (found.values, found.again):
        for value, wanted in zip(values, expected(name), strict=True):
            torch.testing.assert_close(value.double(), wanted, rtol=1e-4, atol=1e-4)
    assert found.faults == []
    assert found.warned == []
    assert found.trials[1] == [], "the second call tries nothing"


@pytest.mark.parametrize("compiled", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["compiled", "bare"])
@pytest.mark.parametrize("name", CALLS)
def test_a_first_call_tries_what_it_uses_and_the_next_process_trusts_it(
    name: str, compiled: bool, tmp_path: Path
) -> None:
    """`compiled`: machine code is there, as after an update that changed no kernel, and no verdict."""
    if compiled:
        link_compiled(tmp_path)
    found = first(name, tmp_path)
    check(name, found)
    tried = {each.split()[0] for each in found.trials[0]}
    assert tried == TRIED[name]
    later = first(name, tmp_path)
    check(name, later)
    assert later.trials[0] == []
    for mine, before in zip(later.values, found.values, strict=True):
        assert torch.equal(mine, before)
