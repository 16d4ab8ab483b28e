"""Who is called, for the time that the host takes: a plan, `weft.contract`, and `torch.einsum`, with as little around
each as a user's program would have; and the last two under `torch.compile`."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from weft.errors import UnsupportedError
from weft_bench.cases import FUNCTIONS, Case
from weft_bench.peers.pytorch import exact_products
from weft_bench.peers.registry import Call, Prepared, Tensors, Way, first_line
from weft_bench.peers.views import einsum_text
from weft_bench.records import CONTRACT


class _WeftCall:
    name: str

    def prepare(self, case: Case, tensors: Tensors) -> Prepared | str:
        try:
            return Prepared([Way("", self.call(case, tensors))])
        except UnsupportedError as error:
            return first_line(error)

    def call(self, case: Case, tensors: Tensors) -> Call:
        raise NotImplementedError

    def settings(self, case: Case) -> AbstractContextManager[Any]:
        return nullcontext()


class PlanCall(_WeftCall):
    """``plan(a, b, out=d)``"""

    name = "weft"

    def call(self, case: Case, tensors: Tensors) -> Call:
        from weft.api.contract import plan

        planned = plan(case.equation, tensors.a, tensors.b, out=tensors.d, a_fn=_function(case.a_fn),
                       epilogue=_function(case.epilogue))  # fmt: skip
        return lambda a, b, c, d: planned(a, b, out=d)


class ContractCall(_WeftCall):
    """``weft.contract(equation, a, b, out=d)``, which finds its plan anew in each call; its kernel is made first."""

    name = CONTRACT

    def call(self, case: Case, tensors: Tensors) -> Call:
        from weft.api.contract import contract

        equation, a_fn, epilogue = case.equation, _function(case.a_fn), _function(case.epilogue)
        if a_fn is None and epilogue is None:
            return lambda a, b, c, d: contract(equation, a, b, out=d, specialize="now")
        return lambda a, b, c, d: contract(equation, a, b, out=d, a_fn=a_fn, epilogue=epilogue, specialize="now")


class CompiledContractCall(_WeftCall):
    """``weft.contract(equation, a, b)`` under `torch.compile`, which allocates its result."""

    name = "weft-compiled"

    def call(self, case: Case, tensors: Tensors) -> Call:
        from weft.api.contract import contract

        equation, a_fn, epilogue = case.equation, _function(case.a_fn), _function(case.epilogue)

        def plain(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = contract(equation, a, b, a_fn=a_fn, epilogue=epilogue)
            return found

        compiled = torch.compile(plain, dynamic=False, fullgraph=True)
        return lambda a, b, c, d: compiled(a, b)


class EinsumCall:
    """``torch.einsum(text, a, b)``, which allocates its result; functions around it where the case has them."""

    name = "torch"

    def prepare(self, case: Case, tensors: Tensors) -> Prepared | str:
        text, a_fn, epilogue = einsum_text(case), _function(case.a_fn), _function(case.epilogue)

        def plain(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, d: torch.Tensor) -> torch.Tensor:
            return torch.einsum(text, a, b)

        def fused(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, d: torch.Tensor) -> torch.Tensor:
            value = torch.einsum(text, a_fn(a) if a_fn else a, b)
            return epilogue(value) if epilogue else value

        return Prepared([Way("", self.compiled(fused if a_fn or epilogue else plain))], stored=case.dtypes[2])

    def compiled(self, call: Call) -> Call:
        return call

    def settings(self, case: Case) -> AbstractContextManager[Any]:
        return exact_products(tf32=False)


class CompiledEinsumCall(EinsumCall):
    """`torch.einsum` under `torch.compile`."""

    name = "compile"

    def compiled(self, call: Call) -> Call:
        found: Call = torch.compile(call, dynamic=False, fullgraph=True)
        return found


def _function(name: str | None) -> Any:
    return FUNCTIONS[name] if name else None
