"""The pictures of docs/architecture.md, drawn from the code: `python docs/pictures.py` draws them anew.

The rooms come from the imports of every file, those inside functions and those for types alone counted too. The path of
a call comes from docs/call_path.toml. Nothing of weft is imported here.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parent / "src" / "weft"
PAGE = HERE / "architecture.md"
WIDTH = 96  # characters of a picture

Imports = dict[str, set[str]]


def room_of(module: str) -> str:
    """The room of a dotted module name: a folder of the package, a family's folder, or a file of the package itself."""
    parts = module.split(".")[1:]
    if not parts:
        return "weft"
    if parts[0] == "__main__":
        return "cli"
    if parts[0] == "gpu":
        return "/".join(parts[:2])
    return parts[0]


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = ("weft", *path.relative_to(PACKAGE).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(path: Path, known: dict[str, Path]) -> set[str]:
    """The modules of weft that one file imports, anywhere in it."""
    found: set[str] = set()
    for node in statements(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in known else node.module)
    return {name for name in found if name.split(".")[0] == "weft"}


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """The statements within a node, at any depth. Expressions, most of a tree, import nothing."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        below = getattr(node, field, None)
        for each in below if isinstance(below, list) else ():
            yield each
            yield from statements(each)


@cache
def room_imports() -> Imports:
    """For each room the other rooms that its files import."""
    known = modules()
    rooms: Imports = defaultdict(set)
    for name, path in known.items():
        here = room_of(name)
        if here != "gpu":  # the folder of families holds no code of its own
            rooms[here] |= {room_of(other) for other in imported(path, known)} - {here, "gpu"}
    return dict(rooms)


def layers(imports: Imports) -> list[list[str]]:
    """Rooms by their height over the ground, lowest first; `graphlib.CycleError` where there is no such order."""
    height: dict[str, int] = {}
    for room in TopologicalSorter(imports).static_order():
        height[room] = max((height[other] + 1 for other in imports[room]), default=0)
    return [sorted(room for room in height if height[room] == at) for at in range(max(height.values()) + 1)]


def draw_rooms(imports: Imports) -> str:
    """The house: a row of boxes for each layer, what is imported always further down."""
    rows = [_cells(layer) for layer in reversed(layers(imports))]
    lines = [_rule("", rows[0][0])]
    for at, row in enumerate(rows):
        below = rows[at + 1][0] if at + 1 < len(rows) else ""
        lines += [*row, _rule(row[-1], below)]
    return "\n".join(lines)


def _cells(rooms: list[str]) -> list[str]:
    """The lines of one layer. Boxes are as wide as their names, with the rest of the width shared out."""
    inner = WIDTH - len(rooms) - 1
    fits = sum(len(room) + 2 for room in rooms) <= inner
    names = [[room] if fits else room.split("/") for room in rooms]
    needs = [max(map(len, name)) + 2 for name in names]
    rest, over = divmod(inner - sum(needs), len(rooms))
    widths = [need + rest + (at < over) for at, need in enumerate(needs)]
    lines = []
    for at in range(max(map(len, names))):
        texts = [name[at] if at < len(name) else "" for name in names]
        lines.append("│" + "│".join(text.center(width) for text, width in zip(texts, widths, strict=True)) + "│")
    return lines


def _rule(above: str, below: str) -> str:
    """The line between two layers: corners where boxes of either begin."""
    signs = {(False, False): "─", (True, False): "┴", (False, True): "┬", (True, True): "┼"}
    at = [(above[i : i + 1] == "│", below[i : i + 1] == "│") for i in range(WIDTH)]
    line = "".join(signs[pair] for pair in at)
    left, right = {(False, True): "┌┐", (True, False): "└┘", (True, True): "├┤"}[at[0]]
    return left + line[1:-1] + right


def path_of(kind: str) -> list[dict[str, str]]:
    """The steps of a call, "known" or "first", as docs/call_path.toml has them."""
    return tomllib.loads((HERE / "call_path.toml").read_text())[kind]


def draw_path(kind: str) -> str:
    """The steps under one another: function, file, and what it does."""
    known = modules()
    rows = [(*_place(step["name"], known), step) for step in path_of(kind)]
    wide = max(len(name) for _, name, _ in rows)
    lines: list[str] = []
    for at, (file, name, step) in enumerate(rows, 1):
        note = f"   ({step['on']} backend)" if "on" in step else ""
        lines += ["   │"] * (at > 1)
        lines += [f"{at:2d} ├─ {name:<{wide}}   {file}{note}", f"   │  {step['does']}"]
    return "\n".join(lines)


def _place(name: str, known: dict[str, Path]) -> tuple[str, str]:
    """The file of a dotted name, seen from the package, and the name within it."""
    module = max((known_name for known_name in known if name.startswith(known_name + ".")), key=len)
    return str(known[module].relative_to(PACKAGE)), name.removeprefix(module + ".")


def pictures() -> dict[str, str]:
    imports = room_imports()
    return {
        "rooms": draw_rooms(imports),
        "known call": draw_path("known"),
        "first call": draw_path("first"),
    }


def redrawn(text: str) -> str:
    """A page with the picture after each `<!-- picture: NAME -->` drawn anew."""
    for name, picture in pictures().items():
        pattern = re.compile(rf"(<!-- picture: {name} -->\n```text\n).*?(```\n)", re.DOTALL)
        text, count = pattern.subn(lambda found, picture=picture: found[1] + picture + "\n" + found[2], text)
        if count != 1:
            raise SystemExit(f"docs/pictures.py: {count} places for the picture {name!r} in {PAGE.name}")
    return text


if __name__ == "__main__":
    PAGE.write_text(redrawn(PAGE.read_text()))
