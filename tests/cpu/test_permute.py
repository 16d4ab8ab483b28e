"""The CPU's permutation kernels: tiles of every kind, ragged and whole, streamed or not, and the way without numba."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import weft
from commands import python
from permuting import DTYPES, any_bits, same_bits
from weft.cpu.permute import family, schedule
from weft.library import permutations
from weft.planner.schedule import PermutationLaunch, Target
from weft.spec.permutation import Permutation
from weft.testing import poisoned, random_operand

CASES = [
    ("ab->ba", (67, 45)), ("ab->ba", (64, 128)), ("ab->ba", (3, 100)), ("ab->ba", (100, 3)), ("abc->cba", (19, 18, 17)),
    ("abc->cba", (4, 37, 4)), ("abc->bac", (13, 17, 6)), ("abc->bac", (13, 17, 5)), ("abc->bac", (5, 7, 100)),
    ("abcd->dbca", (9, 6, 5, 11)), ("abc->acb", (5, 33, 31)), ("abcdef->fedcba", (4, 3, 5, 3, 4, 5)),
    ("abcd->badc", (5, 4, 8, 16)), ("aab->ba", (21, 21, 9)), ("a->a", (1000,)),
]  # fmt: skip
LAYOUTS = ("contiguous", "padded", "strided", "offset")


@pytest.fixture(params=["tiles of few cells", "as planned"])
def tiles(request: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """With few cells small tensors have many tiles, ragged ones too, are streamed, and are shared among threads."""
    if request.param != "as planned":
        changed = {"REACH_X": 64, "REACH_D": 128, "CELLS": 256, "RUN": 192, "LONG": 128, "STREAM": 0, "SMALL": 0}
        for name, value in {**changed, "BUFFER": 300}.items():
            monkeypatch.setattr(schedule, name, value)
    schedule.tiling.cache_clear()
    yield
    schedule.tiling.cache_clear()


def launch(permutation: Permutation, threads: int = 2) -> PermutationLaunch:
    """The kernels' launch, whatever family would be chosen."""
    target = Target("cpu", name="CPU", processors=threads)
    assert family.supports(permutation, target) is None
    (found,) = family.schedules(permutation, target).schedules
    assert family.predict(permutation, found, target) > 0
    return family.build(permutation, found, target)


def described(x: torch.Tensor, equation: str, **options: Any) -> Permutation:
    return weft.plan_permute(x, equation, backend="reference", **options).permutation


@pytest.mark.one_of(2)
@pytest.mark.parametrize(("equation", "shape"), CASES, ids=str)
@pytest.mark.usefixtures("tiles")
def test_every_bit_arrives(equation: str, shape: tuple[int, ...]) -> None:
    for dtype in (torch.uint8, torch.bfloat16, torch.float32, torch.float64, torch.complex128):
        for layout in LAYOUTS:
            x = any_bits(shape, dtype, 1, layout="strided" if layout == "strided" else "contiguous")
            expected = weft.reference.permute(equation, x)
            guarded = poisoned(tuple(expected.shape), dtype, layout=layout)
            for threads in (1, 3):
                guarded.tensor.zero_()
                launch(described(x, equation, out=guarded.tensor), threads)(x, None, guarded.tensor, 1, 0)
                assert same_bits(guarded.tensor, expected), (dtype, layout, threads)
                guarded.check_guards()


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float8_e4m3fn, torch.complex32, torch.uint16], ids=str)
def test_every_type_is_moved(dtype: torch.dtype) -> None:
    x = any_bits((17, 5, 33), torch.uint8 if dtype.itemsize == 1 else torch.int16, 2)
    x = x.view(dtype) if dtype.itemsize < 4 else any_bits((17, 5, 33), torch.complex64, 2).to(dtype)
    if dtype is torch.bool:
        x = any_bits((17, 5, 33), dtype, 2)
    for order in ((2, 1, 0), (1, 0, 2)):
        equation = "abc->" + "".join("abc"[at] for at in order)
        found = weft.permute(x, equation, backend="cpu")
        words = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}[dtype.itemsize]
        assert torch.equal(found.view(words), x.permute(order).contiguous().view(words))


def test_a_streamed_result_need_not_begin_at_a_cache_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "STREAM", 0)
    schedule.tiling.cache_clear()
    x = any_bits((128, 192), torch.float32, 3)
    memory = torch.empty(128 * 192 + 64)
    first = -memory.data_ptr() // 4 % 16
    for offset in (first, first + 1):
        out = memory[offset : offset + 128 * 192].view(192, 128)
        permutation = described(x, "ab->ba", out=out)
        assert schedule.schedule_of(permutation, 1).streams
        launch(permutation)(x, None, out, 1, 0)
        assert same_bits(out, x.T.contiguous())


@pytest.mark.parametrize(("run", "streams"), [(64, True), (40, False), (16, True), (520, False), (8200, True)])
def test_runs_that_end_within_a_cache_line_go_through_the_caches(run: int, streams: bool) -> None:
    """Rows of 160 bytes took twenty times as long past them: their ends fetch lines back. Long ones lose less so."""
    permutation = described(torch.empty(64, (1 << 21) // 64 // run, run), "abc->bac")
    assert schedule.schedule_of(permutation, 1).streams == streams


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.complex128], ids=str)
def test_shorter_vectors(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    """Of 32 bytes, as most hosts have: two squares fill the lines that are streamed."""
    from weft.cpu.permute import launch as room

    monkeypatch.setattr(schedule, "STREAM", 0)
    monkeypatch.setattr(room, "vector_bytes", lambda: 32)
    monkeypatch.setattr(room, "squares_of", room.squares_of.__wrapped__)
    schedule.tiling.cache_clear()
    for shape in ((128, 192), (131, 70)):
        x = any_bits(shape, dtype, 3)
        memory = torch.empty(x.numel() + 64, dtype=dtype)
        out = memory[-memory.data_ptr() % 64 // dtype.itemsize :][: x.numel()].view(shape[::-1])
        launch(described(x, "ab->ba", out=out))(x, None, out, 1, 0)
        assert same_bits(out, x.T.contiguous())


@pytest.mark.parametrize(("equation", "shape"), CASES[:13], ids=str)
@pytest.mark.usefixtures("tiles")
def test_what_is_computed(equation: str, shape: tuple[int, ...]) -> None:
    """A function, a cast to a wider type, scaling and accumulation, in whole numbers."""
    x = random_operand(shape, torch.float16, 1, integers=True)
    expected = weft.reference.permute(equation, x, fn=lambda v: v * v - 1, out_dtype=torch.float64)
    for dtype in (torch.float64, torch.float16):
        for layout in ("contiguous", "strided"):
            guarded = poisoned(tuple(expected.shape), dtype, layout=layout)
            out = guarded.tensor.fill_(1)
            permutation = described(x, equation, fn=lambda v: v * v - 1, c=out, out=out, alpha=2, beta=3)
            target = Target("cpu", name="CPU", processors=2)
            (by_torch,) = permutations.schedules(permutation, target).schedules
            for run in (launch(permutation), permutations.build(permutation, by_torch, target)):
                out.fill_(5)
                run(x, out, out, 2.0, 3.0)
                assert torch.equal(out.double(), 2 * expected + 15), (dtype, layout)
                guarded.check_guards()


@pytest.mark.usefixtures("tiles")
def test_modes_that_x_lacks() -> None:
    x = any_bits((40, 30), torch.float32, 2)
    for equation in ("ab->bca", "ab->cab", "ab->bac"):
        expected = weft.reference.permute(equation, x, extents={"c": 37})
        out = torch.zeros(expected.shape)
        launch(described(x, equation, extents={"c": 37}))(x, None, out, 1, 0)
        assert same_bits(out, expected), equation


def test_conjugates_and_integers() -> None:
    z = random_operand((30, 41), torch.complex64, 1)
    assert torch.equal(weft.permute(z.conj(), "ab->ba", backend="cpu"), z.conj().resolve_conj().T)
    x = torch.tensor([[2**62, -3], [5, 7]])
    out = torch.ones(2, 2, dtype=torch.int64)
    assert weft.permute(x, "ab->ba", c=out, out=out, alpha=2, beta=-1).tolist() == [[-(2**63) - 1 + 2**64, 9], [-7, 13]]


class TestWords:
    """What is moved as one item."""

    @pytest.mark.parametrize(
        ("shape", "dtype", "word", "extents"),
        [
            ((5, 6, 8), torch.float16, 16, [6, 5]),
            ((5, 6, 4), torch.float16, 8, [6, 5]),
            ((5, 6, 6), torch.float16, 4, [6, 5, 3]),
            ((5, 6, 7), torch.float16, 2, [6, 5, 7]),
            ((5, 6, 16), torch.uint8, 16, [6, 5]),
            ((5, 6, 2), torch.float64, 16, [6, 5]),
            ((5, 6, 32), torch.float32, 16, [6, 5, 8]),
            ((5, 6, 3), torch.complex128, 16, [6, 5, 3]),
        ],
        ids=str,
    )
    def test_neighbours_that_stay_together(
        self, shape: tuple[int, ...], dtype: torch.dtype, word: int, extents: list[int]
    ) -> None:
        axes, size = schedule.items(described(torch.empty(shape, dtype=dtype), "abc->bac"))
        assert size == word
        assert [axis.extent for axis in axes] == extents

    def test_not_where_they_are_computed_with_or_lie_between_words(self) -> None:
        x = torch.empty(5, 6, 8)
        assert schedule.items(described(x, "abc->bac", out_dtype=torch.float64))[1] == 4
        odd = torch.empty(5, 6, 9)[:, :, :8]
        assert schedule.items(described(odd, "abc->bac"))[1] == 4


class TestTiles:
    def test_many_small_modes_make_a_side(self) -> None:
        cut = schedule.tiling(described(torch.empty((2,) * 20), (range(20), range(19, -1, -1))))  # type: ignore[arg-type]
        assert cut.contiguous
        assert (cut.p.tile, cut.q.tile) == (64, 256)

    def test_a_middle_mode_serves_one_side(self) -> None:
        cut = schedule.tiling(described(torch.empty(4, 4096, 4), "abc->cba"))
        assert cut.contiguous
        assert min(cut.p.tile, cut.q.tile) == 4
        assert max(cut.p.tile, cut.q.tile) >= 64

    def test_workspace_is_bounded(self) -> None:
        for permutation in (
            described(torch.empty(1 << 11, 1 << 11, 4), "abc->cba"),
            described(torch.empty(1 << 22, dtype=torch.float16), "a->a", fn=torch.exp),
            described(torch.empty(1 << 22, dtype=torch.float8_e4m3fn), "a->a", out_dtype=torch.float16, alpha=2.0),
        ):
            for room in (family, permutations):
                target = Target("cpu", processors=2)
                if room.supports(permutation, target) is None:
                    for found in room.schedules(permutation, target).schedules:
                        assert found.workspace_bytes <= 8 << 20  # type: ignore[attr-defined]


def test_what_has_no_code_goes_by_torch() -> None:
    x = random_operand((9, 700, 50), torch.complex64, 1)
    plan = weft.plan_permute(x, "abc->cba", fn=torch.abs)
    assert plan.schedule.family == "library"
    assert "fn: abs of complex values has no code for the CPU" in plan.explain()
    assert torch.equal(plan(x), torch.abs(x).permute(2, 1, 0))
    eighth = x.real.to(torch.float8_e4m3fn)
    assert torch.equal(weft.permute(eighth, "abc->cba", out_dtype=torch.float32), eighth.float().permute(2, 1, 0))


def test_other_devices_are_left_alone() -> None:
    permutation = described(torch.empty(4, 5), "ab->ba")
    assert family.supports(permutation, Target("cuda")) is not None


def test_without_numba() -> None:
    code = (
        "import torch, weft\n"
        "x = torch.arange(600000.).view(20, 300, 100); e = x.permute(2, 0, 1)\n"
        "assert torch.equal(weft.permute(x, 'abc->cab'), e)\n"
        "assert torch.equal(weft.permute(x, 'abc->cab', fn=torch.relu, alpha=2., c=e.clone()), 3 * e)\n"
        "for shape in ((3, 50, 50), (2, 30, 70)):\n"
        "    y = torch.rand(shape); e = 2 * y.mT.clone(); assert torch.equal(weft.transpose_(y, alpha=2.), e)\n"
        "import sys; print('numba' in sys.modules, weft.plan_permute(x, 'abc->cab').schedule)"
    )
    assert python(code, WEFT_NUMBA="0") == "False library: one strided copy"
