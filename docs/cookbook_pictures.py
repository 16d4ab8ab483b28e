"""The pictures of docs/cookbook, drawn by code: `python docs/cookbook_pictures.py` draws them anew.

Each is a small SVG. Strokes and fills are of middling lightness, so that they can be seen on light and on dark pages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "cookbook" / "pictures"
LINE, BLUE, RED, GREEN, PALE = "#7a8694", "#3d7ebf", "#c7563f", "#4b9a5a", "#b9c4cf"

Shapes = Iterator[str]


def square(x: float, y: float, side: float, fill: str = "none", stroke: str = LINE) -> str:
    return box(x, y, side, side, fill, stroke)


def box(x: float, y: float, width: float, height: float, fill: str = "none", stroke: str = LINE) -> str:
    place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
    return f'<rect {place} fill="{fill}" stroke="{stroke}"/>'


def line(x: float, y: float, u: float, v: float, stroke: str = LINE, width: float = 1.5) -> str:
    return f'<line x1="{x:g}" y1="{y:g}" x2="{u:g}" y2="{v:g}" stroke="{stroke}" stroke-width="{width:g}"/>'


def dot(x: float, y: float, radius: float, fill: str = BLUE) -> str:
    return f'<circle cx="{x:g}" cy="{y:g}" r="{radius:g}" fill="{fill}"/>'


def word(x: float, y: float, text: str, anchor: str = "middle") -> str:
    style = 'font-family="sans-serif" font-size="12"'
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{LINE}" {style}>{text}</text>'


def windows() -> Shapes:
    """An image of cells with two windows of 3 x 3 that overlap, and where their results go."""
    for row in range(6):
        for column in range(8):
            yield square(10 + 22 * column, 10 + 22 * row, 22, stroke=PALE)
    yield box(10 + 22, 10 + 22, 66, 66, stroke=BLUE)
    yield box(10 + 44, 10 + 22, 66, 66, stroke=RED)
    for row in range(4):
        for column in range(6):
            fill = {(1, 1): BLUE, (1, 2): RED}.get((row, column), "none")
            yield square(260 + 22 * column, 32 + 22 * row, 22, fill, PALE)
    yield line(192, 76, 250, 76)
    yield word(98, 160, "x, read through two windows")
    yield word(326, 160, "relu(sum + bias)")


def band() -> Shapes:
    """Scores of a sliding window: the band within the square, and the same as rows of windows."""
    for row in range(9):
        for column in range(9):
            seen = 0 <= row - column < 4
            yield square(10 + 16 * column, 10 + 16 * row, 16, BLUE if seen else "none", PALE)
        for place in range(4):
            yield square(230 + 16 * place, 10 + 16 * row, 16, BLUE if row + place >= 3 else "none", PALE)
    yield word(82, 172, "i, j: n x n, masked")
    yield word(262, 172, "i, u: n x w")


def tiles() -> Shapes:
    """A matrix and its transpose; one tile of each, with the direction in which its rows run."""
    for left, columns, rows, at in ((10, 8, 5, (4, 1)), (250, 5, 8, (1, 4))):
        yield box(left, 10, 22 * columns, 22 * rows, stroke=PALE)
        x, y = left + 22 * at[0], 10 + 22 * at[1]
        yield box(x, y, 44, 44, stroke=BLUE)
        for row in range(4):
            yield line(x + 4, y + 6 + 11 * row, x + 40, y + 6 + 11 * row, RED)
    yield line(192, 65, 242, 65)
    yield word(98, 138, "read by rows")
    yield word(305, 204, "written by rows")


def trellis() -> Shapes:
    """States over time, all moves between neighbouring times, one path."""
    path = (2, 1, 1, 0, 2)
    for time in range(4):
        for state in range(3):
            for other in range(3):
                yield line(30 + 80 * time, 25 + 45 * state, 110 + 80 * time, 25 + 45 * other, PALE, 1)
    for time in range(4):
        yield line(30 + 80 * time, 25 + 45 * path[time], 110 + 80 * time, 25 + 45 * path[time + 1], RED, 3)
    for time in range(5):
        for state in range(3):
            yield dot(30 + 80 * time, 25 + 45 * state, 8, RED if path[time] == state else BLUE)
        yield word(30 + 80 * time, 150, f"t = {time}")


def circuit() -> Shapes:
    """Wires of qubits and a brick wall of gates on neighbours."""
    for qubit in range(6):
        yield line(20, 20 + 26 * qubit, 340, 20 + 26 * qubit)
        yield word(12, 24 + 26 * qubit, "0")
        yield word(350, 24 + 26 * qubit, "b")
    for layer in range(5):
        for first in range(layer % 2, 5, 2):
            yield box(45 + 58 * layer, 13 + 26 * first, 30, 40, BLUE)


def peps() -> Shapes:
    """Two layers of a lattice: bonds within each, and a site's own mode between them."""
    for layer, (shift, fill) in enumerate(((0, BLUE), (22, GREEN))):
        for row in range(3):
            for column in range(3):
                x, y = 30 + 75 * column + shift, 30 + 50 * row + shift
                if column < 2:
                    yield line(x, y, x + 75, y)
                if row < 2:
                    yield line(x, y, x, y + 50)
                if layer == 0:
                    yield line(x, y, x + 22, y + 22, RED, 1.5)
        for row in range(3):
            for column in range(3):
                yield dot(30 + 75 * column + shift, 30 + 50 * row + shift, 7, fill)


def experts() -> Shapes:
    """Rows of tokens by expert, each group with a matrix of its own."""
    y = 14.0
    for name, rows, fill in (("expert 0", 3, BLUE), ("expert 1", 1, RED), ("expert 2", 5, GREEN)):
        for row in range(rows):
            yield box(80, y + 11 * row, 90, 11, fill, "#ffffff")
        yield word(40, y + 11 * rows / 2 + 4, name)
        yield word(185, y + 11 * rows / 2 + 4, "x")
        middle = y + 11 * rows / 2
        yield box(200, middle - 16, 70, 32, fill, "#ffffff")
        y += max(11 * rows, 32) + 12


DRAWN: dict[str, tuple[Callable[[], Shapes], int, int]] = {
    "windows": (windows, 410, 172), "band": (band, 310, 184), "tiles": (tiles, 380, 214),
    "trellis": (trellis, 380, 160), "circuit": (circuit, 362, 172),
    "peps": (peps, 240, 170), "experts": (experts, 285, 166),
}  # fmt: skip


def drawn(name: str) -> str:
    """The text of one picture."""
    shapes, width, height = DRAWN[name]
    frame = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return f"<svg {frame}>\n" + "\n".join(shapes()) + "\n</svg>\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for each in DRAWN:
        (FOLDER / f"{each}.svg").write_text(drawn(each))
