"""Contractions with extras and algebras in every way, tiny blocks among them, held against the oracle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

import weft
from cpu.problems import Way, all_ways
from weft.algebra import find
from weft.planner.options import Options, read_indices, read_operands
from weft.planner.request import HOOKS, Request
from weft.plans.resolving import resolved
from weft.spec import Contraction, Layout, parse
from weft.testing import poisoned


@dataclass
class Extended:
    """One call, its results made anew, poisoned and guarded, for each schedule."""

    equation: str
    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor | None = None
    out_layout: str = "contiguous"
    options: dict[str, Any] = field(default_factory=dict)  # as `weft.contract` takes them
    by_kernels: bool = True  # as of `problems.Problem`

    @property
    def request(self) -> Request:
        given = dict(self.options)
        functions = tuple(given.pop(hook, None) for hook in HOOKS)
        operands = read_operands(given.pop("operands", {}))
        indices, algebra = read_indices(given.pop("indices", {})), find(given.pop("algebra", "plus_times"))
        options = Options(
            functions=functions, operands=operands, indices=indices, algebra=algebra, backend="reference", **given
        )
        return resolved(parse(self.equation), self.equation, self.a, self.b, options)

    def contraction(self) -> Contraction:
        """The contraction without C, of one result that nobody has allocated."""
        request = self.request
        extents = request.extents
        d = Layout.contiguous([extents[label] for label in request.notation.output], request.d_dtype)
        return request.contraction(None, d)

    def results(self) -> Iterator[tuple[Way, list[torch.Tensor]]]:
        request = self.request
        shape = tuple(self.expected()[0].shape)
        dtypes = (request.d_dtype, *(request.outputs or ()))
        guards = [poisoned(shape, dtype, layout=self.out_layout) for dtype in dtypes]
        layouts = [Layout.of(guard.tensor) for guard in guards]
        c = Layout.of(self.c) if self.c is not None else None
        contraction = request.contraction(c, layouts[0], tuple(layouts[1:]))
        for way in all_ways(contraction, by_kernels=self.by_kernels):
            guards = [poisoned(shape, dtype, layout=self.out_layout) for dtype in dtypes]
            d, *others = (guard.tensor for guard in guards)
            way.build(contraction)(self.a, self.b, self.c, d, 1, 1, self.aux(contraction, others))
            for guard in guards:
                guard.check_guards()
            yield way, [d, *others]

    def aux(self, contraction: Contraction, outputs: list[torch.Tensor]) -> tuple[torch.Tensor | None, ...]:
        operands: Mapping[str, Any] = self.options.get("operands", {})
        aux_args = (each.name for each in contraction.aux if each.kind != "output")
        return (*(operands[name][1] if name in operands else None for name in aux_args), *outputs)

    def expected(self) -> list[torch.Tensor]:
        found = weft.reference.contract(self.equation, self.a, self.b, c=self.c, **self.options)
        return list(found) if isinstance(found, tuple) else [found]


def check_exact(problem: Extended) -> None:
    """Results of every way are the oracle's, converted: for values that no order of summation rounds."""
    expected = problem.expected()
    for way, results in problem.results():
        for result, wanted in zip(results, expected, strict=True):
            assert torch.equal(result, wanted.to(result.dtype)), way


def check_close(problem: Extended, tolerance: float) -> None:
    """Results of every way are the oracle's within `tolerance`, absolute and relative; infinities are equal."""
    expected = problem.expected()
    for way, results in problem.results():
        for result, wanted in zip(results, expected, strict=True):
            assert torch.allclose(result, wanted.to(result.dtype), rtol=tolerance, atol=tolerance), way
