"""`weft.spec.permutation`: as few modes as describe the moves, and what they add up to."""

from __future__ import annotations

import pytest
import torch

from weft.fn import trace
from weft.spec import Layout, parse
from weft.spec.notation import expand
from weft.spec.permutation import Permutation, canonical_modes, permutation_extents, scaling_type


def described(equation: str, x: torch.Tensor, d: torch.Tensor | None = None, **fields: object) -> Permutation:
    """The permutation of `x` into `d`, contiguous by default."""
    notation = expand(parse(equation, new_labels=True), [x.dim()])
    extents = permutation_extents(notation, x.shape, {}, None if d is None else d.shape)
    source = Layout.of(x)
    target = Layout.contiguous([extents[label] for label in notation.output], x.dtype) if d is None else Layout.of(d)
    modes = canonical_modes(notation, source, None, target, extents)
    return Permutation(modes, source, None, target, x.dtype, **fields)  # type: ignore[arg-type]


def modes(permutation: Permutation) -> list[tuple[str, int, int, int]]:
    """(labels, extent, stride in X, stride in D)"""
    return [(mode.name, mode.extent, mode.strides.a, mode.strides.d) for mode in permutation.modes]


class TestModes:
    def test_a_copy_is_one_mode(self) -> None:
        assert modes(described("abcd->abcd", torch.empty(2, 3, 4, 5))) == [("abcd", 120, 1, 1)]

    def test_a_transposition_of_groups_is_two(self) -> None:
        assert modes(described("abcd->cdab", torch.empty(2, 3, 4, 5))) == [("cd", 20, 1, 6), ("ab", 6, 20, 1)]

    def test_gaps_keep_modes_apart(self) -> None:
        x = torch.empty(2, 3, 8)[:, :, :5]
        assert modes(described("abc->abc", x)) == [("ab", 6, 8, 5), ("c", 5, 1, 1)]
        d = torch.empty(2, 5, 5)[:, :3]
        assert modes(described("abc->abc", torch.empty(2, 3, 5), d)) == [("a", 2, 15, 25), ("bc", 15, 1, 1)]

    def test_unit_modes_go(self) -> None:
        assert modes(described("abc->cab", torch.empty(1, 7, 1))) == [("b", 7, 1, 1)]
        assert modes(described("->", torch.empty(()))) == []

    def test_diagonals_are_one_mode(self) -> None:
        assert modes(described("aba->ba", torch.empty(4, 5, 4))) == [("b", 5, 4, 4), ("a", 4, 21, 1)]

    def test_new_modes_have_no_stride_in_the_source(self) -> None:
        d = torch.empty(5, 2, 6)
        assert modes(described("ab->bca", torch.empty(6, 5), d)) == [("b", 5, 1, 12), ("c", 2, 0, 6), ("a", 6, 5, 1)]

    def test_neighbours_that_broadcast_are_one(self) -> None:
        assert modes(described("a->bca", torch.empty(6), torch.empty(5, 2, 6))) == [("bc", 10, 0, 6), ("a", 6, 1, 1)]

    def test_outermost_in_the_result_first(self) -> None:
        found = described("abcd->dbca", torch.empty(3, 4, 5, 6))
        assert [mode.name for mode in found.modes] == ["d", "bc", "a"]


@pytest.mark.parametrize(
    ("equation", "shape", "kind"),
    [
        ("abc->abc", (2, 3, 4), "copy"),
        ("abc->axbc", (2, 3, 4), "copy"),
        ("aab->ab", (3, 3, 4), "copy"),
        ("->x", (), "copy"),
        ("ab->ba", (2, 3), "transpose"),
        ("abc->cab", (2, 3, 4), "transpose"),
        ("abc->acb", (2, 3, 4), "transpose"),
        ("abc->bca", (1, 3, 4), "copy"),
        ("abc->bac", (2, 3, 4), "general"),
        ("abc->cba", (2, 3, 4), "general"),
        ("abc->cba", (2, 1, 4), "transpose"),
    ],
)
def test_kind(equation: str, shape: tuple[int, ...], kind: str) -> None:
    extents = dict(zip(equation.partition("->")[0], shape, strict=True)) | {"x": 7}
    d = torch.empty([extents[label] for label in equation.partition("->")[2]])
    assert described(equation, torch.empty(shape), d).kind == kind


def test_what_is_moved_and_what_is_computed() -> None:
    x = torch.empty(3, 4)
    relu = trace(torch.relu, (torch.float32,), hook="fn")
    assert described("ab->ba", x).is_move
    assert not described("ab->ba", x, fn=relu).is_move
    assert not described("ab->ba", x, scaled=True).is_move
    assert not described("ab->ba", x.to(torch.complex64), conjugate=True).is_move
    assert not described("ab->ba", x, torch.empty(4, 3, dtype=torch.float64)).is_move


def test_equal_requests_are_equal() -> None:
    """The text is for messages alone; layouts and functions tell permutations apart."""
    x = torch.empty(3, 4)
    relu, tanh = (trace(fn, (torch.float32,), hook="fn") for fn in (torch.relu, torch.tanh))
    assert described("ab->ba", x, text="one") == described("ab->ba", x, text="two")
    assert described("ab->ba", x) != described("ab->ba", torch.empty(4, 3).T)
    assert described("ab->ba", x, fn=relu) != described("ab->ba", x, fn=tanh)
    assert hash(described("ab->ba", x, fn=relu)) == hash(described("ab->ba", x, fn=relu))


@pytest.mark.parametrize(
    ("value", "d", "scale"),
    [
        (torch.float16, torch.float16, torch.float32),
        (torch.float32, torch.float16, torch.float32),
        (torch.float32, torch.float64, torch.float64),
        (torch.float64, torch.float32, torch.float64),
        (torch.int32, torch.int32, torch.int64),
        (torch.uint16, torch.int8, torch.int64),
        (torch.int64, torch.float16, torch.float32),
        (torch.float32, torch.complex64, torch.complex64),
        (torch.complex64, torch.complex128, torch.complex128),
        (torch.float8_e4m3fn, torch.float32, torch.float32),
    ],
)
def test_scaling_type(value: torch.dtype, d: torch.dtype, scale: torch.dtype) -> None:
    assert scaling_type(value, d) == scale
