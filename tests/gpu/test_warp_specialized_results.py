"""What warp-specialized kernels compute on a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch

from gpu.warp_specialized_cases import H200, LARGE_AND_SMALL, described, plus_one
from weft.fn import trace
from weft.gpu.warp_specialized import family as warp_specialized
from weft.gpu.warp_specialized.schedule import WsSchedule
from weft.gpu.warp_specialized.stationary_model import StationarySchedule
from weft.planner.schedule import Schedule
from weft.spec import Contraction


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
    chosen = choose(warp_specialized.schedules(contraction, H200).schedules)
    assert chosen
    for schedule in chosen:
        launch = warp_specialized.build(contraction, schedule, H200)
        results = [torch.full_like(expected, float("nan")) for _ in range(2)]
        for d in results:
            launch(a, b, None, d, 2.0, 0.0)
        assert torch.equal(results[0], expected), str(schedule)
        assert torch.equal(results[0], results[1]), str(schedule)


def some(at: int) -> Callable[[Sequence[Schedule]], Sequence[Schedule]]:
    """A quarter of the kinds of schedules with pipelines, others with other numbers: compiling takes long."""

    def choose(found: Sequence[Schedule]) -> Sequence[Schedule]:
        pipelined = [s for s in found if isinstance(s, WsSchedule)]
        one_of_each = list({(s.tile, s.consumers, s.swap_ab, s.splits > 1): s for s in pipelined}.values())
        return one_of_each[at % 4 :: 4]

    return choose


def stationary_ones(found: Sequence[Schedule]) -> Sequence[Schedule]:
    return [schedule for schedule in found if isinstance(schedule, StationarySchedule)]


@pytest.mark.gpu
@pytest.mark.parametrize(
    "equation",
    [
        *("ad,bd->ab", "da,db->ba", "dca,bd->cba", "zad,zdb->zab", "ceda,dbe->cba", "af,bf->ab", "cebf,af->bcea"),
        "cegf,af->gcea",  # few output tiles: pairs of them are split
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


def with_stream_k(found: Sequence[Schedule]) -> Sequence[Schedule]:
    """One of each kind."""
    chosen = [s for s in found if isinstance(s, WsSchedule) and s.stream_k]
    return list({(s.consumers, s.swap_ab): s for s in chosen}.values())


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("equation", "extents"),
    [
        ("ceda,bed->cba", dict.fromkeys("abcde", 72)),  # tiles are larger than what there is, and taken in pairs
        ("da,bd->ab", {"a": 1000, "b": 328, "d": 5000}),  # the last rows and columns are not all there
    ],
)
@pytest.mark.parametrize(("operands", "function"), [("", None), ("a", plus_one), ("b", plus_one)])
def test_stream_k_cuts_sums_end_to_end(
    equation: str, extents: dict[str, int], operands: str, function: Callable[[torch.Tensor], torch.Tensor] | None
) -> None:
    check(described(equation, extents=extents), operands, function, with_stream_k)


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
def test_a_stationary_operand_meets_all_rows(
    equation: str, operands: str, function: Callable[[torch.Tensor], torch.Tensor] | None
) -> None:
    check(described(equation, extents=LARGE_AND_SMALL), operands, function, stationary_ones)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("equation", ["ad,gd->ag", "da,db->ba", "aj,hj->ah"])
def test_results_of_two_bytes_beside_a_stationary_operand(equation: str, dtype: torch.dtype) -> None:
    check(described(equation, dtype, extents=LARGE_AND_SMALL, out=dtype), "ab", plus_one, stationary_ones)
