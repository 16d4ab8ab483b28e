"""Every recipe of docs/cookbook runs, and what its page measures computes the same in each way, at a small size."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import cookbook.__main__ as command
from cookbook.recipes import FOLDER, Recipe, pages, read
from pages import docs_module
from weft.base.figures import duration


def close(found: Any, expected: Any, tolerance: float) -> None:
    """Numbers, tensors, and tuples of them, relative to the largest value."""
    if isinstance(expected, (tuple, list)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            close(one, other, tolerance)
        return
    found, expected = torch.as_tensor(found), torch.as_tensor(expected)
    wide = torch.complex128 if expected.is_complex() else torch.float64
    found, expected = found.to(wide), expected.to(wide)
    finite = expected[expected.isfinite()]
    largest = float(finite.abs().max()) if finite.numel() else 1.0
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance * max(largest, 1e-30))


def agrees(recipe: Recipe, device: str) -> None:
    results = {name: call() for name, call in recipe.calls(device, "test").items()}
    (_, first), *others = results.items()
    for _, result in others if recipe.same else []:
        close(result, first, recipe.tolerance)


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.stem)
def test_recipe(page: Path) -> None:
    torch.manual_seed(0)
    recipe = read(page)
    assert set(recipe.sizes) == {"test", "cpu", "cuda"}
    agrees(recipe, "cpu")


def test_a_function_in_triton_runs_in_the_interpreter() -> None:
    """Its page's blocks for a GPU take the CPU where there is none."""
    pytest.importorskip("triton")
    (page,) = [page for page in pages() if page.stem == "triton_function"]
    read(page, "cuda")


def test_every_recipe_is_in_the_index() -> None:
    index = (FOLDER / "index.md").read_text()
    for page in pages():
        assert f"]({page.name})" in index, page.name
        assert f"\n{page.stem}\n" in index, page.name


def test_the_command_measures_and_keeps_what_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "results" / "cookbook.json"
    for name in ("vector_addition", "mp2"):
        monkeypatch.setattr(sys, "argv", ["cookbook", name, "--out", str(file), "--budget", "0.001"])
        assert command.main() == 0
    record = json.loads(file.read_text())
    assert set(record["recipes"]) == {"vector_addition", "mp2"}
    for recipe in record["recipes"].values():
        assert all(0 < time["low"] <= time["seconds"] <= time["high"] for time in recipe["times"].values())
    assert "2 relu(x) - y" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["cookbook", "souffle", "--out", str(file)])
    assert command.main() == 2
    assert "souffle" in capsys.readouterr().err


def test_a_way_that_cannot_be_measured_does_not_end_it() -> None:
    def full() -> None:
        raise RuntimeError("out of memory\nand more")

    found = command.timed({"full": full, "other": lambda: None}, "cpu", 0.001)
    assert found["full"] == {"cannot": "RuntimeError: out of memory"}
    assert found["other"]["seconds"] > 0


def test_what_was_measured_is_of_these_pages() -> None:
    """Every way that a file of results has a time of is one that its page still shows."""
    shown = {page.stem: page.read_text() for page in pages()}
    for file in sorted(FOLDER.parents[1].glob("results/*/cookbook.json")):
        record = json.loads(file.read_text())
        assert record["recipes"].keys() <= shown.keys(), file
        for name, recipe in record["recipes"].items():
            assert all(f'"{way}"' in shown[name] for way in recipe["times"]), (file, name)


def test_times_are_shown_as_they_are_in_the_file() -> None:
    pytest.importorskip("sphinx", reason="Sphinx is not installed: make docs installs it")
    times = docs_module("measured_times")
    (_, record), *_ = times.records()
    text = times.described("transpose")
    assert record["machine"]["name"] in text
    for way, time in record["recipes"]["transpose"]["times"].items():
        assert f"| {way} | {duration(time['seconds'])} [" in text
    assert "python -m cookbook transpose --" in text  # the command is of this page alone
    assert not any(other in times.command(record, "mp2") for other in ("transpose", "peps", "--missing"))
    assert "Not measured" in times.described("souffle")
    assert "(host)" not in text  # one that no CUDA graph holds says so
    assert "] (host) |" in times.described("random_circuit")


@pytest.mark.gpu
@pytest.mark.parametrize("page", pages(), ids=lambda page: page.stem)
def test_recipe_on_a_gpu(page: Path) -> None:
    torch.manual_seed(0)
    agrees(read(page, "cuda"), "cuda")


def test_pictures_are_up_to_date() -> None:
    """`python docs/cookbook_pictures.py` draws them anew; pages name no other."""
    pictures = docs_module("cookbook_pictures")
    assert {file.stem for file in pictures.FOLDER.glob("*.svg")} == set(pictures.DRAWN)
    shown = "".join(page.read_text() for page in pages())
    for name in pictures.DRAWN:
        assert (pictures.FOLDER / f"{name}.svg").read_text() == pictures.drawn(name), name
        assert f"(pictures/{name}.svg)" in shown, name
