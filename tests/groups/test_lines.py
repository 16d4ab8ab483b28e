"""Groups whose kernel moves 16 bytes at once, and what is not to be moved so: odd extents, starts and strides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import weft
from support import Backend
from weft.gpu.grouped.launch import GroupKernel, GroupLine, loop_is_faster
from weft.planner.schedule import Target
from weft.spec import parse
from weft.spec.dtypes import resolve
from weft.spec.group import GroupTable, contiguous_strides, group_form, group_table
from weft.testing import random_operand

Pairs = list[tuple[torch.Tensor, torch.Tensor]]
SINGLY, ALONG_K, ALONG_N, ALONG_M = GroupLine(3, 1), GroupLine(3, 4), GroupLine(2, 4), GroupLine(1, 4)


def pairs_of(shapes: list[tuple[int, int, int]], device: str, odd: int = 0, turned: bool = False) -> Pairs:
    """Pairs of whole numbers in float32 of extents (m, k, n), which begin `odd` elements past a whole vector."""
    found = []
    for at, (m, k, n) in enumerate(shapes):
        pair = []
        for number, (rows, columns) in enumerate(((m, k), (k, n))):
            values = random_operand((rows, columns), torch.float32, 2 * at + number, integers=True, device=device)
            flat = torch.full((rows * columns + odd,), torch.nan, device=device)
            own = flat[odd:].view(columns, rows).T if turned else flat[odd:].view(rows, columns)
            pair.append(own.copy_(values))
        found.append(tuple(pair))
    return found  # type: ignore[return-value]


def check(results: Any, pairs: Pairs) -> None:
    for found, (a, b) in zip(results, pairs, strict=True):
        assert torch.equal(found, a @ b)


CASES = {
    "whole vectors": ([(5, 8, 12), (17, 20, 4), (33, 4, 20)], False, (ALONG_K, ALONG_N, ALONG_N)),
    "stored across": ([(8, 5, 12), (4, 17, 20)], True, (ALONG_M, GroupLine(3, 1), GroupLine(2, 4))),
    "k odd in one pair": ([(5, 8, 12), (17, 19, 4)], False, (SINGLY, ALONG_N, ALONG_N)),
    "n odd in one pair": ([(5, 8, 11), (17, 20, 4)], False, (ALONG_K, GroupLine(2, 1), GroupLine(2, 1))),
    "empty pairs": ([(5, 8, 12), (0, 3, 4), (3, 0, 8), (3, 4, 0)], False, (ALONG_K, ALONG_N, ALONG_N)),
    "extents of one": ([(1, 1, 4), (1, 1, 8)], False, (GroupLine(0, 1), ALONG_N, ALONG_N)),
}


@pytest.mark.parametrize("case", CASES)
def test_what_all_pairs_have_in_common(case: str, triton_backend: Backend) -> None:
    shapes, turned, lines = CASES[case]
    pairs = pairs_of(shapes, triton_backend.device, turned=turned)
    plan = weft.plan_grouped("mk,kn->mn", pairs, backend="triton")
    check(plan(), pairs)
    assert plan._own._made_for.lines == lines
    check(plan(pairs), pairs)


@pytest.mark.parametrize("first", [0, 1, 2])
def test_tensors_that_begin_elsewhere(first: int, triton_backend: Backend) -> None:
    """A plan serves tensors at whole vectors and others in turn: all of them moved, or one of them alone."""
    shapes = [(5, 8, 12), (17, 20, 4), (33, 4, 20)]
    lists = [pairs_of(shapes, triton_backend.device, odd) for odd in (first, 1, 0, 3, 4, 0)]
    plan = weft.plan_grouped("mk,kn->mn", lists[0], backend="triton")
    for pairs in (*lists, [*lists[2][:2], lists[1][2]], [lists[1][0], *lists[2][1:]], lists[2]):
        check(plan(pairs), pairs)
        check(plan(), pairs)
        check(weft.grouped("mk,kn->mn", pairs, backend="triton"), pairs)


def test_places_of_any_start(triton_backend: Backend) -> None:
    shapes = [(5, 8, 12), (17, 20, 4)]
    pairs = pairs_of(shapes, triton_backend.device)
    memory = [torch.full((m * n + 4,), torch.nan, device=triton_backend.device) for m, _, n in shapes]
    places = {odd: [own[odd : odd + m * n].view(m, n) for own, (m, _, n) in zip(memory, shapes, strict=True)]
              for odd in (0, 1, 4)}  # fmt: skip
    plan = weft.plan_grouped("mk,kn->mn", pairs, out=places[0], backend="triton")
    for odd in (0, 1, 4, 0):
        for own in memory:
            own.fill_(torch.nan)
        check(plan(out=places[odd]), pairs)
        for own, (m, _, n) in zip(memory, shapes, strict=True):
            assert own.isnan().sum() == own.numel() - m * n


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_several_modes_and_broadcast_ones(dtype: torch.dtype, triton_backend: Backend) -> None:
    for equation, shapes in (
        ("mxk,kyn->xmyn", ((3, 2, 16), (16, 2, 8))), ("bmk,bkn->bmn", ((2, 5, 16), (2, 16, 8))),
        ("xkm,nkx->nm", ((2, 3, 16), (8, 3, 2))), ("mk,kn->mn", ((5, 1), (16, 8))), ("m,n->mn", ((16,), (8,))),
    ):  # fmt: skip
        pairs = [
            tuple(random_operand(shape, dtype, 2 * at + number, integers=True, device=triton_backend.device)
                  for number, shape in enumerate(shapes))
            for at in range(3)
        ]  # fmt: skip
        pairs[1] = tuple(torch.cat([one, one], 0)[: one.shape[0]] for one in pairs[1])
        for found, (a, b) in zip(weft.grouped(equation, pairs, backend="triton"), pairs, strict=True):
            assert torch.equal(found.double(), torch.einsum(equation, a.double(), b.double()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_rounding_of_large_tiles(dtype: torch.dtype, triton_backend: Backend) -> None:
    """Products that take the larger tiles, some of them in part, stay within a bound that grows with k."""
    shapes = [(129, 72, 136), (64, 264, 128), (1, 8, 256)]
    generator = torch.Generator().manual_seed(3)
    pairs = [tuple(torch.randn(shape, generator=generator).to(dtype).to(triton_backend.device)
                   for shape in ((m, k), (k, n))) for m, k, n in shapes]  # fmt: skip
    eps = torch.finfo(torch.float64 if dtype is torch.float64 else torch.float32).eps
    for found, (a, b) in zip(weft.grouped("mk,kn->mn", pairs, backend="triton"), pairs, strict=True):
        exact, size = a.double() @ b.double(), a.double().abs() @ b.double().abs()
        bound = 2 * (a.shape[1] + 2) * eps * size + torch.finfo(dtype).eps * exact.abs()
        assert ((found.double() - exact).abs() <= bound).all()


def test_a_plan_called_with_the_tensors_of_its_last_call_sends_nothing(
    triton_backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = [(5, 8, 12), (17, 20, 4)]
    first, second = (pairs_of(shapes, triton_backend.device) for _ in range(2))
    plan = weft.plan_grouped("mk,kn->mn", first, backend="triton")
    moved = []
    own = type(plan._own)
    monkeypatch.setattr(own, "move", lambda launch, table, move=own.move: (moved.append(1), move(launch, table)))
    for pairs, sent in ((first, 0), (first, 0), (second, 1), (second, 1), (first, 2)):
        second[0][0].add_(1)
        check(plan(pairs), pairs)
        assert len(moved) == sent
    assert np.array_equal(moved, [1, 1])


def kernel_and_table(
    count: int, extents: tuple[int, int, int], dtype: torch.dtype = torch.float16
) -> tuple[GroupKernel, GroupTable]:
    m, k, n = np.repeat(np.array([extents]), count, 0).T
    shapes = [np.stack([m, k], 1), np.stack([k, n], 1)]
    table, _ = group_table(group_form(parse("mk,kn->mn")), shapes, [contiguous_strides(one) for one in shapes])
    kernel = GroupKernel((1,) * 4, resolve(dtype, dtype), (dtype,) * 3, (None,) * 3, False)
    return kernel.lying(table), table


H100 = Target("cuda", 0, "NVIDIA H100", 90, 132, 232448)


def test_few_large_products_are_the_librarys() -> None:
    for dtype in (torch.float16, torch.float32, torch.float64):
        assert loop_is_faster(*kernel_and_table(4, (4096, 4096, 4096), dtype), H100)
        assert not loop_is_faster(*kernel_and_table(64, (64, 2048, 1024), dtype), H100)
        assert not loop_is_faster(*kernel_and_table(200, (32, 32, 32), dtype), H100)


def test_few_products_take_smaller_tiles_than_many() -> None:
    """As many products as one large tile each would leave most of an H100 idle."""
    def tile(count: int, extents: tuple[int, int, int], dtype: torch.dtype = torch.float16) -> tuple[int, int]:
        kernel, table = kernel_and_table(count, extents, dtype)
        return kernel.tile_for(table, H100)[:2]

    assert tile(100, (512, 512, 512)) == (128, 128)
    assert np.prod(tile(2, (512, 512, 512))) < 128 * 128
    assert max(tile(1000, (8, 8, 8))) == 16
    assert tile(100, (512, 511, 512)) == tile(100, (512, 511, 511)) == (128, 128)
    assert tile(400, (24, 24, 24), torch.float64) == (32, 32)
