"""The recorded table of choices, code and bits: what moves of code may not change."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def compared(*arguments: str) -> int:
    """Rows that the command has compared; it fails where one differs."""
    environment = os.environ | {"TRITON_INTERPRET": "0"}
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT / "tools"), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    )
    command = [sys.executable, "-m", "plan_table", "--jobs", "1", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return int(done.stdout.splitlines()[-1].split()[2])


@pytest.fixture(scope="module", autouse=True)
def triton() -> None:
    pytest.importorskip("triton")


# A sample in quick runs, by a step that visits every list of cases; all in slow ones.
@pytest.mark.parametrize("every", [23, pytest.param(1, marks=pytest.mark.slow)])
def test_choices_and_bits_are_as_recorded(every: int) -> None:
    compared("--sections", "choices,bits", "--every", str(every))


@pytest.mark.parametrize("every", [13, pytest.param(1, marks=pytest.mark.slow)])
def test_kernels_are_as_recorded(every: int) -> None:
    compared("--sections", "ptx", "--targets", "sm_90", "--every", str(every))


def test_a_choice_that_changes_is_named(tmp_path: Path) -> None:
    """The sieve holds: a table with another schedule is told from today's."""
    import plan_table

    names = ["odd-product float32,float32,float32"]
    now = {name: plan_table.choices(name, ["sm_90"]) for name in names}
    changed = {name: {"sm_90": ["another", *rest[1:]]} for name, by in now.items() for rest in by.values()}
    if plan_table.recorded()["conditions"]["choices"]["sm_90"] != plan_table.conditions("choices", "sm_90"):
        pytest.skip("the table was recorded under another Triton")
    assert not list(plan_table.differences("choices", now))
    (line,) = plan_table.differences("choices", changed)
    assert "another" in line
    assert names[0] in line
