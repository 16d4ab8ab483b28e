"""Contractions with extras and algebras under every schedule, tiny blocks among them, held against the oracle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import weft
from cpu.problems import TARGET, all_schedules
from weft.algebra import find
from weft.api.options import HOOKS, Options, read_indices, read_operands, resolved
from weft.cpu import family as cpu
from weft.cpu.schedule import CpuSchedule
from weft.planner.request import Request
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
        extents = request.extents()
        d = Layout.contiguous([extents[label] for label in request.notation.output], request.d_dtype)
        return request.contraction(None, d)

    def results(self) -> Iterator[tuple[CpuSchedule, list[torch.Tensor]]]:
        request = self.request
        shape = tuple(self.expected()[0].shape)
        dtypes = (request.d_dtype, *(request.outputs or ()))
        guards = [poisoned(shape, dtype, layout=self.out_layout) for dtype in dtypes]
        layouts = [Layout.of(guard.tensor) for guard in guards]
        c = Layout.of(self.c) if self.c is not None else None
        contraction = request.contraction(c, layouts[0], tuple(layouts[1:]))
        assert cpu.supports(contraction, TARGET) is None
        for schedule in all_schedules(contraction):
            guards = [poisoned(shape, dtype, layout=self.out_layout) for dtype in dtypes]
            d, *others = (guard.tensor for guard in guards)
            launch = cpu.build(contraction, schedule, TARGET)
            launch(self.a, self.b, self.c, d, 1, 1, self.aux(contraction, others))
            for guard in guards:
                guard.check_guards()
            yield schedule, [d, *others]

    def aux(self, contraction: Contraction, outputs: list[torch.Tensor]) -> tuple[torch.Tensor | None, ...]:
        operands: Mapping[str, Any] = self.options.get("operands", {})
        aux_args = (each.name for each in contraction.aux if each.kind != "output")
        return (*(operands[name][1] if name in operands else None for name in aux_args), *outputs)

    def expected(self) -> list[torch.Tensor]:
        found = weft.reference.contract(self.equation, self.a, self.b, c=self.c, **self.options)
        return list(found) if isinstance(found, tuple) else [found]


def check_exact(problem: Extended) -> None:
    """Every schedule's results are the oracle's, converted: for values that no order of summation rounds."""
    expected = problem.expected()
    for schedule, results in problem.results():
        for result, wanted in zip(results, expected, strict=True):
            assert torch.equal(result, wanted.to(result.dtype)), schedule


def check_close(problem: Extended, tolerance: float) -> None:
    """Every schedule's results are the oracle's within `tolerance`, absolute and relative; infinities are equal."""
    expected = problem.expected()
    for schedule, results in problem.results():
        for result, wanted in zip(results, expected, strict=True):
            assert torch.allclose(result, wanted.to(result.dtype), rtol=tolerance, atol=tolerance), schedule


def check_poisoned_workspace(problem: Extended, monkeypatch: pytest.MonkeyPatch) -> None:
    """A workspace full of NaN changes nothing."""

    def poison(elements: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.full((elements * dtype.itemsize,), 0xFF, dtype=torch.uint8).view(dtype)

    expected = dict(problem.results())
    monkeypatch.setattr("weft.cpu.launch.allocate", poison)
    for schedule, results in problem.results():
        for result, wanted in zip(results, expected[schedule], strict=True):
            assert torch.equal(result, wanted), schedule
