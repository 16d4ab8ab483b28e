"""Every Python block of README and of docs/ runs, and every example of a docstring; every line of shell can be."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperGroup

import weft
from pages import DOCS, PAGES, ROOT, Block, blocks, name_of
from weft.cli.main import app

GPU = "gpu"
COLUMNS = 80  # of code: what fits between the side bars of a page
INSTALLS = ("pip install .", 'pip install ".[cli,networks]" packages/weft-bench', "pip install packages/weft-bench")
COOKBOOK = DOCS / "cookbook"  # `tests/docs/test_cookbook.py` runs its pages


def with_python(*, gpu: bool) -> list[Path]:
    """Pages that show Python; with `gpu` those of which a block needs one."""
    found = [page for page in PAGES if page.parent != COOKBOOK and blocks(page, "python")]
    return [page for page in found if any(GPU in block.marks for block in blocks(page, "python"))] if gpu else found


def run(page: Path, chosen: list[Block]) -> None:
    """Blocks as one program, in the order of the page; a traceback shows the page's own lines."""
    namespace: dict[str, object] = {}
    for block in chosen:
        exec(compile("\n" * block.line + block.text, str(page), "exec"), namespace)


@pytest.mark.parametrize("page", with_python(gpu=False), ids=name_of)
def test_python_runs(page: Path) -> None:
    run(page, [block for block in blocks(page, "python") if GPU not in block.marks])


@pytest.mark.gpu
@pytest.mark.parametrize("page", with_python(gpu=True), ids=name_of)
def test_python_runs_on_a_gpu(page: Path) -> None:
    run(page, blocks(page, "python"))


def test_pages_show_python() -> None:
    assert len(with_python(gpu=False)) >= 12
    assert with_python(gpu=True)
    marks = {mark for page in PAGES for block in blocks(page, "python") for mark in block.marks}
    assert marks == {GPU, "times"}, "a mark that no test knows"


def modules_with_examples() -> list[str]:
    """Every module of the package whose source holds a prompt; found without importing any."""
    root = Path(weft.__file__).parent
    names = [module.name for module in pkgutil.walk_packages([str(root)], "weft.")]
    paths = {name: root.joinpath(*name.split(".")[1:]) for name in names}
    files = {name: path / "__init__.py" if path.is_dir() else path.with_suffix(".py") for name, path in paths.items()}
    return [name for name, file in files.items() if ">>> " in file.read_text()]


@pytest.mark.parametrize("name", modules_with_examples())
def test_docstring_examples(name: str) -> None:
    failed, tried = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert tried
    assert failed == 0


def test_the_main_calls_have_examples() -> None:
    for call in (weft.contract, weft.plan, weft.einsum, weft.permute):
        assert ">>> " in (call.__doc__ or "")


@pytest.mark.parametrize("language", ["python", "bash"])
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_code_is_no_wider_than_a_column_of_text(page: Path, language: str) -> None:
    wide = [line for block in blocks(page, language) for line in block.text.splitlines() if len(line) > COLUMNS]
    assert wide == []


def shell_lines() -> list[Any]:
    """Every command, its continuation lines joined; comments are none."""
    texts = [(page, re.sub(r"\s*\\\n\s*", " ", block.text)) for page in PAGES for block in blocks(page, "bash")]
    lines = [(page, re.sub(r"(^|\s+)#.*", "", line)) for page, text in texts for line in text.splitlines()]
    return [pytest.param(line, id=f"{name_of(page)}: {line}") for page, line in lines if line.strip()]


@pytest.mark.parametrize("line", shell_lines())
def test_shell_lines_can_be_run(line: str) -> None:
    """A command of weft is parsed, options and all; a verb of make and a script are there."""
    program, *arguments = shlex.split(line)
    if program == "weft":
        parse(arguments)
    elif program == "make":
        verbs = [word for word in arguments if "=" not in word]
        makefile = (ROOT / "Makefile").read_text()
        assert verbs
        assert all(f"\n{verb}:" in makefile for verb in verbs)
    elif program == "python":
        assert (ROOT / arguments[0]).is_file()
    elif program == "torchrun" and "-m" in arguments:
        assert arguments[arguments.index("-m") + 1] == "weft"
        parse(arguments[arguments.index("-m") + 2 :])
    elif program == "torchrun":
        assert any((ROOT / argument).is_file() for argument in arguments if argument.endswith(".py"))
    else:
        assert line in INSTALLS


def parse(arguments: list[str]) -> None:
    """Find the command and read its arguments, as a call of it would, without running it; raises where it cannot."""
    found: Any = typer.main.get_command(app)
    while hasattr(found, "commands"):
        if arguments[0] not in found.commands and not isinstance(found, TyperGroup):
            break  # it is a command itself, that other words make another one
        found, arguments = found.commands[arguments[0]], arguments[1:]
    context = found.context_class(found, info_name=found.name)
    values, rest, _ = found.make_parser(context).parse_args(list(arguments))
    assert not rest
    missing = [each.name for each in found.params if each.required and not values.get(each.name)]
    assert not missing
