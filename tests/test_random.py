"""Random contractions: any partition of up to 8 modes, awkward extents and layouts, compared exactly."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, note, settings
from hypothesis import strategies as st

from support import Backend, run_poisoned
from weft import reference
from weft.testing import LAYOUTS
from weft_bench import cases
from weft_bench.cases import Case

# Around the tiles of 16 and 32 that every backend has, one, and small ones. An empty mode is drawn apart and seldom:
# beside it nothing else matters.
EXTENTS = (1, 2, 3, 5, 15, 16, 17, 31, 32, 33)
ROLES = ("batch", "m", "n", "k", "lone a", "lone b")
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class Limits:
    """How large a random case may be."""

    work: int
    modes: int


@st.composite
def contractions(draw: st.DrawFn, limits: Limits) -> Case:
    """A case: modes with roles, an order in each tensor, diagonals, broadcasts, layouts, scalars and C."""
    labels = "abcdefgh"[: draw(st.integers(0, limits.modes))]
    roles = {label: draw(st.sampled_from(ROLES)) for label in labels}
    extents: dict[str, int] = {}
    left = limits.work
    for at, label in enumerate(labels):
        # What is left is kept for the labels to come, two for each; so large extents stand anywhere.
        most = max(left >> (len(labels) - at - 1), 2)
        extents[label] = draw(st.sampled_from([extent for extent in EXTENTS if extent <= most]))
        left //= extents[label]
    empty = draw(st.sampled_from([None] * 24 + list(labels)))
    if empty is not None:
        extents[empty] = 0
    in_a = [label for label in labels if roles[label] in ("batch", "m", "k", "lone a")]
    in_b = [label for label in labels if roles[label] in ("batch", "n", "k", "lone b")]
    in_d = [label for label in labels if roles[label] in ("batch", "m", "n")]
    shapes, terms = [], []
    for term in (in_a, in_b):
        # A diagonal, where its tensor stays small; the whole operand is stored, not only what is read.
        doubled = [label for label in term if extents[label] <= 5 and draw(st.integers(0, 7)) == 0]
        order = draw(st.permutations(term + doubled[:1]))
        shared = [label for label in order if roles[label] in ("batch", "k") and order.count(label) == 1]
        ones = {label for label in shared if draw(st.integers(0, 7)) == 0}
        terms.append("".join(order))
        shapes.append(tuple(1 if label in ones else extents[label] for label in order))
    output = "".join(draw(st.permutations(in_d)))
    dtype = draw(st.sampled_from(DTYPES))
    result = draw(st.sampled_from([dtype, torch.float32, torch.float64]))
    layouts = [draw(st.sampled_from(LAYOUTS)) for _ in range(3)]
    layouts.append(draw(st.sampled_from(LAYOUTS[:5])))
    rank, added = len(output), draw(st.booleans())
    return Case(
        "random",
        f"{terms[0]},{terms[1]}->{output}",
        (shapes[0], shapes[1]),
        dtypes=(dtype, dtype, result),
        alpha=draw(st.sampled_from([1.0, 0.0, -2.0, 0.5])),
        beta=draw(st.sampled_from([0.0, 1.0, -0.5])) if added else 1.0,
        add=added,
        c_ones=tuple(at for at in range(rank) if draw(st.integers(0, 5)) == 0),
        layouts=(layouts[0], layouts[1], layouts[2], layouts[3]),
    )


def check_exactly(case: Case, backend: Backend) -> None:
    note(f"{case}")
    operands = cases.operands(case, device=backend.device, integers=True)
    result = run_poisoned(case, backend, operands)
    expected = reference.contract(case.equation, operands.a, operands.b, c=operands.c, **case.options())
    assert torch.equal(result, expected)


CPU, INTERPRETER, CUDA = Backend("cpu", "cpu"), Backend("triton", "cpu"), Backend("triton", "cuda")


@given(contractions(Limits(work=1 << 16, modes=8)))
@settings(max_examples=2 * settings().max_examples)
def test_on_the_cpu(case: Case) -> None:
    check_exactly(case, CPU)


@pytest.mark.slow
@given(contractions(Limits(work=1 << 16, modes=8)))
@settings(max_examples=10 * settings().max_examples)
def test_many_on_the_cpu(case: Case) -> None:
    check_exactly(case, CPU)


@given(contractions(Limits(work=1 << 12, modes=8)))
def test_in_the_interpreter(case: Case) -> None:
    check_exactly(case, INTERPRETER)


@pytest.mark.gpu
@given(contractions(Limits(work=1 << 20, modes=8)))
@settings(max_examples=5 * settings().max_examples)
def test_on_a_gpu(case: Case) -> None:
    check_exactly(case, CUDA)
