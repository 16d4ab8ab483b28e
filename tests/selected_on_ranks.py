"""`return_arg` over ranks, against the call on the whole tensors."""

from __future__ import annotations

from typing import Any

import torch

import weft
from rank_problems import all_strategies, biased, part, values
from weft.distributed.prediction import predicted
from weft.distributed.ranks import find_ranks


def ragged(seed: int, *shape: int) -> torch.Tensor:
    """Few values, so that many are equal, and among them NaN and minus infinity."""
    found = values(shape, torch.float64, seed).clamp(-1, 1)
    marks = torch.rand(shape, generator=torch.Generator().manual_seed(seed))
    return found.masked_fill(marks < 0.05, torch.nan).masked_fill((marks > 0.05) & (marks < 0.3), -torch.inf)


def at_even(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    return torch.where(at % 2 == 0, x, x - 1)


def selected() -> dict[str, Any]:
    """`return_arg`: which calls differ from that on the whole tensors, in how many ways; a report; DTensors."""
    k = {"a": "k", "b": "k"}
    epilogue = {"epilogue": biased, "indices": {"row": "m", "at": "k"}, "a_fn": at_even}
    every = [("mk,kn->mn", {"a": a, "b": b, "d": d}, {}) for d in ("m", "n", None) for a in ("m", "k", None)
             for b in ("n", "k", None)]  # fmt: skip
    every += [("mk,kn->mn", {**k, "d": d, "bias": "n"}, epilogue) for d in ("m", None)]
    every += [("mkl,lkn->nm", {"a": "l", "b": b, "d": "n"}, {"algebra": "min_plus"}) for b in ("l", "k", None)]
    every += [("bmk,bkn->bmn", {"a": "b", "b": b, "d": "m"}, {"algebra": "max_min"}) for b in ("b", "k")]
    every += [("mks,kn->mn", {"a": "s", "b": None, "d": "n"}, {}), ("mkk,kn->mn", {"a": "m", "b": "k"}, {}),
              ("m,n->mn", {"a": "m", "b": "n"}, {})]  # fmt: skip
    wrong, ways = [], 0
    for size in (5, 1, 0):  # of reduced modes: with one index the second rank has nothing to select from
        for seed, (equation, placements, options) in enumerate(every[:: 1 if size == 5 else 4]):
            count, differ = _selected(equation, placements, options, size, seed)
            ways += count
            wrong += differ
    return {"selected": (ways, wrong, _selection_said())}


def _selected(
    equation: str, placements: dict[str, Any], options: dict[str, Any], size: int, seed: int
) -> tuple[int, list[str]]:
    mine = find_ranks().rank
    inputs, d = equation.split("->")
    terms = dict(zip("ab", inputs.split(","), strict=True))
    extents = {label: 3 if label in d else size for label in "bmnkls"}
    whole = {name: ragged(seed + at, *(extents[label] for label in term)) for at, (name, term) in
             enumerate(terms.items())}  # fmt: skip
    beside = {"bias": ("mn", values((3, 3), torch.float64, seed))} if "bias" in placements else {}
    said_of = {"algebra": "max_plus", **options, "return_arg": True}
    right = weft.contract(equation, whole["a"], whole["b"], operands=beside or None, **said_of)
    x, y = (part(whole[name], term, placements.get(name), (2,), mine) for name, term in terms.items())
    given = {
        name: (modes, part(tensor, modes, placements[name], (2,), mine)) for name, (modes, tensor) in beside.items()
    }  # fmt: skip
    plan = weft.distributed.plan(
        equation, x, y, placements=placements, operands=given or None, specialize="auto", **said_of
    )  # fmt: skip
    expected = [part(one, d, placements.get("d"), (2,), mine) for one in _flat(right)]
    found = list(all_strategies(plan))
    wrong = []
    for strategy in found:
        got = plan.forced(predicted(strategy, plan.kernel, plan.link))(x, y)
        alike = len(_flat(got)) == len(expected) and isinstance(got[1], tuple) == isinstance(right[1], tuple)
        if not alike or not all(torch.equal(one.nan_to_num(77), other.nan_to_num(77)) and one.dtype == other.dtype
                                for one, other in zip(_flat(got), expected, strict=True)):  # fmt: skip
            wrong.append(f"{equation} {placements} {options} {size}, {strategy.split}: {got} for {expected}")
    return len(found), wrong


def _flat(result: Any) -> list[torch.Tensor]:
    value, places = result
    return [value, *places] if isinstance(places, tuple) else [value, places]


def _selection_said() -> dict[str, Any]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mine = find_ranks().rank
    a, b = values((6, 8), torch.float64, 1), values((8, 4), torch.float64, 2)
    parts = part(a, "mk", "k", (2,), mine), part(b, "kn", "k", (2,), mine)
    said_of: dict[str, Any] = {"algebra": "max_plus", "return_arg": True}
    plan = weft.distributed.plan("mk,kn->mn", *parts, placements={"a": "k", "b": "k", "d": "m"}, **said_of)
    mesh = init_device_mesh("cpu", (2,))
    x, y = distribute_tensor(a, mesh, [Shard(1)]), distribute_tensor(b, mesh, [Shard(0)])
    _, where = weft.distributed.contract("mk,kn->mn", x, y, placements={"d": "m"}, **said_of)
    right = weft.contract("mk,kn->mn", a, b, **said_of)[1]
    return {
        "explain": plan.explain(), "validated": torch.equal(plan(*parts, validate=True)[1], right.chunk(2)[mine]),
        "dtensor": (type(where).__name__, torch.equal(where.full_tensor(), right)),
    }  # fmt: skip
