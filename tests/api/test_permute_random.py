"""Random permutations: any modes, extents, layouts and types; bits compared, poison around the result."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from hypothesis import given, note, settings
from hypothesis import strategies as st

from permuting import DTYPES, OUT_LAYOUTS, any_bits, permuted, ready, same_bits
from support import Backend
from weft import reference
from weft.testing import LAYOUTS

EXTENTS = (1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 64, 65)
LABELS = "abcdefgh"


@dataclass(frozen=True)
class Move:
    equation: str
    shape: tuple[int, ...]
    extents: dict[str, int]  # of the output's labels
    dtype: torch.dtype
    layouts: tuple[str, str]

    @property
    def result_shape(self) -> tuple[int, ...]:
        return tuple(self.extents[label] for label in self.equation.partition("->")[2])


@st.composite
def moves(draw: st.DrawFn, elements: int) -> Move:
    """Of up to 8 modes: some stand twice in x, some are new, some have extent 1 there."""
    labels = LABELS[: draw(st.integers(0, len(LABELS)))]
    extents: dict[str, int] = {}
    left = elements
    for at, label in enumerate(labels):
        most = max(left >> (len(labels) - at - 1), 2)
        extents[label] = draw(st.sampled_from([extent for extent in EXTENTS if extent <= most]))
        left //= extents[label]
    if labels and draw(st.integers(0, 24)) == 0:
        extents[draw(st.sampled_from(labels))] = 0
    new = {label for label in labels if draw(st.integers(0, 7)) == 0}
    own = [label for label in labels if label not in new]
    doubled = [label for label in own if extents[label] <= 4 and draw(st.integers(0, 7)) == 0]
    term = draw(st.permutations(own + doubled[:1]))
    single = {label for label in own if label not in doubled[:1] and draw(st.integers(0, 9)) == 0}
    shape = tuple(1 if label in single else extents[label] for label in term)
    output = "".join(draw(st.permutations(labels)))
    return Move(
        equation=f"{''.join(term)}->{output}",
        shape=shape,
        extents=extents,
        dtype=draw(st.sampled_from(DTYPES)),
        layouts=(draw(st.sampled_from(LAYOUTS)), draw(st.sampled_from(OUT_LAYOUTS))),
    )


def check(move: Move, backend: Backend) -> None:
    ready(backend)
    note(f"{move.equation} of {move.shape}")
    x = any_bits(move.shape, move.dtype, 1, layout=move.layouts[0], device=backend.device)
    result = permuted(x, move.equation, backend, move.result_shape, layout=move.layouts[1])
    assert math.prod(move.result_shape) == result.numel()
    assert same_bits(result, reference.permute(move.equation, x, extents=move.extents))


@given(moves(elements=20000))
@settings(max_examples=300)
def test_on_the_cpu(move: Move) -> None:
    check(move, Backend("cpu", "cpu"))


@given(moves(elements=600))
@settings(max_examples=25)
def test_in_the_interpreter(move: Move) -> None:
    check(move, Backend("triton", "cpu"))
