"""What warp-specialized kernels compute on a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

import weft
from gpu.warp_specialized_cases import H200, LARGE_AND_SMALL, described, plus_one
from weft import reference
from weft.engine.ways import each_of
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


SHARES = {"z": 3, "a": 256, "b": 336, "c": 3, "d": 144, "e": 24, "f": 2000, "n": 333, "p": 170}


def check_finished(equation: str, dtype: torch.dtype, *, c: str = "", beta: float = 1.0, **options: Any) -> None:
    """As `check`, of calls whose epilogue takes more than the sum; `c` are the modes of an addend, none where empty."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no device of compute capability 9.0")
    generator = torch.Generator("cuda").manual_seed(0)
    terms, result = equation.split("->")[0].split(","), equation.split("->")[1]
    out, *further = each_of(options["out_dtype"])

    def integers(labels: str, kind: torch.dtype) -> torch.Tensor:
        shape = [SHARES[label] for label in labels]
        return torch.randint(-3, 4, shape, generator=generator, device="cuda").to(kind)

    a, b = (integers(term, dtype) for term in terms)
    if c:
        shape = [SHARES[label] if label in c else 1 for label in result]
        options["c"] = integers(c, out).view(shape)
    if "operands" in options:
        options["operands"] = {name: (modes, integers(modes, out)) for name, modes in options["operands"].items()}
    given = options.get("operands", {})
    plan = weft.plan(equation, a, b, backend="triton", **options)
    contraction = plan.contraction
    wide = [x.double() if x.dtype.itemsize == 1 and x.dtype.is_floating_point else x for x in (a, b)]
    exact = {name: value for name, value in options.items() if name != "precision"}
    expected = each_of(reference.contract(equation, *wide, alpha=2, beta=beta, **exact))
    addend = options["c"].expand(expected[0].shape) if c else None
    beside = [each.name for each in contraction.aux if each.kind != "output"]
    operands = [given[name][1] if name in given else None for name in beside]
    found = warp_specialized.schedules(contraction, H200).schedules
    chosen = list({(s.consumers, s.swap_ab, s.splits > 1): s for s in found if isinstance(s, WsSchedule)}.values())
    assert chosen
    for schedule in chosen[:4]:
        launch = warp_specialized.build(contraction, schedule, H200)
        results = [poison(value.shape, kind) for value, kind in zip(expected, (out, *further), strict=True)]
        launch(a, b, addend, results[0], 2, beta, (*operands, *results[1:]))
        for value, wanted in zip(results, expected, strict=True):
            assert torch.equal(value.double(), wanted.to(value.dtype).double()), str(schedule)


def poison(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.full(shape, float("nan") if dtype.is_floating_point else 77, dtype=dtype, device="cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("equation", ["ad,bd->ab", "da,db->ba", "zad,zdb->zab", "ceda,dbe->cba", "af,bf->ab"])
@pytest.mark.parametrize("row", [False, True])
def test_c_is_added(equation: str, dtype: torch.dtype, row: bool) -> None:
    result = equation.split("->")[1]
    check_finished(equation, dtype, c=result[-1] if row else result, beta=-0.5, out_dtype=dtype, c_fn=plus_one)


@pytest.mark.gpu
@pytest.mark.parametrize("equation", ["ad,bd->ab", "zad,zdb->zab", "af,bf->ab"])
def test_the_epilogue_takes_operands_and_coordinates_and_yields_several_results(equation: str) -> None:
    def two(value: Any, bias: Any, m: Any) -> Any:
        return torch.relu(value + bias), value - bias + m

    modes = equation.split("->")[1]
    check_finished(
        equation, torch.float16, out_dtype=(torch.float32, torch.float32), epilogue=two,
        operands={"bias": modes[::-1]}, indices={"m": modes[-2]},
    )  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("equation", ["ad,bd->ab", "zad,zbd->zab", "af,bf->ab"])
@pytest.mark.parametrize(
    ("dtype", "out", "precision"),
    [(torch.int8, torch.int32, None), (torch.float8_e4m3fn, torch.float32, torch.float8_e4m3fn),
     (torch.float32, torch.float32, "tf32")],
)  # fmt: skip
def test_products_of_other_types(
    equation: str, dtype: torch.dtype, out: torch.dtype, precision: Any, adds: bool
) -> None:
    options = {} if precision is None else {"precision": precision}
    check_finished(equation, dtype, c=equation.split("->")[1] if adds else "", out_dtype=out, **options)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "equation",
    [
        *("ad,nd->an", "nd,ad->an", "ad,pd->ap", "zad,znd->zan"),  # rows start at any element, or at every other one
        *("zad,znd->azn", "cad,nd->acn", "cade,nde->acn"),  # modes of D are in another order
    ],
)
@pytest.mark.parametrize(
    ("dtype", "out"),
    [(torch.float16, torch.float16), (torch.float16, torch.float32), (torch.bfloat16, torch.bool),
     (torch.int8, torch.int32)],
)  # fmt: skip
def test_a_result_that_tma_cannot_store(equation: str, dtype: torch.dtype, out: torch.dtype) -> None:
    result = equation.split("->")[1]
    if out is torch.bool:
        check_finished(equation, dtype, out_dtype=out, epilogue=lambda value: value > 0)
    else:
        check_finished(equation, dtype, c=result, beta=2.0, out_dtype=out)
