"""The largest magnitude of D, found by the kernels that store it: the same bits as those of D's largest element."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

import weft
from weft.planner.peak import Measured
from weft.planner.registry import imported
from weft.planner.schedule import Ranked
from weft.planner.target import interpreting, target_of
from weft.spec import Contraction, Layout, canonical, parse
from weft.spec.contraction import class_modes
from weft.spec.dtypes import resolve

CPU = torch.device("cpu")
EXTENTS = {"a": 5, "b": 7, "c": 3, "d": 9, "e": 13, "m": 33, "n": 17, "k": 40, "z": 2, "l": 9000, "s": 1200,
           "w": 128, "x": 64, "v": 128}  # fmt: skip
MANY, MATRIX, BATCH, SCALAR = "abc,cde->adbe", "mk,kn->mn", "zmk,zkn->zmn", "k,k->"
LONG, LONGISH = "al,lb->ab", "as,sb->ab"  # whose sums are split, on a CPU and on a GPU
WIDE = "wx,xv->wv"  # for tiles of tensor maps


def described(equation: str, dtype: torch.dtype) -> tuple[Contraction, list[torch.Tensor]]:
    """A contraction with its peak asked for, and operands that may be spoilt."""
    notation = parse(equation)
    generator = torch.Generator().manual_seed(1)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    shapes = [[EXTENTS[label] for label in term] for term in (*notation.inputs, notation.output)]
    a, b = (torch.randn(shape, generator=generator, dtype=wide).to(dtype) for shape in shapes[:2])
    layouts = [Layout.contiguous(shape, dtype) for shape in shapes]
    modes = class_modes(notation, layouts[0], layouts[1], None, layouts[2], EXTENTS)
    made = Contraction(modes, layouts[0], layouts[1], None, layouts[2], resolve(dtype, dtype), text=equation, peak=True)
    return canonical(made), [a, b, torch.full(shapes[2], math.nan, dtype=dtype)]


def launched(launch: Any, contraction: Contraction, tensors: Sequence[torch.Tensor]) -> tuple[float, float]:
    """The peak that a launch finds, and the one that D has."""
    layout = contraction.peak_layout
    peak = torch.zeros(4, dtype=layout.dtype)
    a, b, d = tensors
    one, zero = (1 + 0j, 0j) if d.dtype.is_complex else (1.0, 0.0)
    launch(a, b, None, d, one, zero, (peak[1],))
    assert not peak[[0, 2, 3]].any()
    found = peak.view(torch.float64 if layout.dtype is torch.int64 else torch.float32)[1].item()
    parts = torch.view_as_real(d) if d.dtype.is_complex else d
    return found, parts.double().abs().max().item()


def schedules_of(family: str, contraction: Contraction, backend: str, kinds: str = "") -> list[Ranked]:
    """One schedule of each kernel of a family: with and without split sums. `kinds` names all that it must offer.

    On a CPU its threads decide what is split.
    """
    room: Any = imported(f"weft.{family}.family")
    assert room.FINDS_PEAKS
    target = target_of(backend, CPU)
    plain = replace(contraction, peak=False)
    assert room.supports(plain, target) is None
    found = {}
    for schedule in room.schedules(plain, target).schedules:
        kind = getattr(schedule, "kernel", "") or "whole"
        kind = f"{kind} split" if getattr(schedule, "splits", 1) > 1 else kind
        found.setdefault(kind, Ranked(schedule, 0.0, room))
    assert found
    assert backend == "cpu" or ", ".join(sorted(found)) == kinds
    return list(found.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("equation", [MANY, BATCH, LONG, SCALAR])
def test_of_gett_on_the_cpu(equation: str, dtype: torch.dtype) -> None:
    contraction, tensors = described(equation, dtype)
    for rank in schedules_of("cpu.gett", contraction, "cpu"):
        found, largest = launched(rank.build(contraction, target_of("cpu", CPU)), contraction, tensors)
        assert found == largest > 0


@pytest.mark.skipif(not interpreting(), reason="TRITON_INTERPRET is not set")
@pytest.mark.parametrize(
    ("family", "equation", "dtype", "kinds"),
    [("gpu.gett", MANY, torch.float16, "whole"),
     ("gpu.gett", LONGISH, torch.float64, "whole, whole split"), ("gpu.simt", BATCH, torch.float64, "whole"),
     ("gpu.semiring", MATRIX, torch.float32, "whole"), ("gpu.gett", WIDE, torch.bfloat16, "whole")],
)  # fmt: skip
def test_of_triton_kernels(family: str, equation: str, dtype: torch.dtype, kinds: str) -> None:
    contraction, tensors = described(equation, dtype)
    target = target_of("triton", CPU)
    for rank in schedules_of(family, contraction, "triton", kinds):
        found, largest = launched(rank.build(contraction, target), contraction, tensors)
        assert found == largest > 0, rank.schedule


@pytest.mark.parametrize("spoilt", [math.nan, -math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("family", ["cpu.gett", "gpu.gett"])
def test_nan_and_infinity_are_not_lost(family: str, spoilt: float) -> None:
    backend = "triton" if family.startswith("gpu") else "cpu"
    if backend == "triton" and not interpreting():
        pytest.skip("TRITON_INTERPRET is not set")
    contraction, tensors = described(MATRIX, torch.float32)
    tensors[0][3, 5] = spoilt
    for rank in schedules_of(family, contraction, backend, "whole"):
        found, largest = launched(rank.build(contraction, target_of(backend, CPU)), contraction, tensors)
        assert found == largest or (math.isnan(found) and math.isnan(largest))
        assert not math.isfinite(found)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.complex128])
def test_others_read_d_once_more(dtype: torch.dtype) -> None:
    contraction, tensors = described(MATRIX, dtype)
    room: Any = imported("weft.library.family")
    target = target_of("cpu", CPU)
    (schedule,) = room.schedules(replace(contraction, peak=False), target).schedules
    launch = Ranked(schedule, 0.0, room).build(contraction, target)
    assert isinstance(launch, Measured)
    found, _ = launched(launch, contraction, tensors)
    assert found == tensors[2].abs().max().item()


def test_a_launch_leaves_what_is_larger() -> None:
    contraction, (a, b, d) = described(MATRIX, torch.float32)
    (rank,) = schedules_of("cpu.gett", contraction, "cpu")
    peak = torch.tensor(1e30).view(torch.int32)
    rank.build(contraction, target_of("cpu", CPU))(a, b, None, d, 1.0, 0.0, (peak,))
    assert peak.view(torch.float32).item() == torch.tensor(1e30).item()


def test_the_choice_is_that_without_a_peak() -> None:
    from weft.planner.planner import choose
    from weft.planner.tuned import key

    contraction, _ = described(MANY, torch.float32)
    target, plain = target_of("cpu", CPU), replace(contraction, peak=False)
    asked, chosen = choose(contraction, "cpu", target), choose(plain, "cpu", target)
    assert [rank.schedule for rank in asked.ranked] == [rank.schedule for rank in chosen.ranked]
    assert key(contraction, "cpu", target, None) == key(plain, "cpu", target, None)
    assert weft.plan(MANY, torch.zeros(5, 7, 3), torch.zeros(3, 9, 13)).contraction.peak is False
