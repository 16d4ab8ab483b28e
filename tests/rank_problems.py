"""A contraction over ranks: its operands, the parts of each rank, and the result on one process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

import weft
from weft.distributed.placement import coordinates, held
from weft.distributed.rank_plan import DistributedPlan
from weft.distributed.strategy import Strategy, looped, strategies


@dataclass(frozen=True)
class Case:
    """One contraction: what the whole is, and how it is placed."""

    equation: str
    extents: dict[str, int]
    placements: dict[str, Any]
    mesh: tuple[int, ...]
    dtype: torch.dtype = torch.float64
    options: dict[str, Any] = field(default_factory=dict)
    operands: dict[str, str] = field(default_factory=dict)  # the modes of each
    c: str | None = None  # C's modes: those of D, "1" in the place of one along which it is broadcast
    alpha: float = 1.0
    beta: float = 1.0


def part(tensor: torch.Tensor, term: str, places: Any, mesh: Sequence[int], rank: int) -> torch.Tensor:
    """A rank's part of a whole tensor, by torch alone."""
    places = (None,) * len(mesh) if places is None else places if isinstance(places, tuple) else (places,)
    for dim, label in enumerate(term):
        span = held(label, tensor.shape[dim], places, mesh, coordinates(rank, mesh))
        tensor = tensor.narrow(dim, span.start, span.extent)
    return tensor.clone()


def values(shape: Sequence[int], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Small integers, so that every order of summation gives the same bits."""
    generator = torch.Generator().manual_seed(seed)
    found = torch.randint(-4, 5, tuple(shape), generator=generator)
    if dtype.is_complex:
        return torch.complex(found.double(), torch.randint(-4, 5, tuple(shape), generator=generator).double()).to(dtype)
    return found.ne(0) if dtype is torch.bool else found.to(dtype)


def wholes(case: Case) -> dict[str, torch.Tensor]:
    inputs, d = case.equation.split("->")
    terms = dict(zip("ab", inputs.split(","), strict=True)) | case.operands
    found = {
        name: values([case.extents[label] for label in term], case.dtype, seed)
        for seed, (name, term) in enumerate(terms.items())
    }
    if case.c is not None:
        found["c"] = values([1 if has == "1" else case.extents[label] for label, has in zip(d, case.c, strict=True)],
                            case.dtype, 77)  # fmt: skip
    return found


def reference(case: Case, whole: dict[str, torch.Tensor]) -> torch.Tensor:
    operands = {name: (modes, whole[name]) for name, modes in case.operands.items()}
    keywords = dict(case.options, operands=operands or None)
    if case.c is not None:
        keywords |= {"c": whole["c"]} | ({} if "algebra" in case.options else {"beta": case.beta})
    if "algebra" not in case.options:
        keywords["alpha"] = case.alpha
    return weft.contract(case.equation, whole["a"], whole["b"], **keywords)


def same(case: Case, got: torch.Tensor, right: torch.Tensor) -> bool:
    """Bit for bit; logarithms round, in another order each way."""
    if case.options.get("algebra") == "log":
        step = 4 * torch.finfo(got.dtype).eps
        return torch.allclose(got, right, atol=max(1e-5, step), rtol=max(1e-5, step))
    return torch.equal(got, right)


def all_strategies(plan: DistributedPlan) -> Iterator[Strategy]:
    for first in strategies(plan.problem):
        yield first
        yield from looped(first)


def leaky(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 0, x, 2 * x)


def biased(total: torch.Tensor, bias: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    return torch.where(row % 3 == 0, total + bias, torch.relu(total))


def weighted(x: torch.Tensor, weight: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    return x * weight + at
