"""The kernels themselves, whichever schedule the planner would choose: a sample of every family's legal schedules."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

import weft
from support import Backend
from weft import reference
from weft.engine.ways import Arguments
from weft.gpu.gett import family as gett
from weft.gpu.simt import family as simt
from weft.planner.schedule import Schedule

# Equations that need each part of the kernels: flattened axes, two axes on a side, k in two orders, overhanging tiles,
# batches, modes that only one operand has, nothing to sum, nothing at all.
CASES = [
    ("ij,jk->ik", (33, 40), (40, 29)),
    ("ki,kj->ij", (24, 17), (24, 18)),  # both operands along m and n
    ("abc,bd->dca", (9, 12, 5), (12, 17)),  # D and A run along different modes
    ("dac,dcb->ba", (7, 20, 9), (7, 9, 18)),
    ("cad,dcb->ba", (9, 20, 7), (7, 9, 18)),
    ("akl,blk->ab", (16, 8, 12), (16, 12, 8)),  # k in A's order and in B's
    ("xij,xjk->ikx", (3, 17, 18), (3, 18, 16)),
    ("ijx,j->i", (18, 5, 3), (5,)),
    ("i,j->ij", (20,), (21,)),
    ("ij,jk->ik", (17, 0), (0, 18)),
]


def chosen(family: object, plan: weft.Plan, count: int) -> list[Schedule]:
    """The first schedules by prediction and a seeded sample of the others, split sums among them."""
    contraction, target = plan.contraction, plan._request.target
    schedules = list(family.schedules(contraction, target).schedules)  # type: ignore[attr-defined]
    schedules.sort(key=lambda schedule: family.predict(contraction, schedule, target))  # type: ignore[attr-defined]
    split = [schedule for schedule in schedules if getattr(schedule, "splits", 1) > 1]
    sampled = random.Random(0).sample(schedules, min(count, len(schedules)))
    return list(dict.fromkeys((*schedules[:1], *split[:1], *sampled)))


def small(schedule: Schedule) -> bool:
    """Whether the interpreter is done with it soon."""
    tile = getattr(schedule, "tile", (16, 16, 16))
    return tile[0] * tile[1] <= 64 * 64


@pytest.mark.one_of(3)
@pytest.mark.parametrize("family", [gett, simt], ids=["gett", "simt"])
@pytest.mark.parametrize(("equation", "a_shape", "b_shape"), CASES)
def test_every_sampled_schedule_gives_the_same_integers(
    family: object, equation: str, a_shape: tuple[int, ...], b_shape: tuple[int, ...], triton_backend: Backend
) -> None:
    generator = torch.Generator().manual_seed(1)
    a, b = (
        torch.randint(-4, 5, shape, generator=generator).to(triton_backend.device, torch.float32)
        for shape in (a_shape, b_shape)
    )
    plan = weft.plan(equation, a, b, backend="triton", epilogue=torch.nn.functional.relu)
    contraction, target = plan.contraction, plan._request.target
    expected = reference.contract(equation, a, b, epilogue=torch.nn.functional.relu)
    tried = 0
    for schedule in filter(small, chosen(family, plan, 2)):
        out = torch.full(plan.shape, float("nan"), device=a.device)
        family.build(contraction, schedule, target)(a, b, None, out, 1.0, 0.0)  # type: ignore[attr-defined]
        assert torch.equal(out.double(), expected), str(schedule)
        tried += 1
    assert tried


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64], ids=str)
def test_split_sums_apply_the_epilogue_once_and_add_c_once(dtype: torch.dtype, triton_backend: Backend) -> None:
    """FIELD-BUGS 19: a non-linear epilogue applied to each part of a split reduction (triton#643)."""
    generator = torch.Generator().manual_seed(2)
    device = triton_backend.device
    a, b, c = (
        torch.randint(-3, 4, shape, generator=generator).to(device, dtype)
        for shape in ((18, 1100), (1100, 17), (18, 17))
    )
    plan = weft.plan("ik,kj->ij", a, b, c=c, out_dtype=dtype, backend="triton", epilogue=torch.abs)
    plan.prepare(Arguments(a, b, c))
    contraction = plan._request.contraction(*_layouts(c, plan))
    target = replace(plan._request.target, processors=8)  # few enough that this sum is worth splitting
    split = [s for s in gett.schedules(contraction, target).schedules if s.splits > 1 and small(s)]
    assert split
    expected = (2 * (a.double() @ b.double()) - c.double()).abs()
    for schedule in split[:2]:
        out = torch.full((18, 17), float("nan"), dtype=dtype, device=device)
        gett.build(contraction, schedule, target)(a, b, c, out, 2.0, -1.0)
        assert torch.equal(out.double(), expected), str(schedule)
        assert schedule.workspace_bytes > 0


def _layouts(c: torch.Tensor, plan: weft.Plan) -> tuple[object, object]:
    from weft.spec import Layout

    return Layout.of(c), Layout.contiguous(plan.shape, plan.dtype)
