"""Texts of calls: every field of what describes a call is said, and comes back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import weft
from weft.algebra import find
from weft.compiled.contraction import ContractCall
from weft.compiled.text import read, text_of
from weft.fn import trace
from weft.fn.portable import written
from weft.planner.options import Options
from weft.spec.notation import letters

RELU = trace(torch.relu, (torch.float32,))
LONGEST = weft.Algebra(torch.add, torch.maximum, "lowest", "longest", None, lambda x, y, total, grad: (grad, grad))
#: For each option a value that is not its default.
VALUES: dict[str, Any] = {
    "out_dtype": (torch.float16, torch.int64), "precision": "tf32", "accumulate": torch.float64,
    "functions": (RELU, None, None, RELU), "operands": {"z": ("mn", None), "bias": (("n",), None)},
    "indices": {"i": "m"}, "algebra": find("max_plus"), "deterministic": False, "workspace_limit": 0,
    "backend": "reference", "tune": "measure", "specialize": "never", "schedule": "a schedule", "promote": True,
    "kept_dtype": torch.bfloat16, "invariant": ("m", "n"),
}  # fmt: skip


@pytest.mark.parametrize("name", [each.name for each in fields(Options)])
def test_every_option_is_said_and_comes_back(name: str) -> None:
    bare, value = ContractCall("mk,kn->mn", Options()), VALUES[name]
    text = text_of(replace(bare, options=replace(bare.options, **{name: value})))
    found = getattr(read(text).options, name)
    assert text != text_of(bare)
    if name == "functions":
        found, value = ([each and written(each) for each in given] for given in (found, value))
    assert found == value
    if name == "operands":
        assert list(found) == list(value)  # they have the order of the tensors
    assert text_of(read(text)) == text


@pytest.mark.parametrize("value", [1, -0.0, float("inf"), 0.1, 2 + 3j, torch.int8, None, True, "float32", ((), ("a",))])
def test_values_come_back(value: Any) -> None:
    found = read(text_of(value))
    assert repr(found) == repr(value)


A, B = torch.randn(4, 6), torch.randn(6, 5)
CALLS: dict[str, Callable[..., Any]] = {
    "functions": lambda a, b: weft.contract(
        "mk,kn->mn", a, b, a_fn=torch.tanh, epilogue=lambda s, bias, i: (s + 0.1 * bias, s * i),
        operands={"bias": ("n", a.new_ones(5))}, indices={"i": "m"},
    ),
    "algebra": lambda a, b: weft.contract("mk,kn->mn", a, b, algebra=LONGEST),
    "permute": lambda a, b: weft.permute(a, "mk->kmz", fn=torch.exp, extents={"z": 3}),
    "cascade": lambda a, b: weft.cascade("mk,kn->mn", a, b, between=lambda s: weft.softmax(s, "n"), alpha=0.1),
    "cascade's algebra": lambda a, b: weft.cascade("mk,kn->mn, mn,kn->mk", a, b, b, algebra=LONGEST),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_what_is_read_has_the_text_that_it_was_read_from(name: str) -> None:
    traced = make_fx(CALLS[name], tracing_mode="fake")(A, B)
    texts = [node.args[0] for node in traced.graph.nodes if str(node.target).startswith("weft.")]
    assert texts
    for text in texts:
        assert text_of(read(text)) == text
    torch.testing.assert_close(traced(A, B), CALLS[name](A, B))


def test_an_algebra_brings_its_vjp_into_compiled_code() -> None:
    def gradient(call: Callable[..., Any]) -> torch.Tensor:
        a = torch.tensor([[1.0, 5.0], [2.0, 0.0]], requires_grad=True)
        call(a, torch.tensor([[0.5, 1.0], [3.0, 2.0]])).sum().backward()
        assert a.grad is not None
        return a.grad

    def call(a: torch.Tensor, b: torch.Tensor) -> Any:
        spread = weft.Algebra(
            torch.add, lambda p, q: torch.logaddexp(p, q), float("-inf"), "spread", None,
            lambda x, y, total, grad: (2 * grad * torch.exp(x + y - total), grad),
        )  # fmt: skip
        return weft.contract("mk,kn->mn", a, b, algebra=spread)

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(gradient(compiled), gradient(call))


def test_long_sums_of_integers_are_as_wide_as_outside() -> None:
    a, b = torch.full((1, 140_000), 127, dtype=torch.int8), torch.full((140_000, 1), 127, dtype=torch.int8)
    call = lambda a, b: weft.contract("mk,kn->mn", a, b, out_dtype=torch.float32)  # noqa: E731
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    assert compiled(a, b).item() == call(a, b).item() == pytest.approx(127 * 127 * 140_000)


def test_labels_get_the_same_letters_in_every_call() -> None:
    """More labels than ASCII has letters: a text does not depend on the calls before it."""
    labels = tuple(range(60))
    first = letters([labels])
    assert letters([labels]) == first
    assert len(set(first.values())) == len(labels)
