"""A stored schedule is forgotten when code that decides its kernels changes, and by no other change."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import weft
from weft.api.describe import choice_for, hypothetical
from weft.machine.store import Store
from weft.planner import keys
from weft.planner import tuned as tuned_schedules
from weft.planner.planner import Choice
from weft.planner.registry import FAMILIES, PERMUTATION_FAMILIES
from weft.planner.tuned import TunedSchedule

PACKAGE = Path(weft.__file__).parent

GETT = "weft.gpu.gett.family"
PACKED = "weft.gpu.composite.ttgt"
SPECIALIZED = "weft.gpu.warp_specialized.family"


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A copy of weft's code, which digests are made of."""
    copy = tmp_path / "weft"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "data"))
    monkeypatch.setattr(keys, "_PACKAGE", copy)
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(tuned_schedules, "here", lambda target: True)
    monkeypatch.setattr(tuned_schedules, "environment", lambda target: {"name": target.name})
    keys.of_family.cache_clear()
    yield copy
    keys.of_family.cache_clear()


def edit(file: Path) -> None:
    """Change code, as the next process would find it."""
    assert file.is_file(), file
    file.write_text(file.read_text() + "\n# changed\n")
    keys.of_family.cache_clear()


def store_first_of(choice: Choice, family: str) -> None:
    """Store the first schedule of a family as the fastest, beside the model's choice."""
    rank = next(rank for rank in choice.ranked if rank.family.__name__ == family)
    tuned = TunedSchedule(rank.schedule, 1e-6, rank.schedule, 1e-6, 1)
    assert tuned_schedules.remember(choice, None, tuned)


def on_a_gpu(family: str) -> Choice:
    """The choice for a contraction that the family can do."""
    equation = "ecbfa,fd->abcde" if family == PACKED else "abc,cd->bad"
    extents = {label: 64 if label in "df" else 32 for label in equation if label.isalpha()}
    request = hypothetical(equation, extents, dtype=torch.float16, a_fn=torch.relu, target="sm_90")
    _, choice = choice_for(request)
    assert choice is not None
    return choice


@pytest.mark.parametrize(
    ("family", "file"),
    [
        (GETT, "gpu/gett/kernel.py"),
        (GETT, "gpu/gett/family.py"),
        (GETT, "gpu/common/launch.py"),
        (GETT, "gpu/common/device.py"),
        (GETT, "fn/triton/activations.py"),
        (GETT, "fn/pointwise.py"),
        (SPECIALIZED, "gpu/warp_specialized/roles.py"),
        (SPECIALIZED, "gpu/warp_specialized/views.py"),
        (PACKED, "gpu/composite/packing.py"),
        (PACKED, "gpu/permute/kernel.py"),  # of a step
        (PACKED, "planner/program.py"),
    ],
)
def test_editing_what_kernels_are_made_of_forgets_the_schedule(copied: Path, family: str, file: str) -> None:
    choice = on_a_gpu(family)
    store_first_of(choice, family)
    found = tuned_schedules.recalled(choice, None)
    assert found is not None
    assert found.best.family.__name__ == family
    edit(copied / file)
    assert tuned_schedules.recalled(choice, None) is None


@pytest.mark.parametrize(
    "file",
    ["gpu/semiring/kernel.py", "gpu/transpose/kernel.py", "gpu/permute/kernel.py", "library/part.py", "tune/tuner.py"],
)
def test_editing_another_family_leaves_it(copied: Path, file: str) -> None:
    choice = on_a_gpu(GETT)
    store_first_of(choice, GETT)
    edit(copied / file)
    found = tuned_schedules.recalled(choice, None)
    assert found is not None
    assert found.best.family.__name__ == GETT


@pytest.mark.parametrize(
    ("file", "kept"),
    [
        ("cpu/gett/layout.py", False),
        ("fn/pointwise.py", False),
        ("fn/triton/activations.py", True),
        ("gpu/gett/kernel.py", True),
    ],
)
def test_on_the_cpu(copied: Path, file: str, kept: bool) -> None:
    a, b = torch.randn(40, 30, 20), torch.randn(20, 50)
    tuned_schedules.outdate()
    weft.plan("abk,kc->bca", a, b, tune="measure")
    assert list(Store(tuned_schedules.ROOM).directory.glob("*.json"))
    edit(copied / file)
    tuned_schedules.outdate()
    found = weft.plan("abk,kc->bca", a, b)._first().choice
    assert found is not None
    assert (found.origin.source == "store") == kept


@pytest.mark.parametrize("module", sorted({*sum(FAMILIES.values(), ()), *sum(PERMUTATION_FAMILIES.values(), ())}))
def test_every_family_has_its_own_file_among_its_code(module: str) -> None:
    files = keys.code_of(module)
    assert PACKAGE.parent.joinpath(*module.split(".")).with_suffix(".py") in files
    assert len(set(files)) == len(files)
