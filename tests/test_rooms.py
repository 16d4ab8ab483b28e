"""The plan of the house: which room may import which, read from the imports themselves.

Every import counts, also those inside functions and those for types only: a cycle that runs only through them still
means that two files cannot be understood one after the other.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import weft
import weft_bench
from pages import docs_module

PACKAGE = Path(weft.__file__).parent
statements = docs_module("pictures").statements

# From the ground up: a room may import only those before it. `weft/__init__` and `__main__` may import all.
ROOMS = (
    *("errors", "base", "fn", "algebra", "spec", "machine", "planner", "engine"),
    *("gpu.common", "gpu.gett", "gpu.warp_specialized", "gpu.blas", "gpu.semiring", "gpu.simt"),
    *("gpu.selection", "gpu.pointwise"),
    *("gpu.grouped", "gpu.terms"),
    *("gpu.permute", "gpu.complex", "gpu.transpose", "gpu.composite", "cpu", "library"),
    *("oracle", "testing", "tune", "selftest", "plans", "api"),
    *("autograd", "distributed", "networks", "groups", "blocks", "cascades"),
    *("reference", "functions", "cache", "compiled", "nn", "hooks", "tn", "jax"),
    "cli",
)
# Of the distribution beside it, which may import all of weft. Its own files at the top are the room "".
BENCH_ROOMS = ("version", "machine", "kernels", "cases", "", "profiling", "ladder", "micro", "cli")

# Families meet in `gpu.common` alone, but for these.
FAMILIES_MEET = {
    ("gpu.terms", "gpu.warp_specialized"),
    ("gpu.complex", "gpu.gett"),
    ("gpu.complex", "gpu.permute"),
    ("gpu.transpose", "gpu.permute"),
    ("gpu.composite", "gpu.permute"),
    ("gpu.composite", "gpu.semiring"),
    ("gpu.composite", "gpu.blas"),
}


def module_of(file: Path) -> str:
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_of(file): file for file in sorted(PACKAGE.rglob("*.py"))}


@cache
def import_statements(file: Path) -> list[ast.Import | ast.ImportFrom]:
    return [node for node in statements(ast.parse(file.read_text())) if isinstance(node, ast.Import | ast.ImportFrom)]


def imported(file: Path) -> Iterator[str]:
    """The modules of weft that a file names in any import."""
    for node in import_statements(file):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").split(".")[0] == "weft":
            for name in node.names:
                full = f"{node.module}.{name.name}"
                yield full if full in FILES else str(node.module)
        elif isinstance(node, ast.ImportFrom) and node.level:
            raise AssertionError(f"{file} imports relative to itself, which hides the room")
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.split(".")[0] == "weft")


@cache
def imports() -> dict[str, list[str]]:
    """Of each module, the others that it imports."""
    return {module: sorted(set(imported(file)) - {module}) for module, file in FILES.items()}


def room_of(module: str) -> str:
    """The room of a module: the first folder below weft, below `gpu` the second."""
    parts = module.split(".")[1:]
    return ".".join(parts[:2]) if parts[:1] == ["gpu"] else parts[0] if parts else ""


INSIDE = [module for module in FILES if room_of(module) not in ("", "__main__", "gpu")]


def test_a_file_imports_only_rooms_below_its_own() -> None:
    for module, other in ((each, other) for each in INSIDE for other in imports()[each]):
        mine, theirs = room_of(module), room_of(other)
        assert theirs in ROOMS, f"{module} imports {other}, which is in no room of the plan"
        assert ROOMS.index(theirs) <= ROOMS.index(mine), f"{module} imports {other}: {theirs} lies above {mine}"
        if theirs != mine and theirs.startswith("gpu.") and mine.startswith("gpu.") and theirs != "gpu.common":
            assert (mine, theirs) in FAMILIES_MEET, f"{module} imports {other}: families meet in gpu.common"


def test_no_file_imports_itself_by_way_of_others() -> None:
    """Tarjan's strongly connected components: each is one file."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    cycles: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in imports().get(module, ()):
            if other not in index:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], index[other])
        if low[module] == index[module]:
            at = stack.index(module)
            if len(stack) - at > 1:
                cycles.append(sorted(stack[at:]))
            del stack[at:]

    for module in FILES:
        if module not in index:
            visit(module)
    assert not cycles


def test_rooms_have_files_and_no_other_room_is_there() -> None:
    there = defaultdict(list)
    for module in INSIDE:
        there[room_of(module)].append(module)
    assert set(there) - {"data"} == set(ROOMS)


def test_weft_never_imports_its_laboratory() -> None:
    for module, file in FILES.items():
        for node in import_statements(file):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [name.name for name in node.names] if isinstance(node, ast.Import) else []
            assert not [name for name in names if name.split(".")[0] == "weft_bench"], module


def bench_room(module: str) -> str:
    """A folder with rooms of its own, or the top."""
    first = module.split(".")[1:2]
    return first[0] if first and first[0] in BENCH_ROOMS else ""


def test_rooms_of_the_laboratory_import_only_those_below() -> None:
    folder = Path(weft_bench.__file__).parent
    for file in sorted(folder.rglob("*.py")):
        parts = file.relative_to(folder.parent).with_suffix("").parts
        mine = bench_room(".".join(parts))
        for node in import_statements(file):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "weft_bench":
                for name in node.names:
                    theirs = bench_room(f"{node.module}.{name.name}")
                    assert BENCH_ROOMS.index(theirs) <= BENCH_ROOMS.index(mine), f"{file} imports {node.module}"


def test_no_package_hides_a_public_function() -> None:
    """`weft.plan` is the function, `weft.permute` too: no folder or file of that name lies beside them."""
    functions = [name for name in weft.__all__ if callable(getattr(weft, name)) and name.islower()]
    assert {"plan", "permute", "contract"} <= set(functions)
    assert not [name for name in functions if f"weft.{name}" in FILES]
