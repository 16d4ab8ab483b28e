"""The notebooks of examples/: their cells run from top to bottom, and what a cell shows at its end can be shown."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from pages import DOCS, ROOT

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def cells(notebook: Path, kind: str) -> list[str]:
    return ["".join(cell["source"]) for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == kind]


def run(cell: str, name: str, namespace: dict[str, Any]) -> Any:
    """A cell as a notebook runs it: the value of a last line that is an expression, or None."""
    tree = ast.parse(cell, name)
    shown = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), namespace)
    return eval(compile(ast.Expression(shown.value), name, "eval"), namespace) if isinstance(shown, ast.Expr) else None


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda file: file.stem)
def test_cells_run(notebook: Path) -> None:
    torch.manual_seed(0)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    pages = 0
    for at, cell in enumerate(cells(notebook, "code")):
        value = run(cell, f"{notebook.name} cell {at}", namespace)
        show = getattr(value, "_repr_html_", None)
        pages += show is not None
        assert show().startswith("<") if show else repr(value)
    assert pages, "each notebook shows a plan, a network or a report"


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda file: file.stem)
def test_notebooks_are_kept_without_results(notebook: Path) -> None:
    """Results are of the machine that they were made on."""
    document = json.loads(notebook.read_text())
    assert (document["nbformat"], document["metadata"]["kernelspec"]["name"]) == (4, "python3")
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in document["cells"])
    assert cells(notebook, "markdown")[0].startswith("# ")


def test_pages_name_every_notebook() -> None:
    page = (DOCS / "notebooks.md").read_text()
    assert len(NOTEBOOKS) >= 4
    for notebook in NOTEBOOKS:
        assert f"`examples/{notebook.name}`" in page, notebook.name


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda file: file.stem)
def test_they_run_in_jupyter(notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="the extra `notebooks` brings it")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PYTHONPATH", str(Path(weft.__file__).parent.parent))
    document = nbformat.read(notebook, as_version=4)
    nbformat.validate(document)
    nbclient.NotebookClient(document, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    kinds = {kind for cell in document.cells for output in cell.get("outputs", ()) for kind in output.get("data", ())}
    assert "text/html" in kinds
