"""The pack of kernels: what it has, how it is built and what is said of it. Nothing is compiled here."""

from __future__ import annotations

import os
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from gpu.fake_driver import cubin
from weft.gpu.common import cubins
from weft.machine import pack
from weft.planner.at_hand import at_hand
from weft.planner.planner import Choice
from weft.plans.handful import SHAPES, shapes_of
from weft_kernels import build
from weft_kernels.catalogue import DEVICES, kernels_of, tasks

HALF = (torch.float16, torch.bfloat16)


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "store"))
    monkeypatch.setenv("WEFT_KERNELS", "0")
    monkeypatch.setattr(os, "environ", os.environ.copy())
    pack._opened.cache_clear()
    return tmp_path


class Compilers:
    """Stands for a pool of compilers: keeps something for every kernel but one."""

    left_out = ""

    def __init__(self, target: Any, backend: str, jobs: int) -> None:
        self.target = target

    def __enter__(self) -> Compilers:
        return self

    def __exit__(self, *_: object) -> None: ...

    def submit(self, description: Any, rank: Any) -> Future[str | None]:
        found: Future[str | None] = Future()
        kernels = kernels_of(description, rank, self.target)
        for key in kernels.keys() - {self.left_out}:
            cubins.keep(key, self.target.capability, cubin(key, (8,)))
        found.set_result("RuntimeError: no" if self.left_out in kernels else None)
        return found


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The kernels of a catalogue that is cut short, by their keys."""
    wanted = tasks(DEVICES[90], sampled=False)[:12]
    monkeypatch.setattr(build, "tasks", lambda target, sampled: wanted)
    monkeypatch.setattr(build, "Compiler", Compilers)
    monkeypatch.setattr(Compilers, "left_out", "")
    return {key: launch for task in wanted for key, launch in task.kernels.items()}


@pytest.mark.parametrize("capability", DEVICES)
def test_ordinary_contractions_of_every_type_are_in_it(capability: int) -> None:
    """As a user's call plans them for that GPU, the shapes whose kernels nine of ten small ones take."""
    target, missing, asked = DEVICES[capability], 0, 0
    known = {key for task in tasks(target, sampled=False) for key in task.kernels}
    for dtype, out in ((torch.float32, None), (torch.float64, None), (torch.int32, None),
                       *((half, out) for half in HALF for out in (None, torch.float32))):  # fmt: skip
        a, b = (torch.empty(4, 4, dtype=dtype, device="meta") for _ in range(2))
        like = weft.plan("mk,kn->mn", a, b, out_dtype=out, backend="reference").contraction
        for description in shapes_of(like):
            choice = at_hand(description, "triton", target)
            assert isinstance(choice, Choice)
            if hasattr(choice.best.family, "structures"):
                asked += 1
                missing += not known.issuperset(kernels_of(description, choice.best, target))
    assert asked >= 5 * len(SHAPES)
    assert missing == 0


def test_permutations_of_every_size_of_elements_are_in_it() -> None:
    target = DEVICES[90]
    known = {key for task in tasks(target, sampled=False) for key in task.kernels}
    for dtype in (torch.uint8, torch.bfloat16, torch.float32, torch.int64, torch.complex128):
        x = torch.empty(2048, 2048, dtype=dtype, device="meta")
        choice = at_hand(weft.plan_permute(x, "ab->ba", backend="reference").permutation, "triton", target)
        assert isinstance(choice, Choice)
        assert known.issuperset(kernels_of(choice.description, choice.best, target)), dtype


def test_a_shelf_has_all_kernels_and_says_what_made_them(
    places: Path, few: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert build.main(["90", "--few", "--into", str(places / "made"), "--jobs", "1"]) == 0
    assert capsys.readouterr().out.startswith(f"sm_90.pack: {len(few)} kernels, ")
    assert sorted(pack.Shelf(places / "made" / "sm_90.pack").keys()) == sorted(few)
    for name in ("TRITON_DISABLE_LINE_INFO", "WEFT_KERNELS"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("WEFT_KERNELS", str(places / "made"))
    for key in few:
        [(place, found)] = cubins.found(key, 90)
        assert place == cubins.PACK
        assert found == cubin(key, (8,))
    assert f"kernels built ahead: {len(few)} of {len(few)} in " in cubins.told(90)
    assert cubins.told(80).startswith("no kernels built ahead for sm_80: each is compiled at its first use")


def test_of_other_code_nothing_fits(places: Path, few: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    build.main(["90", "--into", str(places)])
    monkeypatch.setenv("WEFT_KERNELS", str(places))
    monkeypatch.setattr(cubins, "of_kernel", lambda module: "of another version")
    assert f"kernels built ahead: 0 of {len(few)} in " in cubins.told(90)
    assert not [key for launch in few.values() for key in cubins.found(str(cubins.key_of(launch)), 90)]


def test_what_is_missing_is_counted_and_said(
    places: Path, few: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Compilers, "left_out", next(iter(few)))
    assert build.main(["90", "--into", str(places)]) == 1
    said = capsys.readouterr()
    assert f"sm_90.pack: {len(few) - 1} kernels" in said.out
    assert "1 missing" in said.out
    assert "RuntimeError: no" in said.err


def test_an_unknown_gpu_is_refused(places: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build.main(["75"])
    assert "kernels are built for [80, 86, 89, 90, 100], not for [75]" in capsys.readouterr().err
