"""`weft.permute` where nothing is computed: every bit arrives, and at its place."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import weft
from permuting import DTYPES, OUT_LAYOUTS, any_bits, permuted, ready, same_bits
from support import Backend
from weft import reference
from weft.testing import LAYOUTS

# Equation, shape of x, and the result in torch's words. Extents of tiles, one before and one past them, and odd ones.
PERMUTATIONS: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = [
    ("a->a", (1000,), (0,)),
    ("ab->ab", (31, 33), (0, 1)),
    ("ab->ba", (64, 64), (1, 0)),
    ("ab->ba", (33, 65), (1, 0)),
    ("ab->ba", (1, 77), (1, 0)),
    ("ab->ba", (513, 2), (1, 0)),
    ("ab->ba", (3, 700), (1, 0)),
    ("abc->acb", (5, 17, 33), (0, 2, 1)),
    ("abc->bac", (17, 33, 5), (1, 0, 2)),
    ("abc->bac", (17, 33, 4), (1, 0, 2)),
    ("abc->bac", (9, 17, 16), (1, 0, 2)),
    ("abc->cba", (15, 16, 17), (2, 1, 0)),
    ("abc->cab", (1, 40, 41), (2, 0, 1)),
    ("abc->bca", (12, 13, 14), (1, 2, 0)),
    ("abcd->dcba", (5, 6, 7, 9), (3, 2, 1, 0)),
    ("abcd->cdab", (6, 5, 8, 9), (2, 3, 0, 1)),
    ("abcd->adbc", (3, 8, 9, 10), (0, 3, 1, 2)),
    ("abcd->badc", (5, 4, 6, 7), (1, 0, 3, 2)),
    ("abcde->cadbe", (3, 4, 5, 6, 2), (2, 0, 3, 1, 4)),
    ("abcdef->fedcba", (3, 4, 2, 5, 3, 4), (5, 4, 3, 2, 1, 0)),
    ("abcdefgh->ehafbgcd", (2, 3, 2, 2, 3, 2, 3, 2), (4, 7, 0, 5, 1, 6, 2, 3)),
]


@pytest.mark.parametrize(("equation", "shape", "dims"), PERMUTATIONS, ids=lambda value: str(value).replace(" ", ""))
def test_permutation(equation: str, shape: tuple[int, ...], dims: tuple[int, ...], backend: Backend) -> None:
    ready(backend)
    x = any_bits(shape, torch.float32, 1, device=backend.device)
    assert same_bits(permuted(x, equation, backend, tuple(shape[at] for at in dims)), x.permute(dims))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("equation", "dims"), [("abc->cba", (2, 1, 0)), ("abc->bac", (1, 0, 2))])
@pytest.mark.parametrize("last", [4, 7])
def test_types(equation: str, dims: tuple[int, ...], last: int, dtype: torch.dtype, backend: Backend) -> None:
    """1 to 16 bytes; runs that can and cannot be moved as wider words."""
    ready(backend)
    x = any_bits((9, 10, last), dtype, 2, device=backend.device)
    assert same_bits(permuted(x, equation, backend, tuple(x.shape[at] for at in dims)), x.permute(dims))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.complex128], ids=str)
def test_source_layouts(layout: str, dtype: torch.dtype, backend: Backend) -> None:
    ready(backend)
    x = any_bits((6, 7, 8), dtype, 3, layout=layout, device=backend.device)
    assert same_bits(permuted(x, "abc->bca", backend, (7, 8, 6)), x.permute(1, 2, 0))


@pytest.mark.parametrize("layout", OUT_LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32], ids=str)
def test_result_layouts(layout: str, dtype: torch.dtype, backend: Backend) -> None:
    ready(backend)
    x = any_bits((6, 7, 8), dtype, 4, device=backend.device)
    assert same_bits(permuted(x, "abc->cab", backend, (8, 6, 7), layout=layout), x.permute(2, 0, 1))


def test_twenty_five_modes(quick_backend: Backend) -> None:
    """The reversal of 2^25, with labels that are no letters; on the CPU 2^20 of it is enough."""
    ready(quick_backend)
    rank = 25 if quick_backend.device == "cuda" else 20
    shape = (*(2,) * rank, *(1,) * (25 - rank))
    x = torch.arange(1 << rank, dtype=torch.int32, device=quick_backend.device).reshape(shape)
    labels = [("mode", at) for at in range(25)]
    result = weft.permute(x, (labels, labels[::-1]), backend=quick_backend.name)
    assert torch.equal(result, x.permute(tuple(reversed(range(25)))))


class TestModes:
    """Diagonals, new modes, extents of one and none."""

    @pytest.mark.parametrize(
        ("equation", "shape"),
        [("aa->a", (9, 9)), ("aba->ba", (5, 7, 5)), ("abab->ba", (4, 3, 4, 3)), ("aaa->a", (4, 4, 4))],
    )
    def test_diagonal(self, equation: str, shape: tuple[int, ...], backend: Backend) -> None:
        ready(backend)
        x = any_bits(shape, torch.float32, 5, device=backend.device)
        expected = reference.permute(equation, x)
        finite = torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape)
        assert torch.equal(reference.permute(equation, finite), torch.einsum(equation, finite))
        assert same_bits(permuted(x, equation, backend, tuple(expected.shape)), expected)

    @pytest.mark.parametrize("equation", ["ab->cab", "ab->acb", "ab->abc", "ab->cbad"])
    def test_new_modes(self, equation: str, backend: Backend) -> None:
        ready(backend)
        x = any_bits((6, 7), torch.float16, 6, device=backend.device)
        output = equation.partition("->")[2]
        extents = {"a": 6, "b": 7, "c": 5, "d": 3}
        shape = tuple(extents[label] for label in output)
        placed = x.permute([("ab").index(label) for label in output if label in "ab"])
        expected = placed[tuple(slice(None) if label in "ab" else None for label in output)].expand(shape)
        assert same_bits(permuted(x, equation, backend, shape), expected)
        new = {label: extents[label] for label in output if label not in "ab"}
        assert same_bits(weft.permute(x, equation, extents=new, backend=backend.name), expected)

    def test_an_extent_of_one_broadcasts(self, backend: Backend) -> None:
        ready(backend)
        x = any_bits((6, 1), torch.float32, 7, device=backend.device)
        assert same_bits(permuted(x, "ab->ba", backend, (5, 6)), x.T.expand(5, 6))
        assert same_bits(weft.permute(x, "ab->ba", extents={"b": 4}, backend=backend.name), x.T.expand(4, 6))
        assert weft.permute(x, "ab->ba", backend=backend.name).shape == (1, 6)

    def test_scalar(self, backend: Backend) -> None:
        ready(backend)
        x = any_bits((), torch.float64, 8, device=backend.device)
        assert same_bits(permuted(x, "->", backend, ()), x)
        assert same_bits(permuted(x, "->ab", backend, (3, 4)), x.expand(3, 4))

    @pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
    def test_empty(self, shape: tuple[int, int], backend: Backend) -> None:
        ready(backend)
        x = torch.empty(shape, device=backend.device)
        assert weft.permute(x, "ab->ba", backend=backend.name).shape == shape[::-1]
        assert weft.permute(x, "ab->bca", extents={"c": 2}, backend=backend.name).shape == (shape[1], 2, shape[0])

    def test_a_new_mode_may_be_empty(self, backend: Backend) -> None:
        ready(backend)
        x = torch.ones(3, device=backend.device)
        assert weft.permute(x, "a->ab", extents={"b": 0}, backend=backend.name).shape == (3, 0)

    @pytest.mark.parametrize(
        ("equation", "dims"),
        [("...ab->...ba", (0, 1, 3, 2)), ("a...->...a", (1, 2, 3, 0)), ("a...b->b...a", (3, 1, 2, 0))],
    )
    def test_ellipsis(self, equation: str, dims: tuple[int, ...], backend: Backend) -> None:
        ready(backend)
        x = any_bits((2, 3, 4, 5), torch.float32, 9, device=backend.device)
        assert same_bits(weft.permute(x, equation, backend=backend.name), x.permute(dims))

    def test_implicit_output_is_sorted(self, backend: Backend) -> None:
        ready(backend)
        x = any_bits((3, 4, 5), torch.float32, 10, device=backend.device)
        assert same_bits(weft.permute(x, "cab", backend=backend.name), x.permute(1, 2, 0))

    def test_labels_of_any_kind(self, backend: Backend) -> None:
        ready(backend)
        x = any_bits((3, 4), torch.float32, 11, device=backend.device)
        result = weft.permute(x, (("row", 7), (7, "new", "row")), extents={"new": 2}, backend=backend.name)
        assert same_bits(result, x.T[:, None].expand(4, 2, 3))


class TestResult:
    def test_is_a_tensor_of_its_own(self, backend: Backend) -> None:
        ready(backend)
        x = any_bits((4, 5), torch.float32, 12, device=backend.device)
        result = weft.permute(x, "ab->ab", backend=backend.name)
        assert result.is_contiguous()
        assert result.data_ptr() != x.data_ptr()
        assert same_bits(result, x)

    def test_part_of_a_larger_buffer(self, backend: Backend) -> None:
        """`x` and `out` interleave in one buffer without sharing an element."""
        ready(backend)
        buffer = torch.arange(64.0, device=backend.device).reshape(8, 8)
        before = buffer.clone()
        weft.permute(buffer[:, :4], "ab->ab", out=buffer[:, 4:], backend=backend.name)
        assert torch.equal(buffer[:, :4], before[:, :4])
        assert torch.equal(buffer[:, 4:], before[:, :4])

    def test_arrays_of_numpy_go_back_in_kind(self) -> None:
        x = np.arange(12, dtype=np.float32).reshape(3, 4)
        result = weft.permute(x, "ab->ba")
        assert isinstance(result, np.ndarray)
        assert np.array_equal(result, x.T)
        out = np.zeros((4, 3), dtype=np.float32)
        assert weft.permute(x, "ab->ba", out=out) is out
        assert np.array_equal(out, x.T)
        x.flags.writeable = False
        assert np.array_equal(weft.permute(x, "ab->ba"), x.T)

    def test_wide_words_need_their_alignment_only(self) -> None:
        """Memory that starts at no multiple of a word, as NumPy's may: rows move as words where they can."""
        memory = np.zeros(4 * 6 * 4 + 4, dtype=np.uint8)
        for start in range(4):
            x = memory[start : start + 96].reshape(4, 6, 4)
            x[...] = np.arange(96, dtype=np.uint8).reshape(4, 6, 4)
            assert np.array_equal(weft.permute(x, "abc->bac"), x.transpose(1, 0, 2))

    @pytest.mark.parametrize("how", ["conjugate", "negative"])
    def test_views_with_bits(self, how: str, backend: Backend) -> None:
        ready(backend)
        z = torch.randn(5, 6, dtype=torch.complex64, generator=torch.Generator().manual_seed(1)).to(backend.device)
        x = z.conj() if how == "conjugate" else z.conj().imag
        assert x.is_conj() or x.is_neg()
        result = weft.permute(x, "ab->ba", backend=backend.name)
        assert not result.is_conj()
        assert not result.is_neg()
        assert torch.equal(result, x.T.resolve_conj().resolve_neg())

    def test_repeats_bit_for_bit(self, backend: Backend) -> None:
        ready(backend)
        x = any_bits((17, 19, 5), torch.float32, 13, device=backend.device)
        first, second = (weft.permute(x, "abc->cab", backend=backend.name) for _ in range(2))
        assert same_bits(first, second)


@pytest.mark.parametrize("case", PERMUTATIONS[::4], ids=str)
def test_the_reference_backend(case: tuple[str, tuple[int, ...], tuple[int, ...]]) -> None:
    equation, shape, dims = case
    x = any_bits(shape, torch.float32, 14)
    assert same_bits(weft.permute(x, equation, backend="reference"), x.permute(dims))


class TestFieldBugs:
    def test_offsets_past_2_to_31(self, tmp_path: Any, backend: Backend) -> None:
        """pytorch#196431: 32-bit offsets. A mode whose stride leads past 2^31 elements."""
        ready(backend)
        elements = (1 << 31) + 64
        if backend.device == "cpu":
            memory = torch.from_file(str(tmp_path / "holes"), shared=True, size=elements, dtype=torch.uint8)
        else:
            memory = torch.empty(elements, dtype=torch.uint8, device=backend.device)
        x = memory.as_strided((2, 8), ((1 << 31) + 40, 1))
        x.copy_(torch.arange(16, dtype=torch.uint8).reshape(2, 8))
        assert torch.equal(weft.permute(x, "ab->ba", backend=backend.name).cpu(), torch.arange(16).reshape(2, 8).T)

    def test_planning_does_not_grow_with_the_tensor(self, tmp_path: Any) -> None:
        """NVIDIA/cuDecomp#112: more than 2^30 elements corrupt a permutation plan. Here: planned, never touched."""
        holes = torch.from_file(str(tmp_path / "holes"), shared=True, size=1 << 31, dtype=torch.float16)
        p = weft.plan_permute(holes.reshape(1 << 11, 1 << 10, 1 << 10), "abc->cba")
        assert p.shape == (1 << 10, 1 << 10, 1 << 11)
        assert p.workspace_bytes < 1 << 26

    def test_8193_elements_and_their_neighbours(self, backend: Backend) -> None:
        """One past the edge of a buffer."""
        ready(backend)
        for elements in (8191, 8192, 8193):
            x = any_bits((elements,), torch.int8, elements, device=backend.device)
            assert same_bits(permuted(x, "a->a", backend, (elements,)), x)
