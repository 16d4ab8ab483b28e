"""The example whose slices ranks share: two ranks, then one process on what they left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import network_rank_cases
from on_ranks import on_ranks
from pages import ROOT

EXAMPLE = ROOT / "examples" / "network_over_ranks.py"


@pytest.mark.slow
def test_two_ranks_and_then_a_process_alone(tmp_path: Path) -> None:
    outcomes = on_ranks(2, network_rank_cases.example, str(EXAMPLE), str(tmp_path))
    assert [outcome.message for outcome in outcomes] == ["", ""]
    plain, kept, again = outcomes[0].value
    assert outcomes[1].value == outcomes[0].value
    assert kept == plain
    assert again == pytest.approx(plain, rel=1e-5)
    alone = subprocess.run([sys.executable, EXAMPLE, tmp_path], capture_output=True, text=True, check=True)
    assert float(alone.stdout.split()[-1]) == pytest.approx(plain, rel=1e-4)
    matrices = torch.randn(2 * 10, 8, 8, 8, generator=torch.Generator().manual_seed(0)).double() / 8
    upper, lower = matrices[:10], matrices[10:]
    total = torch.eye(64, dtype=torch.float64)
    for one, other in zip(upper, lower, strict=True):
        total = total @ torch.einsum("abp,cdp->acbd", one, other).reshape(64, 64)
    assert plain == pytest.approx(total.trace().item(), rel=1e-3)
