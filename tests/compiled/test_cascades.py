"""`weft.cascade` and `weft.nn.Attention` within `torch.compile`: one graph, values and gradients of the plain call."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import weft
from compiled.test_gradients import gradients
from weft import nn

EQUATION = "bqhd,bkhd->bqhk, bqhk,bkhe->bqhe"
GENERATOR = torch.Generator().manual_seed(0)  # of other values one in seventeen is rounded otherwise once compiled
Q, K, V = (torch.randn(shape, generator=GENERATOR) for shape in ((2, 9, 3, 8), (2, 7, 3, 8), (2, 7, 3, 5)))
SLOPE = weft.functions.alibi_slopes(3)
TARGET = torch.tensor([0, 6, 3, 3, 1, 2, 5, 4, 0])
CAP = 4.0


def capped(s: Tensor, i: Tensor, j: Tensor, slope: Tensor) -> Any:
    s = CAP * torch.tanh(s / CAP) + slope * (j - i)
    s = torch.where((j <= i) & (j > i - 4), s, -math.inf)
    return weft.softmax(s, "k"), weft.logsumexp(s, "k")


def loss(s: Tensor, w: Tensor, target: Tensor) -> Tensor:
    return weft.mean(weft.logsumexp(s, "w") - weft.sum(torch.where(w == target, s, 0.0), "w"), "t")


def windowed(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return weft.cascade(
        EQUATION, q, k, v, between=capped, alpha=0.25, operands={"slope": ("h", SLOPE)}, indices={"i": "q", "j": "k"}
    )


CALLS: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "softmax": lambda q, k, v: weft.cascade(EQUATION, q, k, v, between=lambda s: weft.softmax(s, "k"), alpha=0.25),
    "window, cap and slopes": windowed,
    "slopes of the function itself": lambda q, k, v: weft.cascade(
        EQUATION, q, k, v, between=lambda s, slope: weft.softmax(s + slope, "k"),
        operands={"slope": ("bk", v[..., 0, 0])},
    ),
    "a loss and no second contraction": lambda q, k, v: weft.cascade(
        "td,wd->tw", q[0, :, 0], k[0, :, 0], between=loss, operands={"target": ("t", TARGET)}, indices={"w": "w"}
    ) + v.sum(),
    "a place, which has no gradient": lambda q, k, v: weft.cascade(
        EQUATION, q, k, v, between=lambda s: (torch.sigmoid(s), weft.argmax(s, "k"), weft.amax(s, "k"))
    ),
    "labels, and D in another order": lambda q, k, v: weft.cascade(
        (("b", 1, "h", "d"), ("b", 2, "h", "d"), ("b", 1, "h", 2), ("b", 2, "h", "e"), ("e", "h", "b", 1)),
        q, k, v, between=lambda s: weft.log_softmax(s, 2),
    ),
    "maxima": lambda q, k, v: weft.cascade(EQUATION, q, k, v, between=torch.tanh, algebra="max_plus"),
    "half results": lambda q, k, v: weft.cascade(
        EQUATION, q.half(), k.half(), v.half(), between=lambda s: (weft.softmax(s, "k"), s), out_dtype="fp16"
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("name", CALLS)
def test_values_and_gradients_are_those_of_the_call(name: str) -> None:
    call = CALLS[name]
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    expected = call(Q, K, V)
    for found in (compiled(Q, K, V), make_fx(call)(Q, K, V)(Q, K, V)):
        torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradients(compiled, Q, K, V), gradients(call, Q, K, V))


def test_dynamo_alone_leaves_the_gradient_to_autograd() -> None:
    compiled = torch.compile(windowed, fullgraph=True, backend="eager")
    torch.testing.assert_close(gradients(compiled, Q, K, V), gradients(windowed, Q, K, V))


@pytest.mark.parametrize("name", ["softmax", "window, cap and slopes"])
def test_one_graph_serves_all_extents(name: str) -> None:
    compiled = torch.compile(CALLS[name], fullgraph=True, backend="aot_eager", dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for queries, keys in ((9, 7), (4, 12), (16, 3)):
            q, k, v = torch.randn(2, queries, 3, 8), torch.randn(2, keys, 3, 8), torch.randn(2, keys, 3, 5)
            torch.testing.assert_close(gradients(compiled, q, k, v), gradients(CALLS[name], q, k, v))


def test_a_second_call_compiles_nothing_and_a_changed_number_does() -> None:
    compiled = torch.compile(windowed, fullgraph=True, backend="aot_eager")
    compiled(Q, K, V)
    with torch._dynamo.config.patch(error_on_recompile=True):
        compiled(Q + 1, K, V)
    global CAP
    CAP = 0.5
    try:
        torch.testing.assert_close(compiled(Q, K, V), windowed(Q, K, V))
    finally:
        CAP = 4.0


def test_gradients_of_operands() -> None:
    def call(q: Tensor, bias: Tensor, slope: Tensor) -> Tensor:
        return weft.cascade(
            EQUATION, q, K, V, between=lambda s, bias, slope: weft.softmax(s * slope + bias, "k"),
            operands={"bias": ("qk", bias), "slope": ("h", slope)},
        )  # fmt: skip

    given = Q, torch.randn(9, 7), torch.rand(3)
    torch.testing.assert_close(
        gradients(torch.compile(call, fullgraph=True, backend="aot_eager"), *given), gradients(call, *given)
    )


def test_calls_whose_operands_differ_in_type_alone() -> None:
    weighted = torch.compile(
        lambda x, y, z: weft.cascade(
            "id,jd->ij, ij,je->ie", x, y, z, between=lambda s: weft.softmax(s, "j"), out_dtype=torch.float32
        ),
        backend="aot_eager",
    )
    for dtype in (torch.float16, torch.bfloat16, torch.float16):
        x, y, z = (torch.rand(each, dtype=dtype) for each in ((4, 8), (6, 8), (6, 3)))
        right = torch.softmax(x.double() @ y.double().T, -1) @ z.double()
        torch.testing.assert_close(weighted(x, y, z).double(), right, rtol=1e-2, atol=1e-2)


def test_autocast_holds() -> None:
    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return CALLS["softmax"](q, k, v)

    found = gradients(torch.compile(call, fullgraph=True, backend="aot_eager"), Q, K, V)
    expected = gradients(call, Q, K, V)
    assert [each.dtype for each in found] == [torch.bfloat16, *[torch.float32] * 3]
    torch.testing.assert_close(found, expected)


ATTENTION: dict[str, Callable[[], nn.Attention]] = {
    "a score": lambda: nn.Attention(24, 3, causal=True, score=weft.functions.softcap),
    "a score with places": lambda: nn.Attention(24, 6, kv_heads=2, score=lambda s, i, j, h: s - h * (i - j).abs()),
    "plain": lambda: nn.Attention(24, 3, causal=True),
}


@pytest.mark.parametrize(("name", "ragged"), [("a score", True), ("a score with places", False), ("plain", False)])
def test_attention_trains_compiled_as_plainly(name: str, ragged: bool) -> None:
    layer = ATTENTION[name]()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    lengths = torch.tensor([3, 8]) if ragged else None
    kept = []
    for call in (layer, compiled):
        layer.zero_grad()
        x = torch.randn(2, 8, 24, generator=torch.Generator().manual_seed(3)).requires_grad_()
        call(x, lengths=lengths).square().sum().backward()
        kept.append([x.grad, *(parameter.grad for parameter in layer.parameters())])
    torch.testing.assert_close(kept[0], kept[1])


def test_errors_are_those_of_the_call() -> None:
    def wrong(q: Tensor) -> Any:
        return weft.cascade(EQUATION, q, K, V, between=lambda s: weft.softmax(s, "x"))

    with pytest.raises(Exception, match="reduces over 'x'"):
        torch.compile(wrong, backend="eager", fullgraph=True)(Q)
    with pytest.raises(Exception, match="a word of functions that weft"):
        torch.compile(lambda q: weft.softmax(q, "k"), backend="eager", fullgraph=True)(Q)


def test_shapes_without_memory() -> None:
    q, k, v = (each.to("meta") for each in (Q, K, V))
    d, rows = windowed(q, k, v)
    assert (d.shape, rows.shape, d.device.type) == ((2, 9, 3, 5), (2, 9, 3), "meta")


def test_flops_are_counted_and_gradients_stay_what_they_are() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    expected = gradients(windowed, Q, K, V)
    with FlopCounterMode(display=False) as counter:
        found = gradients(windowed, Q, K, V)
    torch.testing.assert_close(found, expected)
    forward = 2 * 2 * 3 * 9 * 7 * (8 + 5)
    assert counter.get_total_flops() == 4 * forward


def test_it_is_exported_and_runs_where_its_source_is_not() -> None:
    class Layer(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Any:
            return windowed(q, k, v)

    file = io.BytesIO()
    torch.export.save(torch.export.export(Layer(), (Q, K, V)), file)
    file.seek(0)
    torch.testing.assert_close(torch.export.load(file).module()(Q, K, V), windowed(Q, K, V))


def test_torch_finds_nothing_wrong_with_the_operations() -> None:
    graph = make_fx(CALLS["softmax"])(Q, K, V).graph
    (node,) = (node for node in graph.nodes if node.target is torch.ops.weft.cascade.default)
    tests = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    found = torch.library.opcheck(torch.ops.weft.cascade.default, (node.args[0], [Q, K, V]), test_utils=tests)
    grads = [torch.randn(2, 9, 3, 5)]
    found |= torch.library.opcheck(
        torch.ops.weft.cascade_backward.default, (node.args[0], [Q, K, V], grads, [0, 2]), test_utils=tests[:2]
    )
    assert set(found.values()) == {"SUCCESS"}


@pytest.mark.slow
def test_inductor_runs_it() -> None:
    compiled = torch.compile(CALLS["softmax"], fullgraph=True)
    torch.testing.assert_close(gradients(compiled, Q, K, V), gradients(CALLS["softmax"], Q, K, V))
