"""Who computes the tasks of the suite `small`: weft, a loop of torch, its batched product, an operator that is made."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from weft.blocks import BlockTensor
from weft.blocks import contract as contract_blocks
from weft.groups.grouped import plan_grouped
from weft.groups.operators import OperatorSum, chain
from weft_bench.cases.small import SmallCase
from weft_bench.peers.registry import Call, Prepared, Way
from weft_bench.small import (
    DENSE,
    SmallTensors,
    block_products,
    length,
    matrices,
    structure_of,
    sweep,
    torch_contractions,
)

Made = Callable[[SmallCase, SmallTensors], Call]


class _Small:
    """A contender by a function for each task that it does. A way knows the sets that it has met by their addresses."""

    name: str
    tasks: dict[str, Made]

    def prepare(self, case: SmallCase, tensors: SmallTensors) -> Prepared | str:
        make = self.tasks.get(case.task)
        if make is None or (reason := self.cannot(case)):
            return reason if make is not None and reason else f"it has no way for {case.task}"
        known: dict[int, Call] = {}

        def run(*given: Any) -> torch.Tensor:
            key = given[0].data_ptr()
            if key not in known:
                known[key] = make(case, SmallTensors(*given))
            return known[key](*given)

        run(*tensors)  # what is planned and compiled is so before a graph is captured
        return Prepared([Way("", run)])

    def cannot(self, case: SmallCase) -> str:
        return ""

    def settings(self, case: SmallCase) -> AbstractContextManager[Any]:
        return nullcontext()


def _pairs(case: SmallCase, tensors: SmallTensors) -> list[tuple[torch.Tensor, torch.Tensor]]:
    left = matrices(tensors.a, [(m, k) for m, n, k in case.extents])
    right = matrices(tensors.b, [(k, n) for m, n, k in case.extents])
    return list(zip(left, right, strict=True))


def _places(case: SmallCase, tensors: SmallTensors) -> list[torch.Tensor]:
    return matrices(tensors.d, [(m, n) for m, n, k in case.extents])


def _weft_grouped(case: SmallCase, tensors: SmallTensors) -> Call:
    plan = plan_grouped(case.equation, _pairs(case, tensors), out=_places(case, tensors))

    def run(*given: Any) -> torch.Tensor:
        plan()
        return given[-1]

    return run


def _weft_operators(case: SmallCase, tensors: SmallTensors) -> Call:
    assert tensors.c is not None
    kept = OperatorSum(list(zip(tensors.a, tensors.b, tensors.c, strict=True)))
    return lambda a, b, c, x, d: kept(x, out=d)


def _weft_blocks(case: SmallCase, tensors: SmallTensors) -> Call:
    structure = structure_of(case)
    a, b = (BlockTensor.over(structure, buffer) for buffer in tensors[:2])
    return lambda *given: contract_blocks(case.equation, a, b).buffer


def _sweep(case: SmallCase, tensors: SmallTensors) -> Call:
    return lambda *given: sweep(case, given[0])


class WeftSmall(_Small):
    name = "weft"
    tasks = {  # noqa: RUF012  no one writes to it
        "grouped": _weft_grouped,
        "two-site": lambda case, tensors: lambda g, x, m, _, y: chain(case.equation, g, x, m, out=y),
        "operator-sum": _weft_operators,
        "blocks": _weft_blocks,
        "dmrg": _sweep,
    }


def _loop_grouped(case: SmallCase, tensors: SmallTensors) -> Call:
    work = [(*pair, place) for pair, place in zip(_pairs(case, tensors), _places(case, tensors), strict=True)]

    def run(*given: Any) -> torch.Tensor:
        for a, b, d in work:
            torch.mm(a, b, out=d)
        return given[-1]

    return run


def _loop_operators(case: SmallCase, tensors: SmallTensors) -> Call:
    def run(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, x: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
        d.zero_()
        for l, o, r in zip(a, b, c, strict=True):
            half = torch.matmul(o, torch.matmul(x, r.T))
            d.add_(torch.matmul(l, half.reshape(half.shape[0], -1)).reshape(d.shape))
        return d

    return run


def _loop_blocks(case: SmallCase, tensors: SmallTensors) -> Call:
    structure, (made, pairs) = structure_of(case), block_products(case)
    a, b = (BlockTensor.over(structure, buffer) for buffer in tensors[:2])
    result = torch.zeros(length(made), dtype=case.dtype, device=tensors.a.device)
    places = BlockTensor.over(made, result)
    keys = structure.keys
    work = [
        (a[keys[i]], b[keys[j]], places[key], at)
        for key, found in pairs.items()
        for at, (i, j) in enumerate(found)
    ]

    def run(*given: Any) -> torch.Tensor:
        for x, y, place, at in work:
            if at:
                place.addmm_(x, y)
            else:
                torch.mm(x, y, out=place)
        return result

    return run


def _torch_sweep(case: SmallCase, tensors: SmallTensors) -> Call:
    def run(*given: Any) -> torch.Tensor:
        with torch_contractions():
            return sweep(case, given[0])

    return run


class TorchLoop(_Small):
    """torch, a call for each product; in a CUDA graph where the suite's calls are captured."""

    name = "torch"
    tasks = {  # noqa: RUF012
        "grouped": _loop_grouped,
        "two-site": lambda case, tensors: lambda g, x, m, _, y: torch.matmul(torch.matmul(g, x), m, out=y),
        "operator-sum": _loop_operators,
        "blocks": _loop_blocks,
        "dmrg": _torch_sweep,
    }


def _batched(case: SmallCase, tensors: SmallTensors) -> Call:
    m, n, k = case.extents[0]
    count = len(case.extents)
    a, b, d = tensors.a.view(count, m, k), tensors.b.view(count, k, n), tensors.d.view(count, m, n)
    return lambda *given: torch.bmm(a, b, out=d)


class TorchBatched(_Small):
    """`torch.bmm`, where all extents are equal."""

    name = "bmm"
    tasks = {"grouped": _batched}  # noqa: RUF012

    def cannot(self, case: SmallCase) -> str:
        return "extents differ" if len(set(case.extents)) > 1 else ""


def _made_operator(case: SmallCase, tensors: SmallTensors) -> Call:
    def run(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, x: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
        whole = torch.einsum("tLl,tSs,tRr->LSRlsr", a, b, c).reshape(x.numel(), x.numel())
        return torch.mv(whole, x.reshape(-1), out=d.view(-1))

    return run


class MadeOperator(_Small):
    """The sum of operators made as one matrix, and applied."""

    name = "operator"
    tasks = {"operator-sum": _made_operator}  # noqa: RUF012

    def cannot(self, case: SmallCase) -> str:
        rows = math.prod(case.extents[0][1:])
        return f"it would have {rows} rows" if rows > DENSE else ""

