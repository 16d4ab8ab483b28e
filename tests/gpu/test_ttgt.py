"""Operands packed first: what is proposed, what it costs, and that it computes the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import weft
from weft.fn import trace
from weft.gpu.common.tiling import by_stride
from weft.gpu.composite import packing as packing
from weft.gpu.composite import ttgt
from weft.gpu.composite.packing import applied, matrix
from weft.gpu.permute import family as permute
from weft.planner.coefficients import fitted
from weft.planner.planner import choose
from weft.planner.program import SLOT_D, SlotKind
from weft.planner.schedule import ResourceError, Target
from weft.spec import Contraction, Layout, Role, canonical
from weft.spec.contraction import class_modes
from weft.spec.dtypes import resolve
from weft.spec.notation import parse

H200 = Target("cuda", 0, "NVIDIA H200", 90, 132, 232448)
INTERPRETER = Target("interpreter", 0, "Triton interpreter", 90, 4, 232448)
LARGE = dict.fromkeys("abcdef", 72)
SMALL = {"a": 8, "b": 5, "c": 8, "d": 7, "e": 8, "f": 16}


def described(equation: str, extents: dict[str, int], dtype: torch.dtype = torch.float16) -> Contraction:
    notation = parse(equation)
    a, b = (Layout.contiguous([extents[label] for label in term], dtype) for term in notation.inputs)
    d = Layout.contiguous([extents[label] for label in notation.output], torch.float32)
    modes = class_modes(notation, a, b, None, d, extents)
    return canonical(Contraction(modes, a, b, None, d, resolve(dtype, dtype), text=equation))


def test_what_gathering_would_repeat_is_packed() -> None:
    """TCCG 24: TMA tiles fit neither operand, and each element is used 5184 times."""
    choice = choose(described("fdea,ecfb->dcba", LARGE), "triton", H200)
    best = choice.best.schedule
    assert best.family == "ttgt"
    # Both operands as matrices of 5184 x 5184 in half precision.
    assert best.workspace_bytes >= 2 * 5184 * 5184 * 2
    assert "ttgt A as" in str(best)


def test_what_each_block_reads_once_is_not() -> None:
    """TCCG 4: one pass over A costs as much as the whole product."""
    extents = {"a": 72, "b": 24, "c": 72, "d": 72, "e": 72}
    assert choose(described("aced,eb->dcba", extents), "triton", H200).best.schedule.family != "ttgt"


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_schedules_say_where_an_operand_is_copied_whole(dtype: torch.dtype) -> None:
    """D is small: what else needs as much memory as an operand are partials of split-K."""
    contraction = described("abc,cad->bd", {"a": 512, "b": 130, "c": 256, "d": 130}, dtype)
    whole = 512 * 130 * 256 * dtype.itemsize
    packed = 0
    for ranked in choose(contraction, "triton", H200).ranked:
        text, workspace = str(ranked.schedule), ranked.schedule.workspace_bytes
        copied = "ttgt" in text and "nothing packed" not in text
        packed += copied
        assert workspace >= whole if copied else workspace < whole or "split_k" in text, text
    assert packed


def test_a_limit_on_workspace_is_kept() -> None:
    choice = choose(described("fdea,ecfb->dcba", LARGE), "triton", H200, workspace_limit=1 << 20)
    assert all(ranked.schedule.workspace_bytes <= 1 << 20 for ranked in choice.ranked)


@pytest.mark.parametrize("equation", ["fdea,ecfb->dcba", "dac,bcd->ba", "fbea,ecfd->dcba"])
@pytest.mark.parametrize("function", [None, "a_fn", "b_fn"])
def test_every_way_computes_the_product(equation: str, function: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ttgt, "LEAST_FLOPS", 1)
    contraction = described(equation, SMALL)
    if function is not None:
        contraction = replace(contraction, **{function: trace(torch.relu, (torch.float16,))})
    assert ttgt.supports(contraction, INTERPRETER) is None
    found = ttgt.schedules(contraction, INTERPRETER).schedules
    by_text = {str(s).partition("; ")[0]: s for s in found}
    assert len(by_text) > 2
    generator = torch.Generator().manual_seed(0)
    terms = equation.split("->")[0].split(",")
    a, b = (torch.randint(-4, 5, [SMALL[i] for i in term], generator=generator).half() for term in terms)
    x, y = (t.relu() if function == name else t for name, t in (("a_fn", a), ("b_fn", b)))
    expected = torch.einsum(equation, x.double(), y.double())
    for schedule in list(by_text.values())[:4]:
        d = torch.full(expected.shape, float("nan"))
        ttgt.build(contraction, schedule, INTERPRETER)(a, b, None, d, 1.0, 0.0)
        assert torch.equal(d.double(), expected), str(schedule)


def test_an_expanded_operand_is_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row of A is the same one in memory; a product that reads rows needs them there."""
    monkeypatch.setattr(ttgt, "LEAST_FLOPS", 1)
    row, b = torch.randint(-4, 5, (1, 24)).half(), torch.randint(-4, 5, (24, 40)).half()
    a = row.expand(40, 24)
    notation, extents = parse("mk,kn->mn"), {"m": 40, "k": 24, "n": 40}
    layouts = Layout.of(a), Layout.of(b), Layout.contiguous((40, 40), torch.float32)
    modes = class_modes(notation, layouts[0], layouts[1], None, layouts[2], extents)
    contraction = canonical(Contraction(modes, layouts[0], layouts[1], None, layouts[2], resolve(a.dtype, b.dtype)))
    found = [s for s in ttgt.schedules(contraction, INTERPRETER).schedules if packs(s, 0)]
    assert found
    for schedule in found[:3]:
        assert schedule.workspace_bytes >= 40 * 24 * 2
        d = torch.full((40, 40), float("nan"))
        ttgt.build(contraction, schedule, INTERPRETER)(a, b, None, d, 1.0, 0.0)
        assert torch.equal(d, a.float() @ b.float()), str(schedule)


def test_an_operand_between_words_is_brought_to_one() -> None:
    """Its rows are a matrix already, but neither TMA nor a fast kernel of the library reads them from there."""
    contraction = described("mk,nk->mn", {"m": 2048, "k": 2048, "n": 2048})
    moved = replace(contraction, a=contraction.a._replace(alignment=2))
    assert "A as" not in str(choose(contraction, "triton", H200).best.schedule)
    assert "ttgt A as" in str(choose(moved, "triton", H200).best.schedule)


def packed_alone(equation: str, extents: dict[str, int]) -> list[str]:
    """What is packed for its rows alone."""
    pairs = packing.packings(described(equation, extents), by_tma=True)
    found = {name: each for pair in pairs for name, each in zip("AB", pair, strict=True) if each is not None}
    return [name for name, each in found.items() if each.permutation.text == "stored with padded rows"]


def test_long_rows_start_at_lines_of_memory() -> None:
    """TCCG 13: rows of 624 and of 592 bytes, and sums whose 184704 bytes are lines already."""
    contraction = fused(described("dca,cbd->ba", {"a": 312, "b": 296, "c": 296, "d": 312}), torch.relu)
    sums = by_stride(contraction.of_role(Role.K), 0)
    for packed, pitch in (
        (applied(contraction, 0), 320),
        (applied(contraction, 1), 320),
        (matrix(contraction, 0, sums, along_k=False), 320),
        (matrix(contraction, 0, sums, along_k=True), 296 * 312),
    ):
        assert packed is not None
        workspace = packed.permutation.d
        assert pitch in workspace.strides
        assert workspace.strides[0] % pitch == 0


@pytest.mark.parametrize(
    ("rows", "length", "pitch"),
    [
        (5476, 74, 80),  # 148 bytes: lines would add two thirds to what is no small operand, so rows start at words
        (72, 74, 128),
        (72, 24, 32),  # 48 bytes that all blocks read: sectors
        (5476, 24, 24),
    ],
)
def test_what_short_rows_start_at(rows: int, length: int, pitch: int) -> None:
    contraction = fused(described("mk,nk->mn", {"m": 4096, "n": rows, "k": length}), torch.relu)
    packing = applied(contraction, 1)
    assert packing is not None
    assert packing.permutation.d.strides in ((pitch, 1), (1,))
    assert {mode.name: stride for mode, stride in zip(contraction.modes, packing.strides, strict=True)}["n"] == pitch


def test_rows_together_stay_together_where_they_fill_lines() -> None:
    """TCCG 15: a tile of A may run along a and c, whose 92352 elements are whole lines."""
    contraction = fused(described("dca,bd->cba", {"a": 312, "b": 296, "c": 296, "d": 312}), torch.relu)
    packing = applied(contraction, 0)
    assert packing is not None
    assert [mode.strides.d for mode in packing.permutation.modes] == [1]


def test_a_small_operand_may_be_packed_for_its_rows_alone() -> None:
    """TCCG 18: B is 312 x 296, A is 300 times as large; not what is large, short, or lies at lines already."""
    extents = {"a": 312, "b": 296, "c": 296, "d": 312}
    assert packed_alone("cda,bd->cba", extents) == ["B"]
    assert not packed_alone("cda,bd->cba", extents | {"d": 320})
    assert "B" not in packed_alone("cda,bd->cba", extents | {"d": 72})
    assert not packed_alone("cda,bd->cba", extents | {"c": 2})
    ranked = choose(described("cda,bd->cba", extents), "triton", H200).ranked
    # Those that load all of B for every output tile.
    pipelines = [each for each in ranked if "ws.stationary" not in str(each.schedule)]
    lines = next(each for each in pipelines if "padded rows; ws." in str(each.schedule))
    plain = next(each for each in pipelines if each.schedule.family == "warp_specialized")
    assert lines.seconds < plain.seconds
    assert lines.schedule.workspace_bytes == 2 * 296 * 320


def test_rows_at_lines_compute_the_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Hopper, but for the product, which `gett` makes: the interpreter has no tensor maps."""
    monkeypatch.setattr(ttgt, "LEAST_FLOPS", 1)
    monkeypatch.setattr(ttgt, "reads_by_tma", lambda *_: True)
    monkeypatch.setattr(packing, "_worth_gathering", lambda *_: True)
    contraction = described("cda,bd->cba", {"a": 72, "b": 40, "c": 10, "d": 176})
    found = [s for s in ttgt.schedules(contraction, INTERPRETER).schedules if "stored with padded rows" in str(s)]
    assert found
    a, b = integers(contraction)
    expected = torch.einsum("cda,bd->cba", a.float(), b.float())
    for schedule in found[:2]:
        assert schedule.workspace_bytes >= 40 * 192 * 2
        d = torch.full(expected.shape, torch.nan)
        ttgt.build(contraction, schedule, INTERPRETER)(a, b, None, d, 1.0, 0.0)
        assert torch.equal(d, expected), str(schedule)


def test_both_operands_are_packed_by_one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is one kernel less, and one launch less in the prediction."""
    monkeypatch.setattr(ttgt, "LEAST_FLOPS", 1)
    contraction = described("fdea,ecfb->dcba", SMALL)
    relu, doubled = (trace(fn, (torch.float16,)) for fn in (torch.relu, lambda x: x + x))
    contraction = replace(contraction, a_fn=relu, b_fn=doubled)
    schedules = ttgt.schedules(contraction, INTERPRETER).schedules
    both = next(schedule for schedule in schedules if len(schedule.intermediates) == 2)
    assert " in one launch; " in str(both)
    launch = ttgt.build(contraction, both, INTERPRETER)
    a, b = integers(contraction)
    expected = torch.einsum("fdea,ecfb->dcba", a.float().relu(), 2 * b.float())
    d = torch.full(expected.shape, torch.nan)
    launch(a, b, None, d, 1.0, 0.0)
    assert torch.equal(d, expected)
    monkeypatch.setattr(ttgt, "pairs", lambda *_: False)
    by_steps = {each.choices: each for each in ttgt.schedules(contraction, INTERPRETER).schedules}
    apart = by_steps[both.choices]
    assert " in one launch" not in str(apart)
    assert len(ttgt.build(contraction, apart, INTERPRETER).kernels) == len(launch.kernels) + 1
    assert both.seconds == pytest.approx(apart.seconds - fitted("permute")("launch"))


def test_what_one_launch_cannot_hold_takes_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ttgt, "LEAST_FLOPS", 1)
    contraction = fused(described("fdea,ecfb->dcba", SMALL), torch.relu)
    both = next(s for s in ttgt.schedules(contraction, INTERPRETER).schedules if len(s.intermediates) == 2)

    def refused(*_: object) -> None:
        raise ResourceError("it needs more than there is")

    monkeypatch.setattr(permute, "PermutePairLaunch", refused)
    a, b = integers(contraction)
    expected = torch.einsum("fdea,ecfb->dcba", a.float().relu(), b.float().relu()).relu()
    d = torch.full(expected.shape, torch.nan)
    ttgt.build(contraction, both, INTERPRETER)(a, b, None, d, 1.0, 0.0)
    assert torch.equal(d, expected)


def packs(schedule: Any, operand: int) -> bool:
    """Whether a step packs this operand."""
    return any(int(slot.kind) == operand for step in schedule.steps[: schedule.main] for slot in step.reads)


def finishes(schedule: Any) -> bool:
    """Whether an epilogue on D follows the product."""
    return schedule.steps[-1].reads == (SLOT_D,)


def fused(contraction: Contraction, fn: object) -> Contraction:
    """With one function on A, on B and on D."""
    inner, outer = (trace(fn, (dtype,)) for dtype in (torch.float16, torch.float32))  # type: ignore[arg-type]
    return replace(contraction, a_fn=inner, b_fn=inner, epilogue=outer)


def integers(contraction: Contraction) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randint(-4, 5, layout.shape, generator=generator) for layout in (contraction.a, contraction.b))
    return a.half(), b.half()


def test_dear_functions_of_small_operands_are_applied_once() -> None:
    """TCCG 32: each element of A and of B is used 6144 times, D is 128 times as large as both."""
    extents = {"a": 24, "b": 16, "c": 16, "d": 24, "e": 16, "f": 16, "g": 24}
    best = choose(fused(described("bged,cafg->fedcba", extents), F.elu), "triton", H200).best.schedule
    assert best.family == "ttgt"
    assert all(step.choice.description.fn is not None for step in best.steps if step.writes.kind is SlotKind.WORK)
    assert len(best.intermediates) == 2
    assert best.product.description.a_fn is None
    assert best.product.description.b_fn is None
    assert best.product.description.epilogue is not None
    assert best.product.best.schedule.family == "gett"


def test_a_small_operand_is_brought_into_the_order_that_a_large_result_needs() -> None:
    """TCCG 34: D's innermost mode is A's outermost, and A is a 256th of D."""
    extents = {"a": 24, "b": 16, "c": 16, "d": 24, "e": 16, "f": 16, "g": 24}
    for contraction in (
        described("agfd,cbeg->fedcba", extents),
        fused(described("agfd,cbeg->fedcba", extents), F.relu),
    ):
        best = choose(contraction, "triton", H200).best.schedule
        assert best.family == "ttgt"
        assert packs(best, 0)
        assert best.product.best.schedule.family == "gett"


def test_large_operands_are_not_packed_to_be_gathered() -> None:
    """TCCG 13: both operands are 300 times as large as D, and a pass over them is dear."""
    contraction = fused(described("dca,cbd->ba", {"a": 312, "b": 296, "c": 296, "d": 312}), torch.relu)
    found = [
        each for each in ttgt.schedules(contraction, H200).schedules if each.product.best.schedule.family == "gett"
    ]
    assert not found


def test_an_epilogue_of_a_small_result_may_follow_the_library() -> None:
    """TCCG 13: sums of 92352 products, and D is a 300th of either operand; TCCG 15, where D is as large as A."""
    extents = {"a": 312, "b": 296, "c": 296, "d": 312}
    for equation, worth in (("dca,cbd->ba", True), ("dca,bd->cba", False)):
        contraction = fused(described(equation, extents), F.elu)
        ranked = choose(contraction, "triton", H200).ranked
        whole = [each for each in ranked if each.schedule.family == "ttgt"]
        after = [each for each in whole if finishes(each.schedule)]
        assert after, equation
        for each in after:
            assert each.schedule.product.best.schedule.family == "blas"
            assert str(each.schedule).endswith("; epilogue on D")
        plain = next(each for each in ranked if "ws." not in str(each.schedule))  # as on other devices
        assert (after[0].seconds < 1.2 * plain.seconds) is worth, equation


def test_the_epilogue_on_d_computes_what_a_fused_one_does() -> None:
    contraction = fused(described("dac,bcd->ba", SMALL), torch.relu)
    last = packing.epilogue_on_d(contraction)
    assert last is not None
    a_step, b_step = (applied(contraction, operand) for operand in (0, 1))
    assert a_step is not None
    assert b_step is not None
    rest = replace(packing.product_of(contraction, (a_step, b_step)), epilogue=None)
    schedule = ttgt.program_of(
        ttgt.packs_of(*(choose(each.permutation, "triton", INTERPRETER) for each in (a_step, b_step))),
        choose(rest, "triton", INTERPRETER, without=("ttgt",)),
        choose(last, "triton", INTERPRETER),
    )
    a, b = integers(contraction)
    d = torch.full((SMALL["b"], SMALL["a"]), torch.nan)
    ttgt.build(contraction, schedule, INTERPRETER)(a, b, None, d, -2.0, 0.0)
    assert torch.equal(d, (torch.einsum("dac,bcd->ba", a.float().relu(), b.float().relu()) * -2).relu())


def test_an_epilogue_is_not_left_for_later_where_d_rounds_or_more_is_fused() -> None:
    contraction = fused(described("dac,bcd->ba", SMALL), torch.relu)
    half = Layout.contiguous(contraction.d.shape, torch.float16)
    assert packing.epilogue_on_d(replace(contraction, d=half)) is None
    assert packing.epilogue_on_d(replace(contraction, c=contraction.d, c_fn=contraction.epilogue)) is None
    assert packing.epilogue_on_d(replace(contraction, epilogue=None)) is None


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["library and epilogue", "gathered"])
def test_what_functions_are_packed_for_on_a_gpu(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's product with the epilogue on D behind it, and packed operands in the kernel that gathers."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    monkeypatch.setattr(ttgt, "LEAST_FLOPS", 1)
    extents = {"a": 40, "b": 24, "c": 56, "d": 8}
    equation = "dac,bcd->ba" if kind != "gathered" else "da,bd->ba"
    contraction = fused(described(equation, extents), torch.relu)
    device = torch.device("cuda", torch.cuda.current_device())
    target = weft.plan("ij,jk->ik", *[torch.ones(2, 2, device=device)] * 2)._request.target
    monkeypatch.setattr(packing, "MUCH_LARGER", 0)
    chosen = [
        schedule
        for schedule in ttgt.schedules(contraction, target).schedules
        if (finishes(schedule) if kind != "gathered" else schedule.product.best.schedule.family == "gett")
    ]
    assert chosen
    a, b = (each.to(device) for each in integers(contraction))
    for schedule in chosen[:4]:
        d = torch.full((extents["b"], extents["a"]), torch.nan, device=device)
        ttgt.build(contraction, schedule, target)(a, b, None, d, 2.0, 0.0)
        expected = (2 * torch.einsum(equation, a.double().relu(), b.double().relu())).relu()
        assert torch.equal(d.double(), expected), str(schedule)
