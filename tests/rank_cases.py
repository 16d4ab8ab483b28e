"""What tests run on the ranks of a group (`on_ranks`)."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

import torch
import torch.distributed as dist

import weft
from weft.distributed.ranks import find_ranks


def said(function: Any, *args: Any) -> tuple[str, str]:
    """The class and the message of the error that a call raises."""
    try:
        function(*args)
    except weft.WeftError as error:
        return type(error).__name__, str(error)
    return "", ""


def agreements() -> dict[str, Any]:
    """Everything that needs no rank to end, in one go."""
    ranks = find_ranks(timeout=20)
    mine = ranks.rank
    found: dict[str, Any] = {"who": (str(ranks), ranks.size, ranks.per_host(), ranks.backend(torch.device("cpu")))}

    def refuse_odd() -> int:
        if mine % 2:
            raise weft.ShapeError(f"extent {mine} is odd")
        return mine

    def refuse() -> int:
        raise weft.DTypeError("float8 is too small")

    def fail() -> int:
        return [1, 2][mine + 1]

    found["fine"] = [ranks.agreed("a call", lambda: mine + 1) for _ in range(5)]
    found["some"] = said(ranks.agreed, "a call", refuse_odd)
    found["all"] = said(ranks.agreed, "a call", refuse)
    found["foreign"] = said(ranks.agreed, "a call", fail)
    found["same"] = ranks.agreed("a call", lambda: 7, lambda found: {"the shape of a": (found, 3)})
    found["other shapes"] = said(ranks.agreed, "a call", lambda: mine, lambda found: {"the shape of a": (found > 0, 3)})
    found["other calls"] = said(ranks.agreed, f"call {mine > 0}", lambda: mine)
    found["values"] = ranks.exchanged("values", {"rank": mine})
    total = torch.full((3,), float(mine))
    ranks.wait(dist.all_reduce(total, async_op=True), "a sum")
    found["sum"] = total.tolist()
    half = dist.new_group(list(range(ranks.size // 2)))
    found["in half"] = str(find_ranks(half)) if mine < ranks.size // 2 else said(find_ranks, half)
    return found


def one_ends(where: str) -> Any:
    """Rank 2 ends; the others are at an agreement, or in a collective that rank 0 does not share with it."""
    ranks = find_ranks(timeout=60)
    ranks.hosts()
    ranks.agreed("the start", lambda: 0)
    if ranks.rank == 2:
        os._exit(3)
    if where == "agreement":
        ranks.agreed("the second call", lambda: 0)
    part = torch.ones(1 << 18)
    for number in range(4):
        whole = torch.empty(ranks.size << 18)
        ranks.wait(dist.all_gather_into_tensor(whole, part, async_op=True), f"all-gather of A, part {number}")


def on_a_mesh() -> tuple[dict[str, tuple[str, str]], tuple[str, str], float]:
    """Meshes that not all ranks give alike; and a call in which rank 3 fails, with nobody but rank 2 beside it in its
    line: how long the others were in it."""
    ranks = find_ranks(timeout=30)
    a, b = torch.ones(4, 3), torch.ones(3, 4)
    meshes = {"other": [(2, 2), (4, 1), (4, 1), (4, 1)], "no": [(2, 2), (2, 2), (2, 3), (2, 2)]}
    found = {
        name: said(lambda mesh: weft.distributed.contract("mk,kn->mn", a, b, mesh=mesh, timeout=30), given[ranks.rank])
        for name, given in meshes.items()
    }
    placements = {"a": ("m", "k"), "b": (None, "k"), "d": None}
    plan = weft.distributed.plan("mk,kn->mn", a, b, placements=placements, mesh=(2, 2), timeout=30)
    plan(a, b)
    begun = time.monotonic()
    if ranks.rank == 3:
        failing(plan, a, b)
        return found, ("", ""), 0.0
    return found, said(plan, a, b), time.monotonic() - begun


def failing(plan: Any, a: torch.Tensor, b: torch.Tensor) -> None:
    """This rank's side of a call for which it has no memory."""
    from weft.distributed.work import RankWork

    def no(*_: Any, **keywords: Any) -> None:
        raise MemoryError("no room")

    RankWork.multiply = no  # type: ignore[method-assign]
    with contextlib.suppress(MemoryError):
        plan(a, b)


def one_is_late() -> Any:
    ranks = find_ranks(timeout=0.7)
    if ranks.rank == 1:
        time.sleep(1.5)
        return "late"
    return ranks.agreed("the only call", lambda: 0)


def small_transformer() -> torch.nn.Module:
    """Layers of weft with parameters that a seed says."""
    torch.manual_seed(0)
    return torch.nn.Sequential(
        weft.nn.Linear(8, 16), weft.nn.Attention(16, 4, causal=True), weft.nn.GatedLinear(16, 24),
        weft.nn.Linear(24, 3, bias=False),
    ).double()  # fmt: skip


def learned(model: torch.nn.Module, rows: slice) -> list[torch.Tensor]:
    """The parameters after four steps on some rows of a batch."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(6, 5, 8, dtype=torch.float64, generator=generator)[rows]
    y = torch.randn(6, 5, 3, dtype=torch.float64, generator=generator)[rows]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(4):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def learned_together() -> list[torch.Tensor]:
    """`learned` by `DistributedDataParallel`, half of the rows on each of two ranks."""
    rank = dist.get_rank()
    model = torch.nn.parallel.DistributedDataParallel(small_transformer())
    return learned(model, slice(3 * rank, 3 * rank + 3))
