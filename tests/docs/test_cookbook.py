"""Every recipe of docs/cookbook runs, and what its page measures computes the same in each way, at a small size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cookbook.recipes import FOLDER, Recipe, pages, read
from pages import docs_module


def close(found: Any, expected: Any, tolerance: float) -> None:
    """Numbers, tensors, and tuples of them, relative to the largest value."""
    if isinstance(expected, (tuple, list)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            close(one, other, tolerance)
        return
    found, expected = torch.as_tensor(found).double(), torch.as_tensor(expected).double()
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
