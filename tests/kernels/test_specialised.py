"""Kernels with specialised warps: what they refuse, how blocks are shared, what they compile to, and their results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from weft.fn import trace
from weft.kernels import specialised
from weft.kernels.boxes_exchange import multiplied
from weft.kernels.specialised_cut import specialised_cut
from weft.plan.schedule import Target
from weft.spec import Contraction, Layout, canonical
from weft.spec.arithmetic import resolve
from weft.spec.contraction import class_modes
from weft.spec.notation import parse

H200 = Target("cuda", 0, "NVIDIA H200", 90, 132, 232448)
EXTENTS = {"z": 3, "a": 200, "b": 328, "c": 3, "d": 136, "e": 24, "f": 1000}


def described(
    equation: str,
    dtype: torch.dtype = torch.float16,
    precision: str | None = None,
    extents: dict[str, int] = EXTENTS,
    out: torch.dtype = torch.float32,
) -> Contraction:
    notation = parse(equation)
    a, b = (Layout.contiguous([extents[label] for label in term], dtype) for term in notation.inputs)
    d = Layout.contiguous([extents[label] for label in notation.output], out)
    modes = class_modes(notation, a, b, None, d, extents)
    return canonical(Contraction(modes, a, b, None, d, resolve(dtype, dtype, precision), text=equation))


def reason(contraction: Contraction, target: Target = H200) -> str:
    found = specialised.supports(contraction, target)
    assert found is not None
    return found


def test_takes_what_lies_in_boxes_on_hopper() -> None:
    assert specialised.supports(described("ad,bd->ab"), H200) is None


@pytest.mark.parametrize(
    "target",
    [
        replace(H200, capability=80),
        replace(H200, capability=100),
        Target("hip", 0, "AMD MI300X", 94, 304, 65536),
        Target("interpreter", 0, "Triton interpreter", 90, 4, 232448),
        Target("cpu"),
    ],
    ids=["A100", "B200", "MI300X", "interpreter", "CPU"],
)
def test_refuses_other_devices(target: Target) -> None:
    assert "device" in reason(described("ad,bd->ab"), target)


def test_refuses_what_it_does_not_compute() -> None:
    plain = described("ad,bd->ab")
    relu = trace(torch.relu, (torch.float16,))
    assert "float32" in reason(described("ad,bd->ab", torch.float32, "tf32"))
    assert "float64" in reason(described("ad,bd->ab", out=torch.float64))
    assert "C" in reason(replace(plain, c=plain.d))
    assert "one operand" in reason(replace(plain, a_fn=relu, b_fn=relu))


@pytest.mark.parametrize("equation", ["ad,bd->ab", "dca,bd->cba", "af,bf->ab"])
def test_workers_share_every_block_without_gap_or_overlap(equation: str) -> None:
    contraction = described(equation)
    for schedule in specialised.schedules(contraction, H200).schedules:
        cut = specialised_cut(multiplied(contraction, schedule), schedule, H200)
        tile_m, tile_n, _ = schedule.tile
        owners = torch.zeros(2, tile_m, tile_n, dtype=torch.int64)
        for worker, shares in enumerate(cut.shares):
            for share in shares:
                for piece in share.pieces:
                    rows = slice(piece.row, piece.row + piece.m.tile)
                    columns = slice(piece.column, piece.column + piece.n.tile)
                    owners[worker, rows, columns] += 1
        taken = owners.sum(0) if schedule.together else owners
        assert (taken == 1).all(), str(schedule)


@pytest.mark.parametrize("equation", ["ad,bd->ab", "af,bf->ab"])
def test_rings_fit_in_shared_memory(equation: str) -> None:
    for schedule in specialised.schedules(described(equation), H200).schedules:
        tile_m, tile_n, tile_k = schedule.tile
        rings = 1 if schedule.together else 2
        assert schedule.stages >= 2, str(schedule)
        assert rings * schedule.stages * (tile_m + tile_n) * tile_k * 2 < H200.shared_memory, str(schedule)


def test_runs_that_d_does_not_have_are_not_offered() -> None:
    """A has `c` next to `a`, and D has `b` between them: a box of D cannot span a run of both."""
    found = specialised.schedules(described("dca,bd->cba"), H200)
    assert any("D does not lie in boxes" in sentence for sentence in found.excluded)
    runs = {s.b.outer if s.exchanged else s.a.outer for s in found.schedules if s.splits == 1}
    assert {len(run) for run in runs} == {1}


@pytest.fixture(scope="module")
def report() -> dict[str, dict[str, object]]:
    script = Path(__file__).with_name("specialised_report.py")
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_products_run_on_the_tensor_cores_one_after_the_other_without_a_pause(
    report: dict[str, dict[str, object]],
) -> None:
    for name, found in report.items():
        assert found["wgmma"], name
        assert found["cp.async.bulk"], name
        assert not found["serialized"], name
        assert not found["ld.global"], name


def test_nothing_spills(report: dict[str, dict[str, object]]) -> None:
    for name, found in report.items():
        assert not found["local"], name
        assert not found["spilled"], name


def test_registers_go_to_the_warps_that_multiply(report: dict[str, dict[str, object]]) -> None:
    for name, found in report.items():
        assert found["warps"] == 12, name
        assert {24, 240} <= set(found["register roles"]), name  # type: ignore[call-overload]
        assert found["shared"] <= H200.shared_memory, name  # type: ignore[operator]


def plus_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1  # not zero at zero: what is read past the end of a sum must be masked


def check(contraction: Contraction, operand: str, function: Callable[[torch.Tensor], torch.Tensor] | None) -> None:
    """That every kind of schedule is right, and right again. Of small integers, so that results are exact whatever the
    order of summation; D starts as NaN."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no device of compute capability 9.0")
    generator = torch.Generator("cuda").manual_seed(0)
    a, b = (
        torch.randint(-3, 4, layout.shape, generator=generator, device="cuda").to(layout.dtype)
        for layout in (contraction.a, contraction.b)
    )
    x, y = a.double(), b.double()
    if function is not None:
        contraction = replace(contraction, **{f"{operand}_fn": trace(function, (a.dtype,))})
        x, y = (function(x), y) if operand == "a" else (x, function(y))
    expected = (2 * torch.einsum(contraction.text, x, y)).to(contraction.d.dtype).contiguous()  # as D lies
    found = specialised.schedules(contraction, H200).schedules
    one_of_each = list({(s.tile, s.together, s.exchanged, s.splits > 1): s for s in found}.values())
    assert one_of_each
    for schedule in one_of_each[len(contraction.text) % 4 :: 4]:  # others with other equations: compiling takes long
        launch = specialised.build(contraction, schedule, H200)
        results = [torch.full_like(expected, float("nan")) for _ in range(2)]
        for d in results:
            launch(a, b, None, d, 2.0, 0.0)
        assert torch.equal(results[0], expected), str(schedule)
        assert torch.equal(results[0], results[1]), str(schedule)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "equation", ["ad,bd->ab", "da,db->ba", "dca,bd->cba", "zad,zdb->zab", "ceda,dbe->cba", "af,bf->ab"]
)
@pytest.mark.parametrize(("operand", "function"), [("", None), ("a", torch.relu), ("a", plus_one), ("b", plus_one)])
def test_every_schedule_computes_the_product(
    equation: str, operand: str, function: Callable[[torch.Tensor], torch.Tensor] | None
) -> None:
    check(described(equation), operand, function)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("equation", ["ad,bd->ab", "da,db->ba"])
def test_results_of_two_bytes(equation: str, dtype: torch.dtype) -> None:
    check(described(equation, dtype, out=dtype), "a", plus_one)
