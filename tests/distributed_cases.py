"""What tests of distributed contractions run on the ranks of a group (`on_ranks`): parts cut out of whole tensors."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

import torch

import weft
from rank_problems import Case, all_strategies, biased, leaky, part, reference, same, values, weighted, wholes
from selected_on_ranks import selected
from weft.distributed.prediction import predicted
from weft.distributed.ranks import find_ranks
from weft.distributed.strategy import Strategy


def run(case: Case, most: int | None, seed: int = 0) -> tuple[int, list[str]]:
    """Every way (or `most` of them, drawn alike on all ranks) of one case; what differs from the whole."""
    ranks = find_ranks(timeout=60)
    on_gpu = "nccl" in torch.distributed.get_backend()
    device = torch.device("cuda", ranks.rank) if on_gpu else torch.device("cpu")
    whole = {name: tensor.to(device) for name, tensor in wholes(case).items()}
    inputs, d = case.equation.split("->")
    terms = dict(zip("ab", inputs.split(","), strict=True)) | case.operands
    parts = {name: part(whole[name], term, case.placements.get(name), case.mesh, ranks.rank)
             for name, term in terms.items()}  # fmt: skip
    right = reference(case, whole)
    expected = part(right, d, case.placements.get("d"), case.mesh, ranks.rank)
    operands = {name: (modes, parts[name]) for name, modes in case.operands.items()}
    plan = weft.distributed.plan(
        case.equation, parts["a"], parts["b"], placements=case.placements, mesh=case.mesh, timeout=60,
        operands=operands or None, specialize="auto", agree=case.c is not None, **case.options,
    )  # fmt: skip
    c = None
    if case.c is not None:
        places = case.placements.get("d")
        places = (None,) * len(case.mesh) if places is None else places if isinstance(places, tuple) else (places,)
        kept = tuple(None if one is not None and case.c[d.index(one)] == "1" else one for one in places)
        c = part(whole["c"], d, kept, case.mesh, ranks.rank)
    wrong = []
    found = list(all_strategies(plan))
    if most is not None and len(found) > most:
        found = random.Random(seed).sample(found, most)
    for strategy in found:
        way = plan.forced(predicted(strategy, plan.kernel, plan.link))
        got = way(parts["a"], parts["b"], c=c, alpha=case.alpha, beta=case.beta)
        if got.shape != expected.shape or got.dtype != expected.dtype or not same(case, got, expected):
            wrong.append(f"{case}: {strategy.split}, loop {strategy.loop} in {strategy.parts}: {got} for {expected}")
    kind, text = said(plan, parts["a"], parts["b"], c=c, alpha=case.alpha, beta=case.beta, validate=True)
    if text:
        wrong.append(f"{case}: validated, {kind}: {text}")
    return len(found), wrong


def many(cases: Sequence[Case], most: int | None = None) -> list[tuple[int, list[str]]]:
    return [run(case, most, seed) for seed, case in enumerate(cases)]


EQUATIONS = (
    ("mk,kn->mn", ("m", "n", "k")),
    ("bmk,bkn->bmn", ("b", "m", "n", "k")),
    ("mkl,lkn->nm", ("m", "n", "k", "l")),
    ("kam,bkn->nbma", ("a", "b", "m", "n", "k")),
    ("mks,kn->mn", ("m", "n", "k", "s")),  # s is summed in A alone
    ("mkk,kn->mn", ("m", "n", "k")),  # a diagonal
    ("m,n->mn", ("m", "n")),
    ("mk,mk->", ("m", "k")),
)
MESHES = {4: ((4,), (2, 2)), 8: ((8,), (2, 4), (4, 2), (2, 2, 2))}  # of so many ranks
ALGEBRAS = ("max_plus", "min_plus", "log", "or_and", "max_times")


#: Types of which no test compiles kernels of its own.
FEW = (torch.float64,)
ALL = (torch.float64, torch.float32, torch.int32, torch.complex128, torch.float16)


def random_case(seed: int, ranks: int, dtypes: Sequence[torch.dtype] = ALL) -> Case:
    """A contraction of any kind on a mesh of so many ranks."""
    draw = random.Random(seed)
    equation, labels = draw.choice(EQUATIONS)
    mesh = draw.choice(MESHES.get(ranks, ((ranks,),)))
    extents = {label: draw.choice((1, 2, 3, 5, 6, 8, 9, 12)) for label in labels}
    if draw.random() < 0.08:
        extents[draw.choice(labels)] = 0
    inputs, d = equation.split("->")
    a, b = inputs.split(",")
    placements = {
        name: tuple(draw.choice([None, *(one for one in term if term.count(one) == 1)]) for _ in mesh)
        for name, term in (("a", a), ("b", b), ("d", d))
    }
    dtype = draw.choice(dtypes)
    options: dict[str, Any] = {}
    operands: dict[str, str] = {}
    case: dict[str, Any] = {}
    if draw.random() < 0.3:
        dtype = draw.choice(dtypes[:2])
        options["algebra"] = draw.choice(ALGEBRAS)
        if draw.random() < 0.3:
            options["a_fn"] = torch.abs
    elif dtype in (torch.float64, torch.float32, torch.float16) and draw.random() < 0.6:
        if d and "m" in d and draw.random() < 0.6:
            options |= {"epilogue": biased, "indices": {"row": "m"}}
            operands["bias"] = draw.choice([d, d[-1], "m"])
        elif draw.random() < 0.5:
            options["epilogue"] = leaky
        if not options and draw.random() < 0.7 and "k" in a:
            options |= {"a_fn": weighted, "indices": {"at": "k"}}
            operands["weight"] = "k"
        elif draw.random() < 0.5:
            options["b_fn"] = leaky
        if operands and draw.random() < 0.4:
            name, modes = next(iter(operands.items()))
            placements[name] = tuple(draw.choice([None, *modes]) for _ in mesh)
        if dtype is torch.float16:
            options["out_dtype"] = torch.float32
    if d and draw.random() < 0.4:
        case["c"] = "".join("1" if draw.random() < 0.2 else label for label in d)
        case["beta"] = 1 if "algebra" in options else draw.choice((1, 2, 0))
        if "algebra" not in options and draw.random() < 0.3:
            options["c_fn"] = torch.neg
    if "algebra" not in options:
        case["alpha"] = draw.choice((1, 1, 2))
    return Case(equation, extents, placements, mesh, dtype, options, operands, **case)


def said(call: Any, *args: Any, **keywords: Any) -> tuple[str, str]:
    """The class and the message of the error that a call raises."""
    try:
        call(*args, **keywords)
    except weft.WeftError as error:
        return type(error).__name__, str(error)
    return "", ""


def on_two(cases: Sequence[Case]) -> dict[str, Any]:
    """All that tests of two ranks look at."""
    found: dict[str, Any] = {"cases": many(cases, 5)}
    found["errors"] = bad_calls()
    found |= kept_plans() | further_results() | of_dtensors() | reports() | validated() | selected()
    return found


def on_four(cases: Sequence[Case], apart: Sequence[Case]) -> list[tuple[int, list[str]]]:
    return many(cases, 3) + many(apart)


def one_ends(mesh: tuple[int, ...] = (4,)) -> Any:
    """Rank 3 ends in its second call, when the others have begun to send and to receive."""
    import os

    from weft.distributed.execution import Execution

    ranks = find_ranks(timeout=30)
    a, b = torch.ones(256, 64), torch.ones(64, 256)
    places = {"a": ("k",) * len(mesh), "b": ("k",) * len(mesh), "d": ("m",) * len(mesh)}
    plan = weft.distributed.plan("mk,kn->mn", a, b, placements=places, mesh=mesh, timeout=30)
    plan(a, b)
    if ranks.rank == 3:
        Execution._loop = lambda *_: os._exit(1)
    return plan(a, b)


def on_eight(cases: Sequence[Case]) -> dict[str, Any]:
    """All that tests of eight ranks look at: random contractions, an error of one rank, and one that is slow."""
    found: dict[str, Any] = {"cases": many(cases, 3)}
    mine = find_ranks(timeout=60).rank
    a, b = torch.ones(6, 4), torch.ones(4, 5 + (mine == 5))
    placements = {"a": ("k", "k"), "b": ("k", "k"), "d": ("m", None)}
    call = weft.distributed.contract
    found["error"] = said(call, "mk,kn->mn", a, b, placements=placements, mesh=(2, 4), timeout=60)
    if mine == 6:
        time.sleep(2)
    d = call("mk,kn->mn", a, b[:, :5], placements=placements, mesh=(2, 4), timeout=60)
    found["slow"] = d.shape == (3, 5) and bool((d == 32).all())
    return found


def bad_calls() -> dict[str, tuple[str, str]]:
    """Calls that are wrong on every rank, or on rank 1 alone."""
    mine = find_ranks().rank
    plan = weft.distributed.plan
    a, b = torch.ones(4, 3), torch.ones(3, 4)
    by_k = {"a": "k", "b": "k", "d": "m"}
    good = plan("mk,kn->mn", a, b, placements=by_k)
    return {
        "no mesh": said(plan, "mk,kn->mn", a, b, mesh=(2, 2)),
        "two dimensions": said(plan, "mk,kn->mn", a, b, placements={"a": ("m", "k")}),
        "no label": said(plan, "mk,kn->mn", a, b, placements={"b": "m"}),
        "diagonal": said(plan, "mm,mn->n", torch.ones(3, 3), b, placements={"a": "m"}),
        "other shapes": said(plan, "mk,kn->mn", a, torch.ones(3, 4 + mine), placements={"a": "m"}),
        "odd parts": said(plan, "mk,kn->mn", torch.ones(4, 3 + mine), torch.ones(3 + mine, 4), placements=by_k),
        "other equations": said(plan, f"mk,kn->{'nm' if mine else 'mn'}", a, b),
        "other placements": said(plan, "mk,kn->mn", a, b, placements={**by_k, "d": "n" if mine else "m"}),
        "other types": said(plan, "mk,kn->mn", a, b.double() if mine else b, placements=by_k),
        "other alpha": said(good, a, b, alpha=1 + mine),
        "a call's shape": said(good, torch.ones(4, 9) if mine else a, b),
        "other functions": said(plan, "mk,kn->mn", a, b, epilogue=lambda x: x * (2 + mine)),
        "other algebras": said(
            plan, "mk,kn->mn", a, b,
            algebra=weft.Algebra(lambda x, y: x + (1 + mine) * y, torch.maximum, identity="lowest", name="own"),
        ),
        "a function": said(plan, "mk,kn->mn", a, b, epilogue=lambda x: x if x > 0 else -x),
        "return_arg": said(plan, "mk,kn->mn", a, b, return_arg=True),
        "return_arg, c": said(
            plan("mk,kn->mn", a, b, algebra="max_plus", return_arg=True), a, b, c=torch.ones(4, 4)
        ),
        "return_arg, two values": said(
            plan, "mk,kn->mn", a, b, algebra="max_plus", return_arg=True, epilogue=doubled
        ),
        "return_arg on one rank": said(plan, "mk,kn->mn", a, b, algebra="max_plus", return_arg=bool(mine)),
        "return_arg, gradient": said(
            weft.distributed.contract, "mk,kn->mn", a.clone().requires_grad_(), b, algebra="max_plus", return_arg=True
        ),
        "mesh of one rank": said(plan, "mk,kn->mn", a, b, mesh=(2, 1 + mine)),
        "a word": said(plan, "mk,kn->mn", a, b, epilog=torch.relu),
        "a link": said(plan, "mk,kn->mn", a, b, link="nvlnk"),
    }


def kept_plans() -> dict[str, Any]:
    from weft.distributed import public

    mine = find_ranks().rank
    a, b = values((6, 8), torch.float64, 1), values((8, 4), torch.float64, 2)
    mine_a, mine_b = part(a, "mk", "k", (2,), mine), part(b, "kn", "k", (2,), mine)
    made = []
    planned = public._planned

    def counted(*args: Any) -> Any:
        made.append(1)
        return planned(*args)

    public._planned = counted
    right = [
        torch.equal(
            weft.distributed.contract("mk,kn->mn", factor * mine_a, mine_b, placements={"a": "k", "b": "k"}),
            factor * a @ b,
        )
        for factor in (1, 3)
    ]
    public._planned = planned
    return {"contract": tuple(right), "plans made": len(made)}


def doubled(total: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.relu(total), total > 0


def further_results() -> dict[str, Any]:
    """An epilogue that yields two values, a C, a name that is also A's, and no agreement at each call; every way."""
    mine = find_ranks().rank
    a, b, c = values((6, 8), torch.float64, 1), values((8, 4), torch.float64, 2), values((6, 4), torch.float64, 3)
    right = []
    for pa, pb, pd in (("k", "k", "m"), ("m", "n", "m"), ("m", "k", None), ("k", "k", "n")):
        x, y, z = part(a, "mk", pa, (2,), mine), part(b, "kn", pb, (2,), mine), part(c, "mn", pd, (2,), mine)
        plan = weft.distributed.plan("mk,kn->mn", x, y, placements=(pa, pb, pd), epilogue=doubled, agree=False)
        expected = [part(one, "mn", pd, (2,), mine) for one in doubled(a @ b + 2 * c)]
        for strategy in all_strategies(plan):
            got = plan.forced(predicted(strategy, plan.kernel, plan.link))(x, y, c=z, beta=2)
            right.append(all(torch.equal(one, other) for one, other in zip(got, expected, strict=True)))
    for algebra in ("max_plus", "min_max"):  # a NaN stays, wherever it is among the ranks
        spoilt = a.clone()
        spoilt[2, 0] = spoilt[4, 7] = torch.nan
        for pd in ("m", None):
            x, y = part(spoilt, "mk", "k", (2,), mine), part(b, "kn", "k", (2,), mine)
            got = weft.distributed.contract("mk,kn->mn", x, y, placements=("k", "k", pd), algebra=algebra)
            expected_one = part(weft.contract("mk,kn->mn", spoilt, b, algebra=algebra), "mn", pd, (2,), mine)
            right.append(torch.equal(got.nan_to_num(nan=77.0), expected_one.nan_to_num(nan=77.0)))
    named = weft.distributed.contract(
        "mk,kn->mn", part(a, "mk", "k", (2,), mine), part(b, "kn", "k", (2,), mine), placements={"a": "k", "b": "k"},
        epilogue=lambda total, a: total + a, operands={"a": ("mn", c)},
    )  # fmt: skip
    right.append(torch.equal(named, a @ b + c))
    return {"further results": (len(right), all(right))}


def of_dtensors() -> dict[str, Any]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2,))
    a, b = values((12, 7), torch.float64, 1), values((7, 6), torch.float64, 2)
    x, y = distribute_tensor(a, mesh, [Shard(1)]), distribute_tensor(b, mesh, [Shard(0)])
    d = weft.distributed.contract("mk,kn->mn", x, y, placements={"d": "m"})
    d_rank = find_ranks().rank
    kind, message = said(weft.distributed.plan, "mk,kn->mn", DTensor.from_local(a, mesh, [Partial()]), y)
    return {
        "dtensor": (type(d).__name__, list(d.shape), torch.equal(d.to_local(), part(a @ b, "mn", "m", (2,), d_rank))),
        "partial": (kind, "a DTensor of partial sums" in message),
    }


def reports() -> dict[str, Any]:
    a, b = torch.ones(1024, 256), torch.ones(256, 512)
    plan = weft.distributed.plan("mk,kn->mn", a, b, placements={"a": "k", "b": "k", "d": "m"}, link="nvlink")
    by_parts = plan.forced(predicted(Strategy(plan.problem, ("k",), "n", 4), plan.kernel, plan.link))
    found: dict[str, Any] = {
        "explain": by_parts.explain(),
        "on paper": plan.explain(ranks=256, link="nvlink+ib", target="h200"),
        "timeline": by_parts.timeline(a, b),
        "profile": weft.profile(by_parts, a, b, budget=0.02),
        "link": weft.distributed.measure_link(seconds=0.1),
    }
    other = weft.distributed.plan("mk,kn->mn", a, b, placements={"a": "k", "b": "k", "d": "m"})
    return {**found, "link is used": other.link}


def validated() -> dict[str, Any]:
    """Validated calls whose D rank 1 spoils after it is computed: where each has a part, and where both have all."""
    from weft.distributed.execution import Execution

    mine = find_ranks().rank
    a, b = values((6, 9), torch.float64, 1), values((9, 7), torch.float64, 2)
    parts = part(a, "mk", "k", (2,), mine), part(b, "kn", "k", (2,), mine)
    contract, run = weft.distributed.contract, Execution.run

    def spoilt(self: Execution) -> None:
        run(self)
        if mine:
            self.results[0][-1, 2] += 1

    found: dict[str, Any] = {"right": contract("mk,kn->mn", *parts, placements=("k", "k", "m"), validate=True)}
    Execution.run = spoilt  # type: ignore[method-assign]
    try:
        for d in ("m", None):
            said_of = {"placements": ("k", "k", d), "validate": True}
            found[f"spoilt, {d}"] = said(contract, "mk,kn->mn", *parts, **said_of)
    finally:
        Execution.run = run  # type: ignore[method-assign]
    found["a word"] = said(contract, "mk,kn->mn", *parts, placements=("k", "k", "m"), validate="often")
    found["in a plan"] = said(weft.distributed.plan, "mk,kn->mn", *parts, placements=("k", "k", "m"), validate=True)
    return {"validated": found}


def large_on_gpu() -> dict[str, tuple[float, bool, str]]:
    """Each kind of pipeline on some megabytes: the largest relative error, whether it repeats, a timeline."""
    ranks = find_ranks(timeout=200)
    device = torch.device("cuda", ranks.rank)
    size = 2048
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(size, size, generator=generator).half() for _ in range(2))
    right = torch.relu(a.double() @ b.double())
    found = {}
    placed = {"sums": ("k", "k", "m"), "gathered": ("m", "n", "m"), "whole": ("k", "k", None), "moved": ("m", "k", "n")}
    for name, places in placed.items():
        x = part(a, "mk", places[0], (ranks.size,), ranks.rank).to(device)
        y = part(b, "kn", places[1], (ranks.size,), ranks.rank).to(device)
        plan = weft.distributed.plan(
            "mk,kn->mn", x, y, placements=places, epilogue=torch.relu, out_dtype=torch.float32, timeout=200
        )
        loops = [one for one in plan.candidates if one.strategy.parts in (1, 4)][:4]
        for way in [plan.forced(one) for one in loops] or [plan]:
            first, second = way(x, y), way(x, y)
            expected = part(right, "mn", places[2], (ranks.size,), ranks.rank)
            error = float((first.cpu().double() - expected).abs().max() / right.abs().max())
            text = str(way.timeline(x, y))
            strategy = way.prediction.strategy
            found[f"{name}, {strategy.split}, {strategy.loop}"] = error, torch.equal(first, second), text
    return found
