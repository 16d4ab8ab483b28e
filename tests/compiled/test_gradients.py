"""Gradients of compiled calls, against those of the calls themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import weft
from compiled.test_compile import CALLS, A, B
from weft import nn

UNLIKE = ("out", "validated")  # without a gradient, or nothing new


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def gradients(call: Callable[..., Any], *tensors: torch.Tensor) -> tuple[Any, ...]:
    """Results that have a gradient, and the gradients of the tensors for random gradients of the results."""
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    found = call(*leaves)
    found = found if isinstance(found, tuple) else (found,)
    results = [each for each in found if isinstance(each, torch.Tensor) and each.requires_grad]
    generator = torch.Generator().manual_seed(1)
    given = [torch.randn(each.shape, generator=generator).to(each.dtype) for each in results]
    return *(each.detach() for each in results), *torch.autograd.grad(results, leaves, given, allow_unused=True)


@pytest.mark.parametrize("name", [name for name in CALLS if name not in UNLIKE])
def test_aot_autograd_traces_forward_and_backward(name: str) -> None:
    expected = gradients(CALLS[name], A, B)
    found = gradients(torch.compile(CALLS[name], fullgraph=True, backend="aot_eager"), A, B)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", ["closure and operand", "einsum of three", "permute", "own algebra", "tuple"])
def test_one_graph_serves_all_extents(name: str) -> None:
    compiled = torch.compile(CALLS[name], fullgraph=True, backend="aot_eager", dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for rows in (8, 3, 12):
            a = torch.randn(rows, 6)
            torch.testing.assert_close(gradients(compiled, a, B), gradients(CALLS[name], a, B))


def test_dynamo_alone_leaves_the_gradient_to_autograd() -> None:
    call = CALLS["closure and operand"]
    found = gradients(torch.compile(call, fullgraph=True, backend="eager"), A, B)
    torch.testing.assert_close(found, gradients(call, A, B))


LAYERS: dict[str, Callable[[], torch.nn.Module]] = {
    "linear": lambda: nn.Linear(6, 5, activation="gelu"),
    "einsum": lambda: nn.Einsum("mk,hdk->hmd", (2, 3, 6), bias="hd", activation="tanh"),
    "gated": lambda: nn.GatedLinear(6, 5, bias=True),
    "interleaved": lambda: nn.GatedLinear(6, 5, bias=True, interleaved=True),
}


# Complex kernels of the CPU take half a minute to compile.
SLOW = {"interleaved"}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in LAYERS])
def test_layers_train_compiled_as_plainly(name: str) -> None:
    layer = LAYERS[name]()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    kept = []
    for call in (layer, compiled):
        layer.zero_grad()
        x = A.clone().requires_grad_()
        call(x).square().sum().backward()
        kept.append([x.grad, *(parameter.grad for parameter in layer.parameters())])
    torch.testing.assert_close(kept[0], kept[1])


def test_the_gate_has_the_gradient_of_its_formula() -> None:
    layer = nn.GatedLinear(6, 5, bias=True)
    x = A.clone().requires_grad_()
    weights = [layer.gate, layer.up, layer.gate_bias, layer.up_bias]
    found = torch.autograd.grad(layer(x).square().sum(), [x, *weights])
    linear = torch.nn.functional.linear
    formula = torch.nn.functional.silu(linear(x, layer.gate, layer.gate_bias)) * linear(x, layer.up, layer.up_bias)
    torch.testing.assert_close(found, torch.autograd.grad(formula.square().sum(), [x, *weights]))


def test_the_backward_pass_is_made_of_operations() -> None:
    seen: list[str] = []

    def reading(graph: torch.fx.GraphModule, _: Any) -> Any:
        seen.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    from functorch.compile import aot_module_simplified, make_boxed_func

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        def compiler(each: torch.fx.GraphModule, given: Any) -> Any:
            return make_boxed_func(reading(each, given))

        return aot_module_simplified(graph, inputs, fw_compiler=compiler)

    gradients(torch.compile(CALLS["closure and operand"], fullgraph=True, backend=backend), A, B)
    assert seen.count("weft.contract.default") >= 3  # forward, and a step for each operand


def test_a_place_has_no_derivative() -> None:
    def call(a: torch.Tensor, b: torch.Tensor) -> Any:
        return weft.contract("mk,kn->mn", a, b, out=torch.empty(8, 5))

    with pytest.raises(Exception, match="out= has no derivative"):
        gradients(torch.compile(call, fullgraph=True, backend="eager"), A, B)
