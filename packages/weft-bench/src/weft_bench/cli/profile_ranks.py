"""`weft profile --placements`: one contraction over the ranks that torchrun has started, measured on all of them.

    torchrun --nproc-per-node 2 -m weft profile "mk,kn->mn" --extents m=512,n=512,k=2048 --placements a=k,b=k,d=m
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from weft.cli.arguments import split
from weft.cli.terminal import console
from weft.errors import ArgumentError, UnsupportedError

if TYPE_CHECKING:
    import torch

    from weft_bench.cases import Case


def profile_over_ranks(
    case: Case, place: torch.device, placements: str, budget: float | None, out: Path | None
) -> None:
    """Plan, validate, and measure the case on operands of random values; rank 0 says what was found."""
    import torch
    import torch.distributed as dist

    from weft.distributed import DistributedPlan, plan
    from weft_bench.profiling.api import profile

    where = read_placements(placements)
    if not dist.is_torchelastic_launched():
        raise UnsupportedError("--placements is for several ranks: torchrun --nproc-per-node 2 -m weft profile ...")
    if case.add:
        raise UnsupportedError(f"case {case.name} adds a C: --placements is for contractions without one")
    if place.type == "cuda":
        place = torch.device("cuda", dist.get_node_local_rank())
        torch.cuda.set_device(place)
    dist.init_process_group("cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo")
    try:
        a, b = parts(case, place, where, dist.get_rank(), dist.get_world_size())
        options = {name: value for name, value in case.options().items() if name not in ("alpha", "beta")}
        made = plan(case.equation, a, b, placements=where, specialize="now", **options)
        assert isinstance(made, DistributedPlan)
        made(a, b, alpha=case.alpha, validate=True)
        found = profile(made, a, b, budget=budget)
        if dist.get_rank() == 0:
            console().print(str(found), markup=False, highlight=False, soft_wrap=True)
            if out is not None:
                typer.echo(f"wrote {found.save(out)}")
    finally:
        dist.destroy_process_group()


def read_placements(text: str) -> dict[str, str]:
    """``a=k,b=k,d=m`` as a mapping; a tensor that is left out is whole on every rank."""
    found: dict[str, str] = {}
    for word in split(text):
        name, _, label = (piece.strip() for piece in word.partition("="))
        if name not in ("a", "b", "d") or not label:
            raise ArgumentError(f"'{word}' in --placements is not of the form a=k, for a, b or d")
        found[name] = label
    return found


def parts(case: Case, place: torch.device, where: dict[str, str], rank: int, ranks: int) -> list[Any]:
    """This rank's parts of A and B."""
    from weft.distributed.planned.placement import Span, chunk
    from weft.testing import random_operand

    found = []
    for at, name in enumerate("ab"):
        term, shape = case.notation.inputs[at], list(case.shapes[at])
        for dim, label in enumerate(term):
            if str(label) == where.get(name):
                shape[dim] = chunk(Span(0, shape[dim]), ranks, rank).extent
        seed = 2 * rank + at if name in where else at  # of what is whole all have the same
        found.append(random_operand(tuple(shape), case.dtypes[at], seed, device=place))
    return found
