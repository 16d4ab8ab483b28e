"""Sums of operators, against the operator itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import weft
from weft.testing import random_operand


def operator(extents: tuple[int, int], seed: int) -> torch.Tensor:
    return random_operand(extents, torch.float64, seed, integers=True)


def terms(count: int, sides: tuple[tuple[int, int], ...], seed: int = 0) -> list[Any]:
    """Terms of all patterns, the identity where it may stand."""
    found = []
    for at in range(count):
        there = [(at >> side) & 1 == 0 or extents[0] != extents[1] for side, extents in enumerate(sides)]
        found.append(tuple(
            operator(extents, seed + 3 * at + side) if there[side] else None for side, extents in enumerate(sides)
        ))  # fmt: skip
    return found


def made(given: list[Any], shape: tuple[int, ...]) -> torch.Tensor:
    """The operator, with all its elements."""
    total: Any = 0
    for term in given:
        whole = torch.ones(1, 1, dtype=torch.float64)
        for one, extent in zip(term, shape, strict=True):
            whole = torch.kron(whole, torch.eye(extent, dtype=torch.float64) if one is None else one)
        total = total + whole
    return total


@pytest.mark.parametrize("sides", [((4, 4), (2, 2), (5, 5)), ((3, 4), (2, 2), (6, 5)), ((1, 1), (1, 1), (1, 1))])
@pytest.mark.parametrize("limit", [None, 0])
def test_values(sides: Any, limit: int | None) -> None:
    given = terms(17, sides)
    shape = tuple(extents[1] for extents in sides)
    state = operator(shape, 99)  # type: ignore[arg-type]
    found = weft.operator_sum(given, state, workspace_limit=limit)
    assert torch.equal(found.reshape(-1), made(given, shape) @ state.reshape(-1))


def test_kept_for_many_states_and_written_in_place() -> None:
    given = terms(8, ((3, 3), (2, 2), (3, 3)))
    kept = weft.OperatorSum(given)
    for seed in (1, 2):
        state = operator((3, 2, 3), seed)  # type: ignore[arg-type]
        out = torch.full((3, 3, 2), torch.nan, dtype=torch.float64).transpose(1, 2)
        assert kept(state, out=out) is out
        assert torch.equal(out.reshape(-1), made(given, (3, 2, 3)) @ state.reshape(-1))
    assert isinstance(kept(np.ones((3, 2, 3))), np.ndarray)


def test_no_terms_make_zero() -> None:
    assert torch.equal(weft.operator_sum([], torch.ones(2, 2, 2)), torch.zeros(2, 2, 2))


E = torch.eye(2, dtype=torch.float64)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ([(E, E)], weft.ArgumentError, "term 0 is a triple"),
        ([(E, E, E), (E, E.float(), E)], weft.DTypeError, "O of term 1 is float32"),
        ([(E, E, E), (E, E, torch.eye(3).double())], weft.ShapeError, "R of term 1 is \\(3, 3\\), that of term 0"),
        ([(E, E, E[0])], weft.ShapeError, "R of term 0 has 1 dimension"),
        ([(E[:1], None, None), (None, E, None)], weft.ShapeError, "L of term 1 is the identity"),
        ([(torch.eye(3).double(), None, None)], weft.ShapeError, "the terms is 3 x 3, the state's mode has extent 2"),
        ([(E.to("meta"), None, None)], weft.UnsupportedError, "the terms are on meta"),
    ],
)
def test_what_is_wrong_is_named(given: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        weft.operator_sum(given, torch.ones(2, 2, 2, dtype=torch.float64))


def test_it_says_what_it_is() -> None:
    assert repr(weft.OperatorSum([(E, None, E), (None, E, None)])) == "OperatorSum(2 terms, float64)"
    assert repr(weft.OperatorSum([])) == "OperatorSum(0 terms, identities)"


def test_bad_states() -> None:
    state = torch.ones(2, 2, 2, dtype=torch.float64)
    with pytest.raises(weft.ShapeError, match="three modes"):
        weft.operator_sum([(E, E, E)], state[0])
    with pytest.raises(weft.ArgumentError, match=r"in operator_sum\('terms'\)$"):
        weft.OperatorSum([(E, E)])
    with pytest.raises(weft.ShapeError, match="out overlaps the state"):
        weft.operator_sum([(E, E, E)], state, out=state)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("leaf", [False, True])
def test_sums_of_halves_are_rounded_once(dtype: torch.dtype, leaf: bool) -> None:
    """However little room there is for terms."""
    one, state = torch.eye(2, dtype=dtype), torch.ones(2, 3, 2, dtype=dtype, requires_grad=leaf)
    terms = [(one, None, None)] * 2048 + [(None, None, one)] * 511 + [(None, None, None)]
    assert (weft.operator_sum(terms, state, workspace_limit=0) == 2560).all()


@pytest.mark.parametrize(
    ("dtype", "message"),
    [(torch.bool, "bool has no sum"), (torch.uint16, "uint16 are not supported"),
     (torch.float8_e5m2, "sums of operators do not fit float8_e5m2")],
)  # fmt: skip
@pytest.mark.parametrize("terms", ["identities", "one operator", "two"])
def test_types_that_have_no_sums(dtype: torch.dtype, message: str, terms: str) -> None:
    one = torch.ones(2, 2).to(dtype)
    given = {"identities": (None, None, None), "one operator": (one, None, None), "two": (one, one, None)}[terms]
    with pytest.raises(weft.WeftError, match=message):
        weft.operator_sum([given] * 2, torch.ones(2, 2, 1).to(dtype))
