"""Gradients of the first and second order of random contractions, with C, functions, operands and coordinates, against
torch's of the same computation in float64."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import pytest
import torch
from torch.nn import functional as F

import weft
from weft.autograd.product import Product

Call = Callable[..., Any]
#: Modes of D alone, of both operands, of one; with and without summed ones.
EQUATIONS = (
    "a,b->ab", "ab,c->cba", "ab,ba->ab", "a,ba->ba", ",a->a", ",->", "k,k->", "ak,kb->ba", "cak,ckb->abc", "akl,kb->ba",
    "ak,bl->ab", "k,bk->b",
)  # fmt: skip
EPILOGUES: tuple[Call | None, ...] = (F.gelu, F.silu, torch.square, torch.sin, torch.relu, None)


@dataclass(frozen=True)
class Drawn:
    """A contraction: its terms, extents, tensors, and which gradients are asked for."""

    equation: str
    terms: dict[str, str]  # of A, B, C and the operands
    extents: dict[str, int]
    tensors: dict[str, torch.Tensor]
    needed: tuple[str, ...]
    functions: dict[str, Call]  # of a value and of all operands
    factors: dict[str, float]
    index: str | None
    backend: str

    def result(self, **given: torch.Tensor) -> Any:
        """By weft."""
        operands = {name: (self.terms[name], given[name]) for name in given if name not in "ABC"}
        keywords: dict[str, Any] = {name: self._named(name, function) for name, function in self.functions.items()}
        if operands:
            keywords["operands"] = operands
        if self.index is not None:
            keywords["indices"] = {"i": self.index}
        keywords |= {"backend": self.backend, "c": given.get("C"), **self.factors}
        return weft.contract(self.equation, given["A"], given["B"], **keywords)

    def _named(self, hook: str, function: Call) -> Call:
        """A function that takes its operand by name."""
        named: dict[str, Call] = {
            "a_fn": lambda v, ua: function(v, ua), "b_fn": lambda v, ub: function(v, ub),
            "c_fn": lambda v, uc: function(v, uc), "epilogue": lambda v, ue: function(v, ue),
        }  # fmt: skip
        if hook == "epilogue" and self.index is not None:
            return lambda v, ue, i: function(v, ue, i)
        return named[hook] if f"u{hook[0]}" in self.terms else function

    def expected(self, **given: torch.Tensor) -> Any:
        """By torch."""
        output = self.equation.split("->")[1]

        def applied(hook: str, value: torch.Tensor, term: str) -> Any:
            function = self.functions.get(hook)
            name = f"u{hook[0]}"
            beside = [_along(given[name], self.terms[name], term)] if name in given else []
            if hook == "epilogue" and self.index is not None:
                beside.append(_along(torch.arange(self.extents[self.index]), self.index, term))
            return value if function is None else function(value, *beside)

        a, b = (applied(hook, given[side], self.terms[side]) for hook, side in (("a_fn", "A"), ("b_fn", "B")))
        total = self.factors["alpha"] * torch.einsum(self.equation, a, b)
        if "C" in given:
            whole = given["C"].expand([self.extents[label] for label in output])
            total = total + self.factors["beta"] * applied("c_fn", whole, output)
        return applied("epilogue", total, output)


def _along(tensor: torch.Tensor, term: str, want: str) -> torch.Tensor:
    kept = [label for label in want if label in term]
    moved = tensor.permute([term.index(label) for label in kept])
    return moved[tuple(slice(None) if label in kept else None for label in want)]


def drawn(seed: int) -> Drawn:
    rng, made = random.Random(seed), torch.Generator().manual_seed(seed)
    equation = EQUATIONS[seed % len(EQUATIONS)]
    first, second, output = equation.replace("->", ",").split(",")
    large = seed // len(EQUATIONS) % 2
    extents = {label: rng.choice((1, 2, 3, 5)) * (8 if large else 1) for label in dict.fromkeys(first + second)}
    terms = {"A": first, "B": second} | ({"C": output} if rng.random() < 0.75 else {})
    functions: dict[str, Call] = {}
    plain = rng.choice(EPILOGUES)
    index = rng.choice(output) if output and rng.random() < 0.25 else None
    if rng.random() < 0.5 or index is not None:
        terms["ue"] = "".join(label for label in output if rng.random() < 0.6)
        f: Call = plain or torch.cos
        functions["epilogue"] = lambda v, u: f(v + u)
        if index is not None:
            functions["epilogue"] = lambda v, u, i: torch.where(i % 2 == 0, f(v * u), v * v)
    elif plain is not None:
        functions["epilogue"] = plain
    for hook, side in (("a_fn", "A"), ("b_fn", "B"), ("c_fn", "C")):
        if side not in terms or rng.random() < 0.5:
            continue
        functions[hook] = torch.tanh
        if rng.random() < 0.5:
            terms[f"u{hook[0]}"] = "".join(label for label in terms[side] if rng.random() < 0.6)
            functions[hook] = lambda v, u: torch.sin(v) * u + u
    shapes = {name: [extents[label] for label in term] for name, term in terms.items()}
    if "C" in shapes:
        shapes["C"] = [size if rng.random() < 0.8 else 1 for size in shapes["C"]]
    tensors = {name: torch.randn(shape, generator=made, dtype=torch.float64) for name, shape in shapes.items()}
    beta = rng.choice((1.0, 0.5)) if "C" in terms else 1.0
    needed = [name for name in tensors if rng.random() < 0.8] or ["A"]
    backend = "reference" if seed % 4 else "cpu"  # which compiles functions
    factors = {"alpha": 0.5, "beta": beta}
    return Drawn(equation, terms, extents, tensors, tuple(needed), functions, factors, index, backend)


def derivatives(call: Call, of: Drawn) -> list[Sequence[torch.Tensor]]:
    """The result, its gradients, and the gradients of their sum with fixed weights."""
    made = torch.Generator().manual_seed(0)
    given = {name: each.clone().requires_grad_(name in of.needed) for name, each in of.tensors.items()}
    inputs = [given[name] for name in of.needed]
    found = call(**given)
    weight = torch.randn(found.shape, generator=made, dtype=found.dtype).requires_grad_()
    first = torch.autograd.grad(found, inputs, weight, create_graph=True)
    total = sum((each * torch.randn(each.shape, generator=made, dtype=each.dtype)).sum() for each in first)
    assert isinstance(total, torch.Tensor)
    return [[found], first, torch.autograd.grad(total, [*inputs, weight], materialize_grads=True)]


@pytest.mark.one_of(3)
@pytest.mark.parametrize("kept", [True, False], ids=["sums kept", "sums made again"])
@pytest.mark.parametrize("seed", range(30))
def test_gradients_of_random_contractions(seed: int, kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_REPLAY", "0")  # rules are chosen by costs, here by the test
    of = drawn(seed)
    with mock.patch.object(Product, "_is_kept", return_value=kept):
        found = derivatives(of.result, of)
    torch.testing.assert_close(found, derivatives(of.expected, of), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("shape", [(3, 4), (1, 4), (3, 1)])
@pytest.mark.parametrize("size", [1, 40])
@pytest.mark.parametrize("function", [F.gelu, F.silu, torch.square])
def test_a_c_added_to_a_product_of_no_sum(function: Call, size: int, shape: tuple[int, int]) -> None:
    made = torch.Generator().manual_seed(0)
    shapes = ((3 * size,), (4 * size,), tuple(each if each == 1 else each * size for each in shape))
    tensors = [torch.randn(each, generator=made, dtype=torch.float64).requires_grad_() for each in shapes]
    a, b, c = tensors
    found = torch.autograd.grad(weft.contract("a,b->ab", a, b, c=c, epilogue=function).sum(), tensors)
    torch.testing.assert_close(found, torch.autograd.grad(function(torch.outer(a, b) + c).sum(), tensors))


@pytest.mark.parametrize("equation", ["a,b->ba", "ab,ba->ab", ",->", "ab,c->acb"])
@pytest.mark.parametrize("algebra", ["max_plus", "min_plus", "max_times", "min_max", "max_min", "log"])
def test_algebras_that_reduce_nothing(algebra: str, equation: str) -> None:
    made, extents = torch.Generator().manual_seed(0), {"a": 3, "b": 2, "c": 4}
    terms = equation.split("->")[0].split(",")
    tensors = [
        torch.randn([extents[label] for label in term], generator=made, dtype=torch.float64).requires_grad_()
        for term in terms
    ]
    call = lambda *pair: weft.contract(equation, *pair, algebra=algebra)  # noqa: E731
    assert torch.autograd.gradcheck(call, tensors, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(call, tensors)
