"""A rung: a short kernel in a file of its own, with its lesson, its prediction, and the figures of others.

The idea and the picture stand at the head of the kernel's file, and are read from there: they cannot drift from it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from weft.errors import UnsupportedError

if TYPE_CHECKING:
    import torch

    from weft_bench.ladder.problems import LadderProblem


@dataclass(frozen=True, slots=True)
class Prediction:
    """The time that a model of the machine gives a rung, as a multiple of the roofline floor, and why."""

    times_floor: float
    because: str


@dataclass(frozen=True, slots=True)
class Published:
    """A source's figure for the same step."""

    figure: str  # as it was printed, with its machine
    source: str
    gain: float | None = None  # times as fast as the rung before, in the source
    share: float | None = None  # of the best that the source names: a peak, or the fastest library
    of: str = ""  # what the share is of


class Head(NamedTuple):
    """The parts of the docstring of a kernel's file."""

    title: str
    idea: str
    picture: str


@dataclass(frozen=True)
class Rung:
    """One step of a ladder. `run` takes the tensors of its problem, writes the last one, and returns it."""

    name: str
    module: str  # below `weft_bench.ladder`
    predicted: Prediction
    published: tuple[Published, ...] = ()
    function: str = "run"
    kind: str = ""  # which of the flight's problems, where it has several: see `weft_bench.ladder.problems`
    over: str = ""  # the rung of its flight that it is held against; the one before where empty
    tool: str = "numba-cuda"  # what it is written in; "Gluon" kernels and "weft family" ones run on a GPU alone
    double: bool = False  # the kernel's text with float64 in the place of float32

    @property
    def run(self) -> Callable[..., torch.Tensor]:
        """The rung's function. Raises `UnsupportedError` where what it is written in cannot be used."""
        try:
            module = import_module(f"weft_bench.ladder.{self.module}")
            return getattr(_doubled(self) if self.double else module, self.function)
        except ImportError as error:
            raise UnsupportedError(f"{self.tool}, which it is written in, cannot be used here: {error}") from None

    @cached_property
    def text(self) -> str:
        """The whole file."""
        found = find_spec(f"weft_bench.ladder.{self.module}")
        assert found is not None
        assert found.origin is not None
        return Path(found.origin).read_text()

    @cached_property
    def head(self) -> Head:
        """Title, idea and picture."""
        return read_head(self.text)

    @cached_property
    def source(self) -> str:
        """The file without its docstring and imports of its own package: what is to be read."""
        first = ast.parse(self.text).body[0]
        return "\n".join(self.text.splitlines()[first.end_lineno or 0 :]).strip() + "\n"

    @property
    def title(self) -> str:
        return self.head.title

    @property
    def idea(self) -> str:
        return self.head.idea

    @property
    def picture(self) -> str:
        return self.head.picture


@dataclass(frozen=True)
class Flight:
    """Rungs that stand on one problem, each to be held against the one before it."""

    name: str
    says: str
    problem: Callable[[Size, str], LadderProblem]  # for a size and the `kind` of a rung
    rungs: tuple[Rung, ...]

    def before(self, rung: Rung) -> Rung | None:
        """The rung that this one is held against; None for the first."""
        if rung.over:
            return next(each for each in self.rungs if each.name == rung.over)
        at = self.rungs.index(rung)
        return self.rungs[at - 1] if at else None


@dataclass(frozen=True)
class Size:
    """How large the problems of a ladder are."""

    extent: int | None = None  # of the modes; None: as the source has them
    dtype: torch.dtype | None = None  # of what is stored, where the flight leaves a choice


@dataclass(frozen=True)
class Ladder:
    """All flights to one summit."""

    name: str
    says: str
    flights: tuple[Flight, ...]
    tiny: int  # the extent at which the simulator goes through it
    on: str = "cuda"  # the kind of device that it is timed on; a ladder of the CPU runs nowhere else

    @property
    def rungs(self) -> list[tuple[Flight, Rung]]:
        """All rungs in order."""
        return [(flight, rung) for flight in self.flights for rung in flight.rungs]

    def __iter__(self) -> Iterator[tuple[int, Flight, Rung]]:
        """Numbers, which count from 1, with flights and rungs."""
        return ((number, *each) for number, each in enumerate(self.rungs, 1))


@cache
def _doubled(rung: Rung) -> ModuleType:
    """A rung's module anew, its numbers in double precision."""
    module = ModuleType(f"weft_bench.ladder.{rung.module}_in_double")
    text = re.sub(r"\bfloat32\b", "float64", rung.text)
    exec(compile(text, f"<{module.__name__}>", "exec"), vars(module))
    return module


def read_head(text: str) -> Head:
    """Title, idea and picture of a file: the first line of its docstring, its paragraphs, and what is indented."""
    said = ast.get_docstring(ast.parse(text)) or ""
    title, _, rest = said.partition("\n")
    blocks = [block for block in rest.strip("\n").split("\n\n") if block.strip()]
    pictures = [block for block in blocks if block.startswith("    ")]
    ideas = [" ".join(block.split()) for block in blocks if not block.startswith("    ")]
    return Head(title.strip(), "\n\n".join(ideas), _dedented("\n\n".join(pictures)))


def _dedented(picture: str) -> str:
    import textwrap

    return textwrap.dedent(picture).rstrip()


def predicted_gain(before: Rung | None, rung: Rung) -> float | None:
    """How many times as fast as the rung before a rung should be; None for the first of a flight."""
    return None if before is None else before.predicted.times_floor / rung.predicted.times_floor


def published_gain(rung: Rung) -> float | None:
    """The gain that the first of its sources states, over the same rung."""
    return rung.published[0].gain if rung.published else None
