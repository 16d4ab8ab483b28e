"""Put faults into the source, one at a time, and tell which of them the tests find.

python -m mutate --rooms fn,cpu --count 24 --seed 1     a room of weft, or of weft-tensor-bench as `bench/NAME`
python -m mutate --rooms fn --tests tests/fn            other tests than those of the table below

A room's faults depend on its name and the seed alone. The tests run in a process forked from one that has imported
torch; sources are a copy in a temporary folder, and the first test that fails ends the run. mutmut gives each function
another source, which numba and Triton do not compile; cosmic-ray begins a process for each fault and draws no sample.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import math
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
BENCH = "packages/weft-bench/src/weft_bench"
SOURCES = ("src", "packages/weft-bench/src", "packages/weft-kernels/src", "tests")
# Tests of a room beside those in the folder of its name, quick ones first.
TESTS = {
    "spec": ("tests/test_errors.py", "tests/test_operands.py", "tests/api"),
    "blocks": ("tests/groups/test_blocks.py", "tests/groups/test_charged.py"),
    "fn": ("tests/test_functions.py", "tests/test_functions_change.py"),
    "cpu": ("tests/test_integers.py",),
    "planner": ("tests/test_plan_table.py", "tests/tune"),
    "plans": ("tests/api", "tests/test_explain.py"),
    "engine": ("tests/api", "tests/plans"),
    "api": ("tests/test_contract.py", "tests/test_operands.py"),
    "library": ("tests/test_torch_tensors.py",),
    "oracle": ("tests/test_testing.py", "tests/test_algebra.py"),
}
PATIENCE = 8.0  # times as many seconds pass as a processor that others use too is had for
# Predicted times are right within a factor, and no test holds each of their constants.
LEFT_OUT = ("*model.py", "*cost.py", "*prediction.py", "*roofline.py", "*coefficients.py", "*version.py")
# Messages, types, and how much is kept.
NOT_LOOKED_AT = {"warn", "debug", "info", "warning", "TypeVar", "Literal", "Memo", "BoundedCache", "CallCache"}
IMPORTED = ("torch", "numba", "triton.language", "hypothesis.stateful", "opt_einsum", "xdist")
SWAPPED = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"), ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"), ast.And: ("and", "or"), ast.Or: ("or", "and"), ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"), ast.Mult: ("*", "//"), ast.FloorDiv: ("//", "*"), ast.Div: ("/", "*"), ast.Mod: ("%", "//"),
}  # fmt: skip


class Fault(NamedTuple):
    """`before`, from offset `start` of a file, becomes `after`."""

    file: str
    line: int
    start: int
    before: str
    after: str


def faults_of(text: str, file: str = "") -> list[Fault]:
    """All faults that a file can have, in the order of its lines."""
    lines = text.splitlines(keepends=True)
    beginnings = [0, *accumulate(map(len, lines))]

    def offset(line: int, column: int) -> int:
        return beginnings[line - 1] + len(lines[line - 1].encode()[:column].decode())

    def span(node: ast.AST) -> tuple[int, int]:
        return offset(node.lineno, node.col_offset), offset(node.end_lineno, node.end_col_offset)

    found = [
        Fault(file, text.count("\n", 0, start) + 1, start, text[start:end], after)
        for node in _looked_at(ast.parse(text))
        for start, end, after in _edits(node, text, span)
    ]
    return sorted(found, key=lambda fault: (fault.start, fault.after))


def _looked_at(node: ast.AST) -> Iterator[ast.AST]:
    """A node and what it holds, but for annotations, decorators, messages and constants in upper case."""
    yield node
    left_out = {"annotation", "returns", "decorator_list", "bases"}
    if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "").isupper():
        left_out.add("value")
    if isinstance(node, ast.Assert):
        left_out.add("msg")
    if isinstance(node, ast.Subscript) and _whole_number(node.slice) is not None:
        left_out.add("slice")
    for name, value in ast.iter_fields(node):
        for part in value if isinstance(value, list) else [value]:
            if name in left_out or not isinstance(part, ast.AST) or isinstance(part, (ast.JoinedStr, ast.Raise)):
                continue
            called = getattr(part, "func", getattr(part, "value", None))
            if getattr(called, "attr", getattr(called, "id", None)) not in NOT_LOOKED_AT:
                yield from _looked_at(part)


def _edits(node: ast.AST, text: str, span) -> Iterator[tuple[int, int, str]]:
    """Start, end and new text of each fault of one node."""
    if isinstance(node, ast.Compare):
        for (left, right), sign in zip(pairwise((node.left, *node.comparators)), node.ops, strict=True):
            yield from _swapped(text, span(left)[1], span(right)[0], sign)
    elif isinstance(node, ast.BoolOp):
        yield from _swapped(text, span(node.values[0])[1], span(node.values[1])[0], node.op)
    elif isinstance(node, ast.BinOp):
        yield from _swapped(text, span(node.left)[1], span(node.right)[0], node.op)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield span(node)[0], span(node)[0] + len("not"), ""
    elif isinstance(node, ast.Subscript) and (index := _whole_number(node.slice)) is not None:
        yield *span(node.slice), str(-index if index > 0 else -1 - index)
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield *span(node), str(node.value + 1)
    elif isinstance(node, ast.Call) and len(arguments := sorted(map(span, (*node.args, *node.keywords)))) > 1:
        named = {span(keyword) for keyword in node.keywords if keyword.arg}
        for before, after in pairwise(arguments):
            if after in named:
                yield before[1], after[1], ""
    elif isinstance(node, ast.If) and isinstance(node.body[-1], ast.Return):
        yield *span(node.body[-1]), "pass"


def _swapped(text: str, start: int, end: int, sign: ast.AST) -> Iterator[tuple[int, int, str]]:
    """An operator between two operands, where it stands there once."""
    before, after = SWAPPED.get(type(sign), ("", ""))
    if before and text[start:end].count(before) == 1:
        at = text.index(before, start, end)
        yield at, at + len(before), after


def _whole_number(node: ast.AST) -> int | None:
    with suppress(ValueError, TypeError, SyntaxError):
        value = ast.literal_eval(node)
        return value if type(value) is int else None
    return None


def chosen(room: str, count: int, seed: int) -> list[Fault]:
    """As many of a room's faults, no line twice."""
    place = ROOT / (f"{BENCH}/{room[6:]}" if room.startswith("bench/") else f"src/weft/{room}")
    files = sorted(place.rglob("*.py")) if place.is_dir() else [place]
    kept = [file for file in files if not any(file.match(pattern) for pattern in LEFT_OUT)]
    found = [fault for file in kept for fault in faults_of(file.read_text(), str(file.relative_to(ROOT)))]
    random.Random(f"{room} {seed}").shuffle(found)
    lines: dict[tuple[str, int], Fault] = {}
    for fault in found:
        lines.setdefault((fault.file, fault.line), fault)
    return list(lines.values())[:count]


def tests_of(room: str) -> list[str]:
    own = f"packages/weft-bench/tests/{room[6:]}" if room.startswith("bench/") else f"tests/{room}"
    return [name for name in (own, *TESTS.get(room, ())) if (ROOT / name).exists()]


def _run(copy: Path, tests: list[str], output: Path, limit: float) -> None:
    """In a process of its own, which has so many seconds of a processor: pytest's exit code is that of the process."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(limit), math.ceil(limit)))
    handle = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    sys.stdout = sys.stderr = os.fdopen(handle, "w")
    os.chdir(copy)
    sources = [str(copy / folder) for folder in SOURCES]
    sys.path[:0] = sources
    os.environ["PYTHONPATH"] = os.pathsep.join(sources)
    code = importlib.import_module("pytest").main(["-q", "-x", "-p", "no:cacheprovider", "--tb=line", *tests])
    sys.stdout.flush()
    os._exit(code)


def tried(copy: Path, tests: list[str], limit: float) -> str:
    """The test that fails on the sources in `copy`; "not found", or "time" where that is not known after `limit`."""
    output = copy / "output"
    process = multiprocessing.get_context("fork").Process(target=_run, args=(copy, tests, output, limit))
    process.start()
    process.join(limit * PATIENCE)
    waits = process.is_alive()
    with suppress(ProcessLookupError):  # what it began goes too
        os.killpg(process.pid, signal.SIGKILL)
    process.join()
    if process.exitcode in (0, 5):
        return "not found"
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", output.read_text(errors="replace"), re.MULTILINE)
    if failed:
        return failed[0]
    return "time" if waits or process.exitcode == -signal.SIGKILL else "the process"


def copied(folder: Path) -> Path:
    """The repository in a folder: sources to be changed, links to all else."""
    copy = folder / "copy"
    for name in ("src", "packages"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for entry in ROOT.iterdir():
        if entry.name not in ("src", "packages", ".git", ".venv", ".pytest_cache"):
            (copy / entry.name).symlink_to(entry)
    return copy


def main(given: list[str] | None = None) -> int:
    """The exit code: how many faults no test finds."""
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("--rooms", required=True, type=lambda text: text.split(","))
    reader.add_argument("--count", type=int, default=60, help="faults of all rooms together")
    reader.add_argument("--seed", type=int, default=1)
    reader.add_argument("--limit", type=float, default=120.0, help="seconds of a processor for one fault")
    reader.add_argument("--tests", nargs="*", help="instead of those of the rooms")
    options = reader.parse_args(given)
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported
    missed = 0
    with tempfile.TemporaryDirectory(prefix="weft-mutate-") as folder:
        copy = copied(Path(folder))
        sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix or f"{folder}/bytecode"
        for name in IMPORTED:
            importlib.import_module(name)
        for room in options.rooms:
            tests = options.tests or tests_of(room)
            for fault in chosen(room, max(1, options.count // len(options.rooms)), options.seed):
                file, begun = copy / fault.file, os.times()
                text = file.read_text()
                file.write_text(text[: fault.start] + fault.after + text[fault.start + len(fault.before) :])
                answer = tried(copy, tests, options.limit)
                file.write_text(text)
                missed += answer == "not found"
                change = f"{' '.join(fault.before.split())} -> {fault.after or 'nothing'}"
                seconds = sum(os.times()[2:4]) - sum(begun[2:4])  # of processes that have ended
                print(f"{fault.file}:{fault.line} | {change} | {answer} | {seconds:.0f} s", flush=True)
    print(f"{missed} not found")
    return missed


if __name__ == "__main__":
    sys.exit(main())
