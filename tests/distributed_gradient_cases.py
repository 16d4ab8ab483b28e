"""What tests of gradients over ranks run on the ranks of a group: parts of those that torch has of whole tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

import weft
from distributed_cases import said
from rank_problems import Case, part
from weft.distributed.rank_plan import DistributedPlan
from weft.distributed.ranks import find_ranks

Tensors = dict[str, torch.Tensor]


def terms_of(case: Case) -> dict[str, str]:
    """The modes of each tensor of a case that may require a gradient; "1" for those along which C is broadcast."""
    inputs, _ = case.equation.split("->")
    found = dict(zip("ab", inputs.split(","), strict=True)) | case.operands
    return found if case.c is None else found | {"c": case.c}


def random_wholes(case: Case) -> Tensors:
    """Whole tensors, the same on every rank."""
    generator = torch.Generator().manual_seed(5)
    return {
        name: torch.randn([case.extents.get(label, 1) for label in term], dtype=case.dtype, generator=generator)
        for name, term in terms_of(case).items()
    }


def cut(case: Case, name: str, tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a whole tensor or of its gradient, in memory of its own."""
    rank, d = find_ranks().rank, case.equation.split("->")[1]
    places = case.placements.get("d" if name == "c" else name)
    places = places if isinstance(places, tuple) else (places,) * len(case.mesh)
    term = d if name in ("c", "d") else terms_of(case)[name]
    if name == "c" and case.c is not None:
        places = tuple(None if one is not None and case.c[d.index(one)] == "1" else one for one in places)
    return part(tensor, term, places, case.mesh, rank)


def along(tensor: torch.Tensor, modes: str, term: str) -> torch.Tensor:
    """A tensor of some modes as it lies beside one of `term`."""
    tensor = tensor.permute([modes.index(label) for label in term if label in modes])
    return tensor[tuple(slice(None) if label in modes else None for label in term)]


def in_torch(case: Case, whole: Tensors) -> tuple[torch.Tensor, ...]:
    """The results by torch alone, of whole tensors."""
    inputs, d = case.equation.split("->")
    names = dict(zip(("a_fn", "b_fn", "epilogue"), (*inputs.split(","), d), strict=True))
    beside = {name: (modes, whole[name]) for name, modes in case.operands.items()}
    for name, label in case.options.get("indices", {}).items():
        beside[name] = label, torch.arange(case.extents[label], device=whole["a"].device)

    def applied(hook: str, value: torch.Tensor) -> Any:
        function = case.options.get(hook)
        if function is None:
            return value
        taken = function.__code__.co_varnames[1 : function.__code__.co_argcount]
        return function(value, *(along(beside[name][1], beside[name][0], names[hook]) for name in taken))

    sums = case.alpha * torch.einsum(case.equation, applied("a_fn", whole["a"]), applied("b_fn", whole["b"]))
    if case.c is not None:
        sums = sums + case.beta * case.options.get("c_fn", lambda c: c)(whole["c"])
    found = applied("epilogue", sums)
    return found if isinstance(found, tuple) else (found,)


def over_ranks(case: Case, parts: Tensors) -> tuple[torch.Tensor, ...]:
    operands = {name: (modes, parts[name]) for name, modes in case.operands.items()}
    found = weft.distributed.contract(
        case.equation, parts["a"], parts["b"], c=parts.get("c"), alpha=case.alpha, beta=case.beta,
        placements=case.placements, mesh=case.mesh, operands=operands or None, timeout=60, **case.options,
    )  # fmt: skip
    return found if isinstance(found, tuple) else (found,)


def weighted_sum(tensors: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]) -> torch.Tensor:
    """A loss in which each element has a part of its own."""
    found = sum((weight * tensor).sum() for tensor, weight in zip(tensors, weights, strict=True))
    return found.real if found.is_complex() else found  # type: ignore[union-attr]


def weights_like(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(6)
    return [torch.randn(each.shape, dtype=each.dtype, generator=generator).to(each.device) for each in tensors]


def wrong_gradients(case: Case, twice: bool = False) -> list[str]:
    """What differs from this rank's part of torch's gradients of the whole; `twice`: of gradients of gradients."""
    on_gpu = "nccl" in torch.distributed.get_backend()
    device = torch.device("cuda", find_ranks().rank) if on_gpu else torch.device("cpu")
    whole = {name: each.to(device).requires_grad_() for name, each in random_wholes(case).items()}
    parts = {name: cut(case, name, each.detach()).requires_grad_() for name, each in whole.items()}
    right, found = in_torch(case, whole), over_ranks(case, parts)
    weights = weights_like(right)
    first = torch.autograd.grad(weighted_sum(right, weights), list(whole.values()), create_graph=twice)
    mine = [cut(case, "d", each) for each in weights]
    got = torch.autograd.grad(weighted_sum(found, mine), list(parts.values()), create_graph=twice)
    wrong = differing(case, "gradient", whole, first, got)
    if twice:
        weights = weights_like(first)
        mine = [cut(case, name, each) for name, each in zip(whole, weights, strict=True)]
        second = torch.autograd.grad(weighted_sum(first, weights), list(whole.values()), materialize_grads=True)
        again = torch.autograd.grad(weighted_sum(got, mine), list(parts.values()), materialize_grads=True)
        wrong += differing(case, "gradient of gradients", whole, second, again)
    return wrong


def differing(
    case: Case, what: str, names: Tensors, right: Sequence[torch.Tensor], got: Sequence[torch.Tensor]
) -> list[str]:
    wrong = []
    for name, expected, mine in zip(names, right, got, strict=True):
        want = cut(case, name, expected)
        if mine.shape != want.shape or not torch.allclose(mine, want, rtol=1e-9, atol=1e-9):
            wrong.append(f"{case}: {what} of {name} is {mine} for {want}")
    return wrong


def gelu_biased(total: torch.Tensor, bias: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(total + bias * torch.cos(row.to(total.dtype)))


def scaled(x: torch.Tensor, weight: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    return torch.sin(x * weight) + at


def squashed(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x)


def rectified(total: torch.Tensor) -> torch.Tensor:
    return torch.relu(total)


def two_results(total: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tanh(total), total * total


def on_two(cases: Sequence[Case], twice: Sequence[Case]) -> dict[str, Any]:
    """All that tests of two ranks look at."""
    found: dict[str, Any] = {"wrong": many(cases), "wrong twice": many(twice, True)}
    found["left out"] = left_out()
    return found | refused() | of_dtensors() | of_a_plan() | in_halves() | explained()


def many(cases: Sequence[Case], twice: bool = False) -> list[str]:
    return [text for case in cases for text in wrong_gradients(case, twice)]


def refused() -> dict[str, Any]:
    """What is an error, on every rank the same."""
    mine = find_ranks().rank
    a, b = torch.ones(4, 3), torch.ones(3, 4)
    x, contract = a.clone().requires_grad_(), weft.distributed.contract
    one = torch.ones(1 if mine == 0 else 0, 3, requires_grad=True)  # its one row stands for all that the batch has
    pair = contract("mk,kn->mn", x, b, epilogue=two_results)
    loss = pair[0].sum() if mine else pair[0].sum() + pair[1].sum()
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(a, a)
        tangent = said(contract, "mk,kn->mn", dual, b)
    y = torch.ones(3, 4, requires_grad=True)
    square = contract("mk,kn->mn", x, y).square().sum()
    recorded = said(lambda: torch.autograd.grad(square, x, create_graph=mine == 1, retain_graph=True))
    first = torch.autograd.grad(square, (x, y), create_graph=True, retain_graph=True)
    with torch.autograd.forward_ad.dual_level():  # a gradient and a tangent at once
        both = said(contract, "mk,kn->mn", torch.autograd.forward_ad.make_dual(x, a), b)
    with torch.no_grad():
        unasked = contract("mk,kn->mn", x, b).requires_grad
    return {
        "on one rank": said(contract, "mk,kn->mn", a.clone().requires_grad_(mine == 1), b),
        "algebra": said(contract, "mk,kn->mn", x, b, algebra="max_plus"),
        "backward": said(loss.backward),
        "tangent": tangent,
        "transform": said(torch.func.grad(lambda x: contract("mk,kn->mn", x, b).sum()), a),
        "a factor": said(contract, "mk,kn->mn", x, b, alpha=torch.ones((), requires_grad=True)),
        "repeated": said(contract, "bk,bk->b", one, torch.ones(4, 3), placements={"a": "b"}),
        "recorded on one rank": recorded,
        "other second derivatives": said(torch.autograd.grad, first[mine].sum(), (x, y)),
        "both": both,
        "blocks": said(contract, "mk,kn->mn", x, b, device="cpu"),
        "whole numbers": said(contract, "mk,kn->mn", x, b, epilogue=lambda total: total > 0, out_dtype=torch.bool),
        "no_grad": unasked,
    }


def left_out() -> tuple[str, str]:
    """Rank 1 leaves the backward pass out, and goes on to the next call."""
    x, b = torch.ones(4, 3, requires_grad=True), torch.ones(3, 4)
    found = weft.distributed.contract("mk,kn->mn", x, b)
    return said(weft.distributed.contract, "mk,kn->mn", x, b) if find_ranks().rank else said(found.sum().backward)


def of_dtensors() -> dict[str, Any]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    mesh, right = init_device_mesh("cpu", (2,)), []
    a, b = torch.randn(12, 7, dtype=torch.float64), torch.randn(7, 5, dtype=torch.float64)
    for one in (a, b):
        torch.distributed.broadcast(one, 0)
    for place_a, place_b, d in ((Shard(1), Shard(0), "m"), (Shard(0), Replicate(), None), (Replicate(), Shard(1), "n")):
        x = distribute_tensor(a, mesh, [place_a]).requires_grad_()
        y = distribute_tensor(b, mesh, [place_b]).requires_grad_()
        found = weft.distributed.contract("mk,kn->mn", x, y, placements={"d": d}, epilogue=torch.tanh)
        assert isinstance(found, DTensor)
        found.square().sum().backward()
        u, v = a.clone().requires_grad_(), b.clone().requires_grad_()
        torch.tanh(u @ v).square().sum().backward()
        for given, whole, place in ((x, u, place_a), (y, v, place_b)):
            assert given.grad is not None
            right.append(given.grad.placements == (place,) and torch.allclose(given.grad.full_tensor(), whole.grad))
    return {"dtensors": right}


def of_a_plan() -> dict[str, Any]:
    """A plan's calls, without agreement: the plans of its gradients are made once."""
    mine, made = find_ranks().rank, []
    a, b = (part(torch.randn(9, 9), "mk", place, (2,), mine) for place in ("k", "m"))
    beside = DistributedPlan.beside

    def counted(self: DistributedPlan, *args: Any) -> DistributedPlan:
        made.append(args[0])
        return beside(self, *args)

    DistributedPlan.beside = counted  # type: ignore[method-assign]
    try:
        plan = weft.distributed.plan("mk,kn->mn", a, b, placements=("k", "k", "m"), agree=False)
        counts = []
        for _ in range(2):
            x = a.clone().requires_grad_()
            plan(x, b).sum().backward()
            counts.append(len(made))
        plan(a, b.clone().requires_grad_()).sum().backward()
    finally:
        DistributedPlan.beside = beside  # type: ignore[method-assign]
    return {"plans made": (*counts, made)}


def explained() -> dict[str, Any]:
    """What a plan of tensors that require gradients says of its backward pass, before it and after."""
    mine = find_ranks().rank
    a, b, bias = torch.randn(9, 6), torch.randn(6, 8), torch.randn(8, requires_grad=True)
    x, y = (part(each, term, place, (2,), mine).requires_grad_() for each, term, place in
            ((a, "mk", "k"), (b, "kn", "k")))  # fmt: skip
    said_of: dict[str, Any] = {
        "placements": {"a": "k", "b": "k", "d": "m"}, "b_fn": squashed, "operands": {"bias": ("n", bias)},
        "epilogue": lambda total, bias: torch.tanh(total + bias) * total,
    }  # fmt: skip
    plan = weft.distributed.plan("mk,kn->mn", x, y, **said_of)
    before = plan.explain()
    plan(x, y).sum().backward()
    detached = weft.distributed.plan("mk,kn->mn", x.detach(), y.detach(), placements=said_of["placements"])
    largest = weft.distributed.plan("mk,kn->mn", x, y, placements=said_of["placements"], algebra="max_plus")
    texts = before, plan.explain(), detached.explain(), largest.explain()
    return {"explained": texts}


def in_halves() -> dict[str, Any]:
    """Operands of half precision that are summed, and come out, in single."""
    case = Case("mk,kn->mn", {"m": 12, "n": 9, "k": 7}, {"a": "k", "b": "n", "d": "m"}, (2,))
    whole = {name: each.half() for name, each in random_wholes(case).items()}
    parts = {name: cut(case, name, each).requires_grad_() for name, each in whole.items()}
    found = weft.distributed.contract(
        case.equation, parts["a"], parts["b"], placements=case.placements, out_dtype=torch.float32, epilogue=torch.tanh
    )
    found.square().sum().backward()
    exact = {name: each.double().requires_grad_() for name, each in whole.items()}
    torch.tanh(exact["a"] @ exact["b"]).square().sum().backward()
    errors = []
    for name, each in parts.items():
        assert each.grad is not None
        assert exact[name].grad is not None
        right = cut(case, name, exact[name].grad)  # type: ignore[arg-type]
        errors.append(((each.grad.double() - right).abs().max() / right.abs().max()).item())
    return {"halves": errors, "types": [each.grad.dtype for each in parts.values() if each.grad is not None]}


def placed(case: Case, **placements: Any) -> Case:
    return replace(case, placements=placements)
