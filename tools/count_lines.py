"""Count the package: files, raw lines and lines of code (without blanks, comments and docstrings), a row for each room.

python -m count_lines [folder ...]
python -m count_lines --check     fail where a room of weft has more code than tools/ceilings.json allows
python -m count_lines --set       allow what stands, and 3 % more
"""

from __future__ import annotations

import ast
import io
import json
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
CEILINGS = Path(__file__).with_name("ceilings.json")
ROOM_TO_GROW = 1.03
FOLDERS = ("src/weft", "packages/weft-bench/src/weft_bench")
_SILENT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(text: str) -> int:
    """Lines that hold a token of code."""
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _SILENT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        has_text = isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        if has_text and ast.get_docstring(node, clean=False) is not None:
            lines -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(lines)


def class_names(folder: Path) -> Counter[str]:
    """How often each class name is used."""
    found: Counter[str] = Counter()
    for file in folder.rglob("*.py"):
        found.update(node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ClassDef))
    return found


def rooms_of(folder: Path) -> dict[str, list[int]]:
    """Files, raw lines and lines of code of each room."""
    rooms: dict[str, list[int]] = {}
    for file in sorted(folder.rglob("*.py")):
        parts = file.relative_to(folder).parts
        text = file.read_text()
        row = rooms.setdefault(parts[0] if len(parts) > 1 else ".", [0, 0, 0])
        for at, more in enumerate((1, text.count("\n"), code_lines(text))):
            row[at] += more
    return rooms


def over_ceilings() -> list[str]:
    """A sentence for each room of weft that is larger than its ceiling, or has none."""
    ceilings, found = json.loads(CEILINGS.read_text()), []
    for room, (_, _, code) in rooms_of(ROOT / FOLDERS[0]).items():
        if room not in ceilings:
            found.append(f"{room} has no ceiling in {CEILINGS.name}: a new room takes its lines from another")
        elif code > ceilings[room]:
            found.append(f"{room} has {code} lines of code, its ceiling is {ceilings[room]}: remove what these replace")
    return found


def set_ceilings() -> None:
    """Write what stands, and some per cent more, as the ceilings."""
    rooms = rooms_of(ROOT / FOLDERS[0])
    ceilings = {room: int(ROOM_TO_GROW * code) for room, (_, _, code) in rooms.items()}
    CEILINGS.write_text(json.dumps(ceilings, indent=1) + "\n")


def main(folders: list[str]) -> None:
    if folders == ["--set"]:
        set_ceilings()
    elif folders == ["--check"]:
        if over := over_ceilings():
            raise SystemExit("\n".join(over))
    else:
        show(folders or list(FOLDERS))


def show(folders: list[str]) -> None:
    for name in folders:
        folder = ROOT / name
        rooms = rooms_of(folder)
        print(f"{name}\n{'room':<20}{'files':>7}{'lines':>9}{'code':>9}")
        for room, (files, raw, code) in rooms.items():
            print(f"{room:<20}{files:>7}{raw:>9}{code:>9}")
        files, raw, code = (sum(column) for column in zip(*rooms.values(), strict=True))
        print(f"{'in all':<20}{files:>7}{raw:>9}{code:>9}   {code / files:.0f} lines of code a file")
        twice = sorted(name for name, count in class_names(folder).items() if count > 1)
        print(f"class names used twice or more: {len(twice)}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
