"""Random contractions by the library's families, within limits of workspace."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from library.calls import (
    COMPLEX,
    DOUBLE,
    HALF,
    SINGLE,
    Call,
    case,
    check,
    on_each,
    without_halves,  # noqa: F401  for every test here
)

LABELS = "abcdefg"
ROLES = {"batch": (1, 1, 1), "m": (1, 0, 1), "n": (0, 1, 1), "k": (1, 1, 0), "lone a": (1, 0, 0), "lone b": (0, 1, 0)}


@st.composite
def calls(draw: st.DrawFn) -> Call:
    """Any partition of up to 7 modes among roles, in any order in each tensor, some operands expanded."""
    labels = LABELS[: draw(st.integers(0, 7))]
    roles = {label: draw(st.sampled_from(sorted(ROLES))) for label in labels}
    extents = {label: draw(st.sampled_from((1, 2, 3, 4, 5))) for label in labels}
    in_a, in_b, in_d = (draw(st.permutations([x for x in labels if ROLES[roles[x]][at]])) for at in range(3))
    equation = f"{''.join(in_a)},{''.join(in_b)}->{''.join(in_d)}"
    layout = st.sampled_from(("contiguous", "padded", "strided", "offset"))
    of_operand = layout | st.just("expanded")
    dtype = draw(st.sampled_from((SINGLE, HALF, DOUBLE, COMPLEX, torch.int32)))
    given: dict[str, Any] = {"alpha": draw(st.sampled_from((1, 2))), "layout": draw(layout)}
    if draw(st.booleans()):
        given |= {"add": dtype, "beta": draw(st.sampled_from((1, -3)))}
    if draw(st.integers(0, 3)) == 0 and dtype not in (COMPLEX, torch.int32):
        given["epilogue"] = torch.relu
    return case(equation, extents, dtype, layouts=(draw(of_operand), draw(of_operand)), **given)


@on_each
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(call=calls(), limit=st.sampled_from((None, 4096, 600)))
def test_random(call: Call, limit: int | None, device: str) -> None:
    note(call.equation)
    try:
        check(call, device, limit)
    except AssertionError as error:
        if "bytes of workspace, the limit is" not in str(error):
            raise
