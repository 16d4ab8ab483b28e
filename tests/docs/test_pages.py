"""What pages say of the repository is so: links, files, names, commands, variables, figures."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import typer

import figures
import weft
from pages import DOCS, PAGES, ROOT, name_of, prose
from weft.cli.main import app


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_and_files_exist(page: Path) -> None:
    """Links within the repository, and files that a page names in backticks."""
    text = prose(page)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"https?:", target):
            path = target.partition("#")[0]
            assert not path or (page.parent / path).exists(), target
    for file in re.findall(r"`((?:src|tests|docs|results)/[^`<>*\s]+)`", text):
        assert (ROOT / file).exists(), file


@pytest.mark.parametrize("name", sorted(set(weft.__all__) - {"__version__"}))
def test_public_names_have_an_entry(name: str) -> None:
    text = "".join(page.read_text() for page in (DOCS / "api").glob("*.md"))
    assert re.search(rf"^\.\. auto\w+:: weft\.{name}\b", text, re.MULTILINE)


def test_contract_has_a_bullet_for_each_argument() -> None:
    text = inspect.cleandoc(weft.contract.__doc__ or "")
    bullets = re.findall(r"^\* ((?:`\w+`(?:, )?)+):", text, re.MULTILINE)
    names = [name for found in bullets for name in found.replace("`", "").split(", ")]
    assert sorted(names) == sorted(inspect.signature(weft.contract).parameters)


def commands() -> list[str]:
    """Every command, its words in a row."""
    found: list[str] = []
    todo: list[tuple[str, Any]] = [("weft", typer.main.get_command(app))]
    while todo:
        words, command = todo.pop()
        inner = getattr(command, "commands", {})
        todo += [(f"{words} {name}", each) for name, each in inner.items()]
        found += [] if inner else [words]
    return sorted(found)


@pytest.mark.parametrize("words", commands())
def test_commands_have_a_page(words: str) -> None:
    """Its options come from the command itself, by the directive."""
    page = DOCS / "commands" / f"{words.split()[1]}.md"
    assert f"```{{command}} {words}\n" in page.read_text()
    assert f"({page.name})" in (DOCS / "commands" / "index.md").read_text()


def test_environment_variables_have_a_row() -> None:
    folders = (ROOT / "src" / "weft", ROOT / "packages" / "weft-bench" / "src")
    source = "".join(path.read_text() for folder in folders for path in folder.rglob("*.py"))
    read = set(re.findall(r"environ(?:\.get\(|\[)\"(\w+)\"", source))
    rows = set(re.findall(r"^\| `(\w+)` \|", (DOCS / "environment.md").read_text(), re.MULTILINE))
    assert read
    assert read == rows


def test_errors_have_a_row() -> None:
    page = (DOCS / "errors.md").read_text()
    for name in weft.__all__:
        if name.endswith("Error") and name != "WeftError":
            (built_in,) = [base.__name__ for base in getattr(weft, name).__bases__ if base is not weft.WeftError]
            assert re.search(rf"^\| `{name}` \|.*\| `{built_in}` \|$", page, re.MULTILINE), name


def test_algebras_have_a_row() -> None:
    rows = re.findall(r"^\| `\"(\w+)\"` \|", (DOCS / "algebras.md").read_text(), re.MULTILINE)
    assert rows == list(weft.algebra.NAMED)


@pytest.mark.parametrize("name", figures.PAGES)
def test_figures_are_those_of_the_summary(name: str) -> None:
    """Each by its name, and tables whole; and no number with decimals stands where none is named."""
    text = (ROOT / name).read_text()
    assert figures.written(text) == text
    stale = figures._SCOPE.sub(lambda scope: re.sub(r"(?<= )\d+\.\d\d(?=[ ;,.)])", "7.77", scope.group()), text)
    stale = figures._TABLE.sub(lambda table: re.sub(r"\d", "7", table.group()), stale)
    assert stale != text
    assert figures.written(stale) == text
    if name == "docs/figures.md":
        left = figures._SCOPE.sub("", text)
        assert not [found for found in figures._NUMBER.findall(left) if not found.startswith(figures._LEFT)]
