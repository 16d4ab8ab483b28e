"""Warp-specialized kernels: what they refuse, how output tiles are shared, and what they compile to."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
import triton

from gpu.reporting import PARTS, Report
from gpu.warp_specialized_cases import EXTENTS, H200, described, pipelined
from weft.fn import trace
from weft.gpu.warp_specialized import family as warp_specialized
from weft.gpu.warp_specialized.model import ws_params
from weft.gpu.warp_specialized.pipeline import output_tile_of
from weft.gpu.warp_specialized.schedule import COOPERATIVE, PAIRED_N, PINGPONG, WsSchedule, roles, staging_bytes
from weft.gpu.warp_specialized.stationary_model import StationarySchedule
from weft.gpu.warp_specialized.views import in_kernel_order, n_parts, split_counts, swap_ab
from weft.planner.schedule import Target
from weft.spec import Contraction

pytestmark = pytest.mark.early

NEW_ASSEMBLER = triton.__version__.startswith("3.9.")  # of CUDA 13.4, for sm_90 too
SERIALIZED_SINCE_39 = ("transformers pingpong",) if NEW_ASSEMBLER else ()


def reason(contraction: Contraction, target: Target = H200) -> str:
    found = warp_specialized.supports(contraction, target)
    assert found is not None
    return found


def test_takes_what_tma_loads_on_hopper() -> None:
    assert warp_specialized.supports(described("ad,bd->ab"), H200) is None


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
    byte, relu = torch.int8, trace(torch.relu, (torch.int8,))
    assert "float32" in reason(described("ad,bd->ab", torch.float32))
    assert "float64" in reason(described("ad,bd->ab", torch.float64))
    assert "float64" in reason(described("ad,bd->ab", out=torch.float64))
    assert "functions" in reason(replace(described("ad,bd->ab", byte, out=torch.int32), a_fn=relu))


def test_what_is_added_is_read_in_pipelines_alone() -> None:
    plain = described("ad,bd->ab")
    for contraction, kinds in (plain, {WsSchedule, StationarySchedule}), (replace(plain, c=plain.d), {WsSchedule}):
        assert {type(each) for each in warp_specialized.schedules(contraction, H200).schedules} == kinds


@pytest.mark.parametrize(("dtype", "precision"), [(torch.float32, "tf32"), (torch.int8, None)])
def test_operands_of_other_than_two_bytes_are_read_along_k_only(dtype: torch.dtype, precision: str | None) -> None:
    """Their matrix instructions take both operands along k from shared memory."""
    out = torch.int32 if dtype is torch.int8 else dtype
    extents = EXTENTS | {"a": 256, "b": 256, "d": 144}
    assert pipelined(described("ad,bd->ab", dtype, precision, extents, out))
    assert not pipelined(described("da,db->ab", dtype, precision, extents, out))


@pytest.mark.parametrize(
    ("equation", "extents"),
    [
        ("dac,bcd->ba", {"a": 40, "b": 48, "c": 24, "d": 16}),  # both along k
        ("ad,bd->ab", {"a": 40, "b": 48, "d": 36}),  # rows of 72 bytes
    ],
)
def test_what_tma_cannot_load(equation: str, extents: dict[str, int]) -> None:
    found = warp_specialized.schedules(described(equation, extents=extents), H200)
    assert not found.schedules
    assert any("has no tiles that TMA can load" in sentence for sentence in found.excluded)


@pytest.mark.parametrize(
    ("columns", "found"), [(256, (256,)), (320, (256, 64)), (80, (64, 16)), (72, (64, 8)), (192, (128, 64))]
)
def test_a_tile_is_the_sum_of_powers_of_two(columns: int, found: tuple[int, ...]) -> None:
    assert n_parts(columns) == found


def test_sums_have_as_many_partials_as_the_device_holds_at_once() -> None:
    """72 output tiles of 81 steps for 264 consumers: 3 partials each take one round, 4 a second one for a few."""
    found = split_counts(81, 72, 264)
    assert max(count for count in found if 72 * count <= 264) == 3
    assert 4 in found
    assert split_counts(8, 132, 132) == [2]  # every tile has an SM: the device is filled twice, or not at all


def test_no_partial_of_a_sum_is_without_steps() -> None:
    contraction = described("dca,cbd->ba", extents={"a": 312, "b": 296, "c": 296, "d": 312})
    split = [each for each in pipelined(contraction) if each.splits > 1 and not each.stream_k]
    assert split
    for schedule in split:
        params = ws_params(in_kernel_order(contraction, schedule), schedule, H200).tma
        assert params.steps * (schedule.splits - 1) < params.k.blocks or not params.k.exact, str(schedule)


def test_functions_of_both_operands_are_applied_in_pipelines_and_to_a_stationary_operand() -> None:
    relu = trace(torch.relu, (torch.float16,))
    small, large = (replace(described(text), a_fn=relu, b_fn=relu) for text in ("ad,bd->ab", "af,bf->ab"))
    assert {type(schedule) for schedule in warp_specialized.schedules(small, H200).schedules} == {
        WsSchedule,
        StationarySchedule,
    }
    assert {type(schedule) for schedule in warp_specialized.schedules(large, H200).schedules} == {WsSchedule}


@pytest.mark.parametrize("equation", ["ad,bd->ab", "dca,bd->cba", "af,bf->ab", "cebf,af->bcea"])
def test_consumers_share_every_output_tile_without_gap_or_overlap(equation: str) -> None:
    contraction = described(equation)
    for schedule in pipelined(contraction):
        params = ws_params(in_kernel_order(contraction, schedule), schedule, H200)
        tile_m, tile_n, _ = schedule.tile
        owners = torch.zeros(2, tile_m, tile_n, dtype=torch.int64)
        for consumer, accumulators in enumerate(params.accumulators):
            for accumulator in accumulators:
                for subtile in accumulator.subtiles:
                    rows = slice(subtile.row, subtile.row + subtile.m.tile)
                    columns = slice(subtile.column, subtile.column + subtile.n.tile)
                    owners[consumer, rows, columns] += 1
        taken = owners.sum(0) if schedule.consumers.m_parts == 2 else owners
        assert (taken == 1).all(), str(schedule)


@pytest.mark.parametrize("equation", ["ad,bd->ab", "ceda,dbe->cba", "cebf,af->bcea"])
def test_every_partial_of_every_output_tile_is_one_consumers_work_tile(equation: str) -> None:
    contraction = described(equation)
    seen = set()
    for schedule in pipelined(contraction):
        if schedule.stream_k:
            continue  # `test_split_k` looks at those
        params = ws_params(in_kernel_order(contraction, schedule), schedule, H200)
        every_work_tile = product(range(params.tiles * params.tma.splits), range(schedule.consumers.n_tiles))
        taken = [output_tile_of.fn(work_tile, params, consumer) for work_tile, consumer in every_work_tile]
        every = product(range(params.tma.splits), range(params.tma.blocks))
        assert sorted(taken) == list(every), str(schedule)
        seen.add(schedule.consumers)
    assert {COOPERATIVE, PINGPONG} <= seen
    assert (PAIRED_N in seen) == (equation == "cebf,af->bcea")


def test_output_tiles_that_are_taken_at_once_are_of_the_same_rows() -> None:
    """One row of tiles after the other, and an even number in each: two neighbours are never of different rows."""
    contraction = described("cebf,af->bcea")
    for schedule in pipelined(contraction):
        if schedule.consumers == PAIRED_N:
            tma = ws_params(in_kernel_order(contraction, schedule), schedule, H200).tma
            assert (tma.group, tma.n.blocks % 2) == (1, 0), str(schedule)


def test_few_pairs_of_output_tiles_are_split_and_an_odd_number_is_not_taken_in_pairs() -> None:
    pairs = [s for s in pipelined(described("cegf,af->gcea")) if s.consumers == PAIRED_N]
    split = {schedule.splits > 1 for schedule in pairs}
    assert split == {False, True}
    odd = described("cegf,af->gcea", extents={**EXTENTS, "g": 7})
    assert not [schedule for schedule in pipelined(odd) if schedule.consumers == PAIRED_N]
    excluded = warp_specialized.schedules(swap_ab(odd), H200).excluded
    assert "output tiles along n are odd in number: they cannot be taken two at once" in excluded


def test_transformers_are_as_many_as_have_registers_for_whole_tiles() -> None:
    relu = trace(torch.relu, (torch.float16,))
    columns, both = (
        replace(described("af,bf->ab"), **dict.fromkeys(names, relu)) for names in (["b_fn"], ["a_fn", "b_fn"])
    )
    assert roles(described("af,bf->ab"), (128, 80, 64), COOPERATIVE).transformers == 0
    assert roles(columns, (128, 80, 64), COOPERATIVE).transformers == 4
    assert roles(columns, (128, 80, 64), PAIRED_N).transformers == 4
    assert roles(columns, (128, 160, 64), COOPERATIVE).transformers == 2
    assert roles(both, (128, 320, 64), COOPERATIVE) is None


@pytest.mark.parametrize(
    ("equation", "operand", "counts"),
    [("ad,bd->ab", "b", {0, 1, 2}), ("af,bf->ab", "b", {0, 1, 2}), ("cebf,af->bcea", "a", {0, 1, 2, 4})],
)
def test_transformers_never_take_one_round_of_a_pipeline_for_another(
    equation: str, operand: str, counts: set[int]
) -> None:
    """A barrier tells a round of its stage from the next, but not from the one after that: each transformer must meet
    it in every round of the barrier."""
    contraction = replace(described(equation), **{f"{operand}_fn": trace(torch.relu, (torch.float16,))})
    seen = set()
    for schedule in pipelined(contraction):
        params = ws_params(in_kernel_order(contraction, schedule), schedule, H200)
        transformers = params.roles.transformers // schedule.consumers.b_pipelines  # of a pipeline
        barriers = params.rounds * params.stages
        for barrier in range(barriers if transformers else 0):
            met_by = {position % transformers for position in range(barrier, 10 * barriers, barriers)}
            assert len(met_by) == 1, str(schedule)
        seen.add(transformers)
    assert seen == counts


@pytest.mark.parametrize("operands", ["", "ab"])
@pytest.mark.parametrize("equation", ["ad,bd->ab", "af,bf->ab", "cebf,af->bcea"])
def test_pipelines_fit_in_shared_memory(equation: str, operands: str) -> None:
    relu = trace(torch.relu, (torch.float16,))
    for schedule in pipelined(replace(described(equation), **{f"{operand}_fn": relu for operand in operands})):
        tile_m, tile_n, tile_k = schedule.tile
        consumers = schedule.consumers
        assert schedule.stages >= 2, str(schedule)
        pipelines = consumers.pipelines * schedule.stages * (tile_m + consumers.n_tiles * tile_n) * tile_k * 2
        staging = staging_bytes(schedule.rows, consumers.buffers)
        assert pipelines + staging < H200.shared_memory, str(schedule)


def test_runs_that_d_does_not_have_are_stored_through_pointers() -> None:
    """A has `c` next to `a`, and D has `b` between them: TMA stores tiles of rows along `a` alone."""
    contraction = described("dca,bd->cba")
    whole = [s for s in pipelined(contraction) if s.splits == 1]
    runs = {(len((s.b if s.swap_ab else s.a).outer), s.word) for s in whole}
    assert runs == {(1, 0), (2, 4)}


# One of each: pipelines, transformers that share output tiles, an operand that stays, what is added, two number types.
FEW = ("stationary fused twice", "stream_k", "C and a bias", "int8 pingpong")
READ_BESIDE = ("C and a bias", "C and a bias pingpong", "bias and its products")  # what the epilogue takes
# Warps of a program, those included that fill up a group of four, and registers of a thread that multiplies.
ROLES = {
    "stationary by eight warps": (20, 112),
    "transformers": (20, 144),
    "transformers pingpong": (20, 168),
    "transformers paired_n": (28, 128),
    "stream_k": (28, 80),
    "stream_k paired_n": (28, 128),
}


@pytest.fixture(scope="module", params=PARTS)
def report(request: pytest.FixtureRequest) -> Report:
    return Report("warp_specialized_report.py", FEW, request.param)


def test_products_run_on_the_tensor_cores_one_after_the_other_without_a_pause(
    report: Report,
) -> None:
    for name, found in report.items():
        assert found["wgmma"], name
        assert found["cp.async.bulk"], name
        assert not found["serialized"] or name in SERIALIZED_SINCE_39, name
        assert bool(found["ld.global"]) == (name in READ_BESIDE), name


@pytest.mark.slow
@pytest.mark.xfail(
    NEW_ASSEMBLER, strict=True,
    reason="Triton 3.8 copies A in registers for each product, and the assembler of 3.9 does not merge the copies",
)  # fmt: skip
@pytest.mark.parametrize("name", ["transformers pingpong"])
def test_two_parts_of_a_tile_share_the_registers_of_a(report: Report, name: str) -> None:
    assert not report[name]["serialized"]


def test_nothing_spills(report: Report) -> None:
    for name, found in report.items():
        assert not found["local"], name
        assert not found["spilled"], name


def test_stages_are_given_back_when_all_threads_are_done_with_them(report: Report) -> None:
    """One thread arrives for its role. Whether the compiler has all meet before differs from Triton to Triton."""
    for name, found in report.items():
        assert found["unmet"] == found["unfenced"] == found["unread"] == 0, name


def test_no_uniform_register_is_read_that_nothing_wrote(report: Report) -> None:
    for name, found in report.items():
        assert found["unwritten"] == [], name


def test_registers_go_to_the_warps_that_multiply(report: Report) -> None:
    for name, found in report.items():
        warps, registers = ROLES.get(name, (12, 240))
        assert found["warps"] == warps, name
        assert {24, registers} <= set(found["register roles"]), name
        assert found["shared"] <= H200.shared_memory, name
