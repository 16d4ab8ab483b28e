"""What tests of distributed calls whose extents change run on the ranks of a group (`on_ranks`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import torch

import weft
from rank_problems import Case, part, reference, wholes
from weft.distributed.ranks import find_ranks

#: Extents of a case's first label from call to call: some ranks' parts look as in an earlier call, others' do not.
SEQUENCES = ((3, 2, 3), (31, 30, 31), (1, 2, 1, 0, 2))


def added(total: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return total + bias


EXTENTS = {"m": 5, "n": 4, "k": 6}
CASES = [
    *(
        Case("mk,kn->mn", EXTENTS, {"a": a, "b": b, "d": d}, (2,))
        for d in ("m", None) for a in ("m", "k", None) for b in ("n", "k", None)
    ),
    Case("a,a->", {"a": 3}, {"a": "a", "b": "a"}, (2,)),
    Case("mk,kn->mn", {"k": 3, "m": 5, "n": 4}, {"a": "k", "b": "k", "d": "n"}, (2,)),
    Case("mk,kn->mn", EXTENTS, {"a": "m", "d": "m"}, (2,), options={"algebra": "max_plus"}),
    Case("mk,kn->mn", {"k": 3, "m": 5, "n": 4}, {"a": "k", "b": "k", "d": "m"}, (2,), options={"algebra": "min_max"}),
    Case("mk,kn->mn", EXTENTS, {"a": "m", "d": "m", "bias": "m"}, (2,), options={"epilogue": added},
         operands={"bias": "m"}, c="mn", beta=2),
]  # fmt: skip


def wrong_calls(cases: Sequence[Case] = CASES) -> list[str]:
    """`contract` with one label's extent changing from call to call, and its gradients; what differs from the whole."""
    wrong = []
    for case, sequence in product(cases, SEQUENCES):
        label = next(iter(case.extents))
        for at, extent in enumerate(sequence):
            one = replace(case, extents={**case.extents, label: extent})
            wrong += [f"{one}, call {at} of {sequence}: {found}" for found in _differences(one)]
    return wrong


def _differences(case: Case) -> list[str]:
    rank = find_ranks(timeout=60).rank
    terms = dict(zip("ab", case.equation.partition("->")[0].split(","), strict=True)) | case.operands
    d = case.equation.partition("->")[2]
    whole = wholes(case)
    smooth = "algebra" not in case.options
    if smooth:
        whole = {name: tensor.requires_grad_() for name, tensor in whole.items()}

    def cut(name: str, tensor: torch.Tensor) -> torch.Tensor:
        return part(tensor.detach(), terms.get(name, d), case.placements.get("d" if name in "cd" else name), (2,), rank)

    mine = {name: cut(name, tensor).requires_grad_(smooth) for name, tensor in whole.items()}
    operands: dict[str, Any] = {name: (modes, mine[name]) for name, modes in case.operands.items()}
    factors = {"alpha": case.alpha, "beta": case.beta} if smooth else {}
    got = weft.distributed.contract(
        case.equation, mine["a"], mine["b"], c=mine.get("c"), placements=case.placements, timeout=60,
        operands=operands or None, **factors, **case.options,
    )  # fmt: skip
    right = reference(case, whole)
    if not torch.equal(got.detach(), cut("d", right)):
        return [f"{got} for {cut('d', right)}"]
    if not smooth:
        return []
    got.sum().backward()
    right.sum().backward()
    return [
        f"the gradient of {name}: {mine[name].grad} for {cut(name, tensor.grad)}"
        for name, tensor in whole.items()
        if tensor.grad is not None and not torch.equal(mine[name].grad, cut(name, tensor.grad))
    ]


def plans_made() -> dict[str, list[int]]:
    """How many plans rank by rank are made by the calls of a sequence, and after what outdates plans on one rank."""
    from weft.distributed import public
    from weft.planner.validity import outdate

    ranks = find_ranks()
    counts: list[int] = []
    planned = public._planned

    def counted(*args: Any) -> Any:
        counts[-1] += 1
        return planned(*args)

    public._planned = counted

    def call(extent: int) -> None:
        counts.append(0)
        a, b = torch.ones(extent, 4), torch.ones(4, 3)
        mine = part(a, "mk", "m", (2,), ranks.rank)
        got = weft.distributed.contract("mk,kn->mn", mine, b, placements={"a": "m", "d": "m"})
        assert torch.equal(got, mine @ b)

    found = {}
    for name, extents in {"changing": (3, 2, 3, 2, 3), "outdated": (3, 3)}.items():
        for extent in extents:
            if name == "outdated" and ranks.rank == 0 and not counts:
                outdate()
            call(extent)
        found[name] = list(counts)
        counts.clear()
    public._planned = planned
    return found


def groups_again() -> list[bool]:
    """Calls over a group that was ended and begun anew between them."""
    import gc

    right = []
    for at in range(3):
        ranks = find_ranks()
        a, b = torch.full((4, 4), at + 1.0), torch.ones(4, 3)
        mine = part(a, "mk", "k", (2,), ranks.rank), part(b, "kn", "k", (2,), ranks.rank)
        got = weft.distributed.contract("mk,kn->mn", *mine, placements={"a": "k", "b": "k"})
        right.append(torch.equal(got, a @ b))
        store, rank = torch.distributed.distributed_c10d._get_default_store(), ranks.rank
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
        del ranks
        gc.collect()
        again = torch.distributed.PrefixStore(f"again {at}", store)
        torch.distributed.init_process_group("gloo", store=again, rank=rank, world_size=2)
    return right
