"""Kernels with specialised warps: what they refuse, how blocks are shared, what they compile to, and their results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch

from weft.fn import trace
from weft.kernels import specialised
from weft.kernels.boxes_exchange import exchanged, multiplied
from weft.kernels.boxes_readings import extent
from weft.kernels.boxes_schedule import parts
from weft.kernels.geometry import D, nearest
from weft.kernels.specialised_cut import specialised_cut
from weft.kernels.specialised_kept import KeptSchedule, kept_cut
from weft.kernels.specialised_kernel import task_of
from weft.kernels.specialised_results import block_count, staging_bytes
from weft.kernels.specialised_roles import IN_PLACE, IN_TURNS, SIDE_BY_SIDE, TOGETHER, WORKERS, Workers, roles
from weft.kernels.specialised_schedule import SpecialisedSchedule
from weft.plan.schedule import Schedule, Target
from weft.spec import Contraction, Layout, canonical
from weft.spec.arithmetic import resolve
from weft.spec.contraction import class_modes
from weft.spec.notation import parse

H200 = Target("cuda", 0, "NVIDIA H200", 90, 132, 232448)
EXTENTS = {"z": 3, "a": 200, "b": 328, "c": 3, "d": 136, "e": 24, "f": 1000, "g": 8}
# A large operand (more blocks than workers) beside a small one; sums of one box, of five with a ring that holds three,
# of several modes, and with ends of 8, 16 and 40; columns in one part and in two, and no multiple of 8.
LARGE_AND_SMALL = {"a": 20000, "b": 72, "c": 3, "d": 72, "e": 16, "f": 136, "g": 296, "h": 21, "i": 312, "j": 40}


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


def shared(contraction: Contraction) -> list[SpecialisedSchedule]:
    """Schedules whose operands both come in rings."""
    found = specialised.schedules(contraction, H200).schedules
    return [schedule for schedule in found if isinstance(schedule, SpecialisedSchedule)]


def kept(contraction: Contraction) -> list[KeptSchedule]:
    """Schedules that keep one operand in shared memory."""
    found = specialised.schedules(contraction, H200).schedules
    return [schedule for schedule in found if isinstance(schedule, KeptSchedule)]


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
    assert "float32" in reason(described("ad,bd->ab", torch.float32, "tf32"))
    assert "float64" in reason(described("ad,bd->ab", out=torch.float64))
    assert "C" in reason(replace(plain, c=plain.d))


def test_functions_on_both_operands_are_applied_in_rings_and_where_one_is_kept() -> None:
    relu = trace(torch.relu, (torch.float16,))
    small, large = (replace(described(text), a_fn=relu, b_fn=relu) for text in ("ad,bd->ab", "af,bf->ab"))
    assert {type(schedule) for schedule in specialised.schedules(small, H200).schedules} == {
        SpecialisedSchedule,
        KeptSchedule,
    }
    assert {type(schedule) for schedule in specialised.schedules(large, H200).schedules} == {SpecialisedSchedule}


@pytest.mark.parametrize("equation", ["ad,bd->ab", "dca,bd->cba", "af,bf->ab", "cebf,af->bcea"])
def test_workers_share_every_block_without_gap_or_overlap(equation: str) -> None:
    contraction = described(equation)
    for schedule in shared(contraction):
        cut = specialised_cut(multiplied(contraction, schedule), schedule, H200)
        tile_m, tile_n, _ = schedule.tile
        owners = torch.zeros(2, tile_m, tile_n, dtype=torch.int64)
        for worker, shares in enumerate(cut.shares):
            for share in shares:
                for piece in share.pieces:
                    rows = slice(piece.row, piece.row + piece.m.tile)
                    columns = slice(piece.column, piece.column + piece.n.tile)
                    owners[worker, rows, columns] += 1
        taken = owners.sum(0) if schedule.workers.shares == 2 else owners
        assert (taken == 1).all(), str(schedule)


@pytest.mark.parametrize("equation", ["ad,bd->ab", "ceda,dbe->cba", "cebf,af->bcea"])
def test_every_share_of_every_block_is_one_workers_task(equation: str) -> None:
    contraction = described(equation)
    seen = set()
    for schedule in shared(contraction):
        cut = specialised_cut(multiplied(contraction, schedule), schedule, H200)
        tasks = range(cut.tasks * cut.boxes.splits)
        taken = [task_of.fn(task, cut, worker) for task in tasks for worker in range(schedule.workers.abreast)]
        every = product(range(cut.boxes.splits), range(cut.boxes.blocks))
        assert sorted(taken) == list(every), str(schedule)
        seen.add(schedule.workers)
    assert {TOGETHER, IN_TURNS} <= seen
    assert (SIDE_BY_SIDE in seen) == (equation == "cebf,af->bcea")


def test_blocks_that_are_taken_at_once_are_of_the_same_rows() -> None:
    """One row of blocks after the other, and an even number in each: two neighbours are never of different rows."""
    contraction = described("cebf,af->bcea")
    for schedule in shared(contraction):
        if schedule.workers == SIDE_BY_SIDE:
            boxes = specialised_cut(multiplied(contraction, schedule), schedule, H200).boxes
            assert (boxes.group, boxes.n.blocks % 2) == (1, 0), str(schedule)


def test_few_pairs_of_blocks_share_sums_and_an_odd_number_is_not_taken_in_pairs() -> None:
    split = {schedule.splits > 1 for schedule in shared(described("cegf,af->gcea")) if schedule.workers == SIDE_BY_SIDE}
    assert split == {False, True}
    odd = described("cegf,af->gcea", extents={**EXTENTS, "g": 7})
    assert not [schedule for schedule in shared(odd) if schedule.workers == SIDE_BY_SIDE]
    excluded = specialised.schedules(exchanged(odd), H200).excluded
    assert "blocks along n are odd in number: workers cannot take two at once" in excluded


def test_appliers_are_as_many_as_have_registers_for_whole_boxes() -> None:
    relu = trace(torch.relu, (torch.float16,))
    columns, both = (
        replace(described("af,bf->ab"), **dict.fromkeys(names, relu)) for names in (["b_fn"], ["a_fn", "b_fn"])
    )
    assert roles(described("af,bf->ab"), (128, 80, 64), TOGETHER).appliers == 0
    assert roles(columns, (128, 80, 64), TOGETHER).appliers == 4
    assert roles(columns, (128, 80, 64), SIDE_BY_SIDE).appliers == 4
    assert roles(columns, (128, 160, 64), TOGETHER).appliers == 2
    assert roles(both, (128, 320, 64), TOGETHER) is None
    assert roles(both, (128, 320, 64), IN_PLACE).appliers == 3


@pytest.mark.parametrize("equation", ["ad,bd->ab", "ad,db->ab", "da,db->ba", "af,bf->ab"])
def test_where_boxes_lie_every_line_is_one_roles_and_each_program_has_one_task(equation: str) -> None:
    relu = trace(torch.relu, (torch.float16,))
    contraction = replace(described(equation), a_fn=relu, b_fn=relu)
    found = [schedule for schedule in shared(contraction) if schedule.workers == IN_PLACE]
    assert found
    long = trace(torch.nn.functional.gelu, (torch.float16,))
    for other in (described(equation), replace(contraction, b_fn=None), replace(contraction, a_fn=long)):
        assert not [schedule for schedule in shared(other) if schedule.workers == IN_PLACE]
    for schedule in found:
        cut = specialised_cut(multiplied(contraction, schedule), schedule, H200)
        assert cut.tasks * cut.boxes.splits == cut.boxes.programs, str(schedule)
        runs = [run for portion in cut.portions for run in portion]
        assert all(run.first % run.lines == 0 and run.lines.bit_count() == 1 for run in runs), str(schedule)
        lines = [(run.part, line) for run in runs for line in range(run.first, run.first + run.lines)]
        assert len(lines) == len(set(lines)), str(schedule)
        wide, *narrow = parts(schedule.tile[1])
        counts = [sum(part == at for part, _ in lines) for at in range(2)]
        if not schedule.b.along_k:
            assert counts == [schedule.tile[2], schedule.tile[2] if narrow else 0], str(schedule)
        elif narrow:  # columns past the last one need no function
            there = min(narrow[0], extent(schedule.b.outer) - wide)
            assert counts[0] == wide, str(schedule)
            assert there <= counts[1] <= narrow[0], str(schedule)
        else:
            assert counts == [wide, 0], str(schedule)


@pytest.mark.parametrize(
    ("function", "workers"),
    [
        (torch.relu, TOGETHER),
        (torch.nn.functional.leaky_relu, TOGETHER),
        (torch.nn.functional.elu, IN_PLACE),
    ],
)
def test_functions_of_long_sums_are_applied_in_place_where_that_was_timed_to_be_faster(
    function: Callable[..., torch.Tensor], workers: Workers
) -> None:
    """TCCG 13: 57.1, 59.8 and 66.1 us on an H200, the other way 59.8, 61.1 and more than 79."""
    contraction = described("dca,cbd->ba", extents={"a": 312, "b": 296, "c": 296, "d": 312})
    of_half, of_single = trace(function, (torch.float16,)), trace(function, (torch.float32,))
    contraction = replace(contraction, a_fn=of_half, b_fn=of_half, epilogue=of_single)
    best = min(shared(contraction), key=lambda schedule: specialised.predict(contraction, schedule, H200))
    assert best.workers == workers, str(best)


@pytest.mark.parametrize("kilobytes", [112, 128, 160, 224])
def test_where_boxes_lie_there_are_three_slots_or_more(kilobytes: int) -> None:
    relu = trace(torch.relu, (torch.float16,))
    contraction = replace(described("ad,bd->ab"), a_fn=relu, b_fn=relu)
    found = specialised.schedules(contraction, replace(H200, shared_memory=kilobytes << 10)).schedules
    stages = [s.stages for s in found if isinstance(s, SpecialisedSchedule) and s.workers == IN_PLACE]
    assert all(count >= 3 for count in stages)
    assert bool(stages) == (kilobytes >= 160)


@pytest.mark.parametrize("equation", ["ad,bd->ab", "bd,ad->ba", "db,ce->dbce", "be,dce->bdc"])
def test_pieces_of_blocks_beside_a_kept_operand_hold_every_column_once(equation: str) -> None:
    contraction = described(equation)
    for schedule in kept(contraction):
        cut = kept_cut(multiplied(contraction, schedule), schedule, H200)
        taken = [
            column
            for pieces in cut.pieces
            for piece in pieces
            for column in range(piece.axes[0].first, piece.axes[0].first + piece.tile)
        ]
        columns = multiplied(contraction, schedule).n
        assert taken[:columns] == list(range(columns)), str(schedule)
        assert len(taken) == len(set(taken)) < columns + 8, str(schedule)


def test_an_operand_is_kept_where_shared_memory_has_room_for_it() -> None:
    """328 columns are more than accumulators hold; rows of 1000 are more than shared memory."""
    assert {schedule.exchanged for schedule in kept(described("ad,bd->ab"))} == {True}
    assert not kept(described("af,bf->ab"))
    assert not kept(described("zad,zbd->zab"))


@pytest.mark.parametrize("equation", ["ad,bd->ab", "be,dce->bdc"])
def test_kept_operands_leave_room_for_a_ring(equation: str) -> None:
    for schedule in kept(described(equation)):
        tile_m, tile_n, tile_k = schedule.tile
        steps = -(-schedule.k.extent // tile_k)
        assert schedule.stages >= 2, str(schedule)
        slots = schedule.rings * schedule.stages
        assert (slots * tile_m + steps * tile_n) * tile_k * 2 < H200.shared_memory, str(schedule)


def test_workers_beside_a_kept_operand_have_as_many_warps_as_there_are_registers_for() -> None:
    """Accumulators of 320 columns take 160 registers of each thread, those of 80 take 40."""
    wide, narrow = (kept(described(text, extents=LARGE_AND_SMALL)) for text in ("ai,gi->ag", "ad,bd->ab"))
    assert {schedule.warps for schedule in wide} == {4}
    assert {schedule.warps for schedule in narrow} == {4, 8}
    assert all(schedule.tile[0] == 16 * schedule.warps for schedule in (*wide, *narrow))


def test_workers_have_a_ring_each_where_shared_memory_has_room() -> None:
    wide, narrow = (kept(described(text, extents=LARGE_AND_SMALL)) for text in ("ai,gi->ag", "ad,bd->ab"))
    assert {schedule.rings for schedule in wide} == {1}
    assert {schedule.rings for schedule in narrow} == {1, 2}


@pytest.mark.parametrize(
    ("equation", "extents", "runs"),
    [
        ("dabe,ec->dcba", {**dict.fromkeys("abde", 72), "c": 24}, {128: (16, 8), 64: (16, 4)}),  # 80 x 72 for 72 x 72
        ("chjd,bd->cbjh", LARGE_AND_SMALL, {128: (32, 4), 64: (32, 2)}),  # 32 x 40 for 21 x 40
        ("hjgd,bd->bjgh", {**LARGE_AND_SMALL, "h": 128}, {128: (128, 1), 64: (64, 1)}),  # nothing is left empty
    ],
    ids=["TCCG 5", "short", "whole"],
)
def test_boxes_span_two_runs_where_one_leaves_blocks_empty(
    equation: str, extents: dict[str, int], runs: dict[int, tuple[int, int]]
) -> None:
    contraction = described(equation, extents=extents)
    found = [schedule for schedule in kept(contraction) if nearest(schedule.a.outer, D) is not None]
    fullest: dict[int, KeptSchedule] = {}
    for schedule in found:
        other = fullest.get(schedule.tile[0])
        if other is None or block_count(contraction, schedule) < block_count(contraction, other):
            fullest[schedule.tile[0]] = schedule
    assert {tile: (tile // best.a.count, best.a.count) for tile, best in fullest.items()} == runs


@pytest.mark.parametrize("equation", ["chjd,bd->cbjh", "jchd,bd->hbcj"])
def test_rows_of_two_runs_are_every_row_once(equation: str) -> None:
    contraction = described(equation, extents=LARGE_AND_SMALL)
    seen = set()
    for schedule in kept(contraction):
        rows = kept_cut(contraction, schedule, H200).boxes.m
        block, lane = torch.arange(rows.blocks)[:, None], torch.arange(rows.tile)[None, :]
        row, inside = torch.zeros(()), torch.ones((), dtype=torch.bool)
        for axis in rows.axes:
            index = block // axis.pitch % axis.blocks * axis.step + lane // axis.inner % axis.tile
            row, inside = row * axis.extent + index, inside & (index < axis.extent)
        taken = row.expand(rows.blocks, rows.tile)[inside.expand(rows.blocks, rows.tile)]
        assert sorted(taken.tolist()) == list(range(contraction.m)), str(schedule)
        seen.add(schedule.a.count)
    assert len(seen) > 1


@pytest.mark.parametrize(
    ("equation", "extents"),
    [("ae,dcbe->dcba", dict.fromkeys("abcde", 72)), ("cda,bd->cba", {"a": 312, "b": 296, "c": 296, "d": 312})],
    ids=["TCCG 9", "TCCG 18"],
)
def test_functions_hide_behind_memory_where_an_operand_is_kept(equation: str, extents: dict[str, int]) -> None:
    """The model's choice for a large operand and a result with an ELU each."""
    elu = torch.nn.functional.elu
    plain = described(equation, extents=extents)
    large = "b_fn" if plain.n > plain.m else "a_fn"
    fused = replace(plain, epilogue=trace(elu, (torch.float32,)), **{large: trace(elu, (torch.float16,))})
    best = min(specialised.schedules(fused, H200).schedules, key=lambda s: specialised.predict(fused, s, H200))
    assert isinstance(best, KeptSchedule)
    assert specialised.predict(fused, best, H200) < 1.1 * specialised.predict(plain, best, H200)


@pytest.mark.parametrize(
    ("equation", "operand", "of_a_ring"),
    [("ad,bd->ab", "b", {0, 1, 2}), ("af,bf->ab", "b", {0, 1, 2}), ("cebf,af->bcea", "a", {0, 1, 2, 4})],
)
def test_appliers_of_a_ring_never_take_one_round_for_another(equation: str, operand: str, of_a_ring: set[int]) -> None:
    """A barrier tells a round of its slot from the next, but not from the one after that: each applier must meet it in
    every round of the barrier."""
    contraction = replace(described(equation), **{f"{operand}_fn": trace(torch.relu, (torch.float16,))})
    seen = set()
    for schedule in shared(contraction):
        cut = specialised_cut(multiplied(contraction, schedule), schedule, H200)
        appliers = cut.roles.appliers // schedule.workers.rings_of_columns  # of a ring
        barriers = cut.rounds * cut.stages
        for barrier in range(barriers if appliers else 0):
            met_by = {position % appliers for position in range(barrier, 10 * barriers, barriers)}
            assert len(met_by) == 1, str(schedule)
        seen.add(appliers)
    assert seen == of_a_ring


@pytest.mark.parametrize("operands", ["", "ab"])
@pytest.mark.parametrize("equation", ["ad,bd->ab", "af,bf->ab", "cebf,af->bcea"])
def test_rings_fit_in_shared_memory(equation: str, operands: str) -> None:
    relu = trace(torch.relu, (torch.float16,))
    for schedule in shared(replace(described(equation), **{f"{operand}_fn": relu for operand in operands})):
        tile_m, tile_n, tile_k = schedule.tile
        workers = schedule.workers
        assert schedule.stages >= 2, str(schedule)
        slots = workers.rings * schedule.stages * (tile_m + workers.abreast * tile_n) * tile_k * 2
        staging = staging_bytes(schedule.rows, workers.buffers)
        if workers == IN_PLACE:
            assert slots < H200.shared_memory, str(schedule)
            assert staging <= WORKERS * tile_m * tile_k * 2, str(schedule)  # a slot of each worker has room for it
        else:
            assert slots + staging < H200.shared_memory, str(schedule)


def test_runs_that_d_does_not_have_are_not_offered() -> None:
    """A has `c` next to `a`, and D has `b` between them: a box of D cannot span a run of both."""
    contraction = described("dca,bd->cba")
    found = specialised.schedules(contraction, H200)
    assert any("D does not lie in boxes" in sentence for sentence in found.excluded)
    runs = {s.b.outer if s.exchanged else s.a.outer for s in shared(contraction) if s.splits == 1}
    assert {len(run) for run in runs} == {1}


# Warps of a program, those included that fill up a group of four, and registers of a thread that multiplies.
ROLES = {
    "kept by eight warps": (20, 112),
    "appliers": (20, 144),
    "appliers in turns": (20, 168),
    "appliers side by side": (28, 128),
    "in place": (20, 192),
    "in place, one part": (20, 192),
    "in place, across k": (20, 192),
}


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
        warps, registers = ROLES.get(name, (12, 240))
        loading = 32 if "in place" in name else 24
        assert found["warps"] == warps, name
        assert {loading, registers} <= set(found["register roles"]), name  # type: ignore[call-overload]
        assert found["shared"] <= H200.shared_memory, name  # type: ignore[operator]


def plus_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1  # not zero at zero: what is read past the end of a sum must be masked


def check(
    contraction: Contraction,
    operands: str,  # those with the function
    function: Callable[[torch.Tensor], torch.Tensor] | None,
    choose: Callable[[Sequence[Schedule]], Sequence[Schedule]],
) -> None:
    """That schedules are right, and right again. Of small integers, so that results are exact whatever the order of
    summation; D starts as NaN."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no device of compute capability 9.0")
    generator = torch.Generator("cuda").manual_seed(0)
    a, b = (
        torch.randint(-3, 4, layout.shape, generator=generator, device="cuda").to(layout.dtype)
        for layout in (contraction.a, contraction.b)
    )
    x, y = a.double(), b.double()
    if function is not None:
        functions = {f"{operand}_fn": trace(function, (a.dtype,)) for operand in operands}
        contraction = replace(contraction, **functions)
        x, y = (function(value) if operand in operands else value for operand, value in (("a", x), ("b", y)))
    expected = (2 * torch.einsum(contraction.text, x, y)).to(contraction.d.dtype).contiguous()  # as D lies
    chosen = choose(specialised.schedules(contraction, H200).schedules)
    assert chosen
    for schedule in chosen:
        launch = specialised.build(contraction, schedule, H200)
        results = [torch.full_like(expected, float("nan")) for _ in range(2)]
        for d in results:
            launch(a, b, None, d, 2.0, 0.0)
        assert torch.equal(results[0], expected), str(schedule)
        assert torch.equal(results[0], results[1]), str(schedule)


def some(at: int) -> Callable[[Sequence[Schedule]], Sequence[Schedule]]:
    """A quarter of the kinds of schedules with rings, others with other numbers: compiling takes long."""

    def choose(found: Sequence[Schedule]) -> Sequence[Schedule]:
        shared = [s for s in found if isinstance(s, SpecialisedSchedule)]
        one_of_each = list({(s.tile, s.workers, s.exchanged, s.splits > 1): s for s in shared}.values())
        return one_of_each[at % 4 :: 4]

    return choose


def those_that_keep(found: Sequence[Schedule]) -> Sequence[Schedule]:
    return [schedule for schedule in found if isinstance(schedule, KeptSchedule)]


@pytest.mark.gpu
@pytest.mark.parametrize(
    "equation",
    [
        *("ad,bd->ab", "da,db->ba", "dca,bd->cba", "zad,zdb->zab", "ceda,dbe->cba", "af,bf->ab", "cebf,af->bcea"),
        "cegf,af->gcea",  # few blocks: pairs of them share sums
    ],
)
@pytest.mark.parametrize(
    ("operands", "function"),
    [("", None), ("a", torch.relu), ("a", plus_one), ("b", plus_one), ("ab", torch.relu), ("ab", plus_one)],
)
def test_every_schedule_computes_the_product(
    equation: str, operands: str, function: Callable[[torch.Tensor], torch.Tensor] | None
) -> None:
    check(described(equation), operands, function, some(len(equation)))


def those_in_place(found: Sequence[Schedule]) -> Sequence[Schedule]:
    """One of each kind."""
    chosen = [s for s in found if isinstance(s, SpecialisedSchedule) and s.workers == IN_PLACE]
    return list({(s.tile, s.exchanged, s.splits > 1): s for s in chosen}.values())


@pytest.mark.gpu
@pytest.mark.parametrize("equation", ["ad,bd->ab", "da,db->ba", "dca,cbd->ba"])
def test_a_worker_without_rows_lets_boxes_pass(equation: str) -> None:
    """The last block of rows ends before those of its second worker begin."""
    check(described(equation, extents={**EXTENTS, "a": 304, "b": 312}), "ab", plus_one, those_in_place)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("equation", ["ad,bd->ab", "da,db->ba"])
def test_results_of_two_bytes(equation: str, dtype: torch.dtype) -> None:
    check(described(equation, dtype, out=dtype), "a", plus_one, some(len(equation)))


@pytest.mark.gpu
@pytest.mark.parametrize(
    "equation",
    [
        "ad,bd->ab", "bd,ad->ba", "da,db->ba", "ad,hd->ah", "ae,be->ab", "aj,hj->ha", "ai,gi->ag", "ia,gi->ga",
        "ag,ig->ia", "cdi,gd->cgi", "caj,cbj->ab", "chjd,bd->cbjh", "jchd,bd->hbcj",
    ],
)  # fmt: skip
@pytest.mark.parametrize(("operands", "function"), [("", None), ("a", torch.relu), ("ab", plus_one)])
def test_a_kept_operand_meets_all_rows(
    equation: str, operands: str, function: Callable[[torch.Tensor], torch.Tensor] | None
) -> None:
    check(described(equation, extents=LARGE_AND_SMALL), operands, function, those_that_keep)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("equation", ["ad,gd->ag", "da,db->ba", "aj,hj->ah"])
def test_results_of_two_bytes_beside_a_kept_operand(equation: str, dtype: torch.dtype) -> None:
    check(described(equation, dtype, extents=LARGE_AND_SMALL, out=dtype), "ab", plus_one, those_that_keep)
