"""The README's Python and every example in a docstring run, on the CPU, and print what they say."""

from __future__ import annotations

import doctest
import importlib
import json
import pkgutil
import re
from pathlib import Path

import pytest

import weft

README = Path(__file__).resolve().parent.parent / "README.md"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def modules_with_examples() -> list[str]:
    """Every module of the package whose source holds a prompt; found without importing any."""
    root = Path(weft.__file__).parent
    names = [module.name for module in pkgutil.walk_packages([str(root)], "weft.")]
    paths = {name: root.joinpath(*name.split(".")[1:]) for name in names}
    files = {name: path / "__init__.py" if path.is_dir() else path.with_suffix(".py") for name, path in paths.items()}
    return [name for name, file in files.items() if ">>> " in file.read_text()]


def test_readme_blocks_run() -> None:
    """The blocks are one program, read from top to bottom."""
    blocks = BLOCK.findall(README.read_text())
    assert blocks, "the README shows no Python"
    namespace: dict[str, object] = {}
    for block in blocks:
        source = compile(block, str(README), "exec")
        exec(source, namespace)


@pytest.mark.parametrize("name", modules_with_examples())
def test_docstring_examples(name: str) -> None:
    failed, tried = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert tried
    assert failed == 0


def test_measured_figures_stand_in_the_summary() -> None:
    """Every number with decimals in the section of figures is one of `results/h200/summary.json`, rounded."""
    section = README.read_text().partition("## Measured figures")[2].partition("\n## ")[0]
    quoted = re.findall(r"(?<![\w.])\d+\.\d+(?![\w.]*\d)", section)
    summary = json.loads((README.parent / "results" / "h200" / "summary.json").read_text())
    known = {f"{figure['value']:.2f}" for figure in summary.values()}
    assert len(quoted) >= 10
    assert set(quoted) <= known


def test_the_main_calls_have_examples() -> None:
    for call in (weft.contract, weft.plan, weft.einsum):
        assert ">>> " in (call.__doc__ or "")
