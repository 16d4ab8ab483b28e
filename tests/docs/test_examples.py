"""Every public name has an example that runs: in its docstring, or in a block of Python on its API page.

`test_blocks.py` runs them all; here it is looked after that there is one.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator

import pytest

import weft
from pages import DOCS, blocks

API = sorted((DOCS / "api").glob("*.md"))
DIRECTIVE = re.compile(r"^\.\. auto(\w+):: ([\w.]+)[^\n]*\n((?:   :[^\n]*\n)*)", re.MULTILINE)


def entries() -> Iterator[tuple[str, str]]:
    """Every name that an API page has an entry of, with the page's Python."""
    for page in API:
        code = "\n".join(block.text for block in blocks(page, "python"))
        for kind, name, options in DIRECTIVE.findall(page.read_text()):
            if kind != "module":
                yield name, code
            elif members := re.search(r":members:(.*)", options):
                left_out = re.findall(r":exclude-members:(.*)", options)
                for member in members_of(name, members[1], ":imported-members:" in options):
                    if member not in str(left_out):
                        yield f"{name}.{member}", code


def members_of(module: str, listed: str, imported: bool) -> list[str]:
    """What Sphinx shows of a module: what is listed, else what it says is public, else what it defines."""
    found = importlib.import_module(module)
    if listed.strip():
        return [name.strip() for name in listed.split(",")]
    if hasattr(found, "__all__"):
        return list(found.__all__)
    return [
        name
        for name, each in vars(found).items()
        if not name.startswith("_")
        and (inspect.isfunction(each) or inspect.isclass(each))
        and (imported or each.__module__ == module)
    ]


ENTRIES = list(entries())


def has_example(name: str, code: str) -> bool:
    """The name in code with the module that it is in: ``functions.relu``, ``weft.Plan``."""
    if ">>> " in (inspect.getdoc(pkgutil.resolve_name(name)) or ""):
        return True
    *_, room, last = name.split(".")
    return re.search(rf"\b{room}\.{last}\b", code) is not None


@pytest.mark.parametrize(("name", "code"), ENTRIES, ids=[name for name, _ in ENTRIES])
def test_public_names_have_an_example(name: str, code: str) -> None:
    assert has_example(name, code), f"{name}: neither its docstring nor its API page shows it in code"


def test_all_public_names_are_looked_at() -> None:
    """Those of the package itself; modules by their members."""
    known = {name for name, _ in ENTRIES}
    for name in set(weft.__all__) - {"__version__"}:
        full = f"weft.{name}"
        assert full in known or any(each.startswith(f"{full}.") for each in known), full


def test_a_name_without_an_example_is_found() -> None:
    assert not has_example("weft.Plan", "import weft\nweft.plan('ij->ji')")
