"""The layers of `weft.nn` against torch's, and what a module promises besides its values."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

import weft
from weft import nn

X, Y = torch.randn(2, 3, 6), torch.randn(2, 3, 4)

LAYERS: dict[str, tuple[Callable[[], torch.nn.Module], tuple[torch.Tensor, ...], str]] = {
    "linear": (lambda: nn.Linear(6, 5), (X,), "Linear(in_features=6, out_features=5, bias=True)"),
    "without bias": (
        lambda: nn.Linear(6, 5, bias=False, activation=torch.exp), (X,),
        "Linear(in_features=6, out_features=5, bias=False, activation=exp)",
    ),
    "activated": (
        lambda: nn.Linear(6, 5, activation="gelu_tanh"), (X,),
        "Linear(in_features=6, out_features=5, bias=True, activation='gelu_tanh')",
    ),
    "eight bits": (
        lambda: nn.Linear(6, 5, activation="relu", weight_dtype="int8"), (X,),
        "Linear(in_features=6, out_features=5, bias=True, activation='relu', weight_dtype=int8)",
    ),
    "einsum": (
        lambda: nn.Einsum("bse,hde->bhsd", (2, 3, 6), bias="hd", activation="tanh"), (X,),
        "Einsum('bse,hde->bhsd', (2, 3, 6), bias='hd', activation='tanh')",
    ),
    "bilinear": (
        lambda: nn.Bilinear(6, 4, 5), (X, Y), "Bilinear(in1_features=6, in2_features=4, out_features=5, bias=True)",
    ),
    "gated": (
        lambda: nn.GatedLinear(6, 5, bias=True), (X,),
        "GatedLinear(in_features=6, out_features=5, bias=True, activation='silu')",
    ),
    "interleaved": (
        lambda: nn.GatedLinear(6, 5, activation="gelu", interleaved=True), (X,),
        "GatedLinear(in_features=6, out_features=5, bias=False, activation='gelu', interleaved=True)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_a_module(name: str) -> None:
    make, inputs, text = LAYERS[name]
    layer = make()
    assert repr(layer) == text
    with torch.no_grad():
        expected = layer(*inputs)
        other = make()
        other.load_state_dict(layer.state_dict())
        for again in (other, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            assert torch.equal(again(*inputs), expected)
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(*inputs), expected)
    torch._dynamo.reset()


@pytest.mark.parametrize("bias", [True, False])
def test_parameters_are_torchs_own(bias: bool) -> None:
    for ours, theirs, shape in ((nn.Linear, torch.nn.Linear, (6, 5)), (nn.Bilinear, torch.nn.Bilinear, (6, 4, 5))):
        torch.manual_seed(3)
        mine = ours(*shape, bias=bias)
        torch.manual_seed(3)
        other = theirs(*shape, bias=bias)
        for name, parameter in other.state_dict().items():
            assert torch.equal(mine.state_dict()[name], parameter)
        other.load_state_dict(mine.state_dict())


@pytest.mark.parametrize("name", [*nn.fused.NAMED, None])
def test_linear_is_torchs_with_the_activation(name: str | None) -> None:
    layer, function = nn.Linear(6, 5, activation=name), nn.fused.NAMED.get(str(name), lambda value: value)
    with torch.no_grad():
        torch.testing.assert_close(layer(X), function(functional.linear(X, layer.weight, layer.bias)))


def test_an_activation_is_a_function_or_a_module_too() -> None:
    with torch.no_grad():
        for given in (torch.nn.Softplus(beta=2.0), lambda value: functional.softplus(value, beta=2.0)):
            layer = nn.Linear(6, 5, activation=given)
            sums = functional.linear(X, layer.weight, layer.bias)
            torch.testing.assert_close(layer(X), functional.softplus(sums, beta=2.0))
    with pytest.raises(weft.ArgumentError, match="no activation is called 'gelo': did you mean 'gelu'"):
        nn.Linear(6, 5, activation="gelo")
    with pytest.raises(weft.FunctionError, match=r"the module PReLU closes over tensors \(weight\)"):
        nn.Linear(6, 5, activation=torch.nn.PReLU())


def test_a_layer_over_the_parameters_of_torchs() -> None:
    theirs = torch.nn.Linear(6, 5)
    layer = nn.Linear.of(theirs, activation="silu")
    assert layer.weight is theirs.weight
    assert layer.bias is theirs.bias
    with torch.no_grad():
        torch.testing.assert_close(layer(X), functional.silu(theirs(X)))
        theirs.weight.mul_(2)
        torch.testing.assert_close(layer(X), functional.silu(theirs(X)))


@pytest.mark.parametrize("bias", [True, False])
def test_weights_of_eight_bits_by_blocks(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn.linear, "BLOCK", 1)  # of 32 rows, the least
    layer, x = nn.Linear(48, 100, bias, activation="tanh").quantized(), torch.randn(2, 3, 48, requires_grad=True)
    found = layer(x)
    (grad,) = torch.autograd.grad(found.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(grad.square().sum(), x)
    exact, weight = x.double(), layer.weight.double() * layer.scale[:, None]
    sums = exact @ weight.T + (layer.bias.double() if bias else 0)
    (expected,) = torch.autograd.grad(torch.tanh(sums).sum(), exact, create_graph=True)
    (twice,) = torch.autograd.grad(expected.square().sum(), exact)
    for ours, theirs in ((found, torch.tanh(sums)), (grad, expected), (second, twice)):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("of_x", [torch.float32, torch.float16])
def test_weights_of_eight_bits(dtype: torch.dtype, of_x: torch.dtype) -> None:
    layer = nn.Linear(64, 5, activation="tanh").to(of_x)
    layer.weight.data[3] = 0  # a row without a scale
    small, x = layer.quantized(dtype), torch.randn(7, 64).to(of_x)
    assert small.weight.dtype == dtype
    assert {name for name, _ in small.named_parameters()} == {"bias"}
    with torch.no_grad():
        found, weight = small(x), small.weight.float() * small.scale[:, None]
        assert found.dtype == of_x
        exact = torch.tanh(x.double() @ weight.double().T + layer.bias.double())
        assert (found - exact).abs().max() < (1e-3 if of_x is torch.float16 else 1e-5)
        whole = layer.weight.float()
        roundoff = {torch.int8: 1 / 254, torch.float8_e4m3fn: 2**-4, torch.float8_e5m2: 2**-3}[dtype]
        scale = whole.abs().amax(1, True) if dtype is torch.int8 else whole.abs()  # fixed point, or floating
        assert ((weight - whole).abs() <= 1.001 * roundoff * scale + 0.002 * small.scale[:, None]).all()
    with pytest.raises(weft.DTypeError, match="a weight is kept in int8 or an 8-bit floating type, not in int32"):
        nn.Linear(6, 5, weight_dtype="int32")


def test_einsum_is_torchs() -> None:
    layer = nn.Einsum("bse,hde->bhsd", (2, 3, 6), bias="hd", activation="relu")
    with torch.no_grad():
        sums = torch.einsum("bse,hde->bhsd", X, layer.weight) + layer.bias[:, None]
        torch.testing.assert_close(layer(X), torch.relu(sums))
    assert layer.weight.abs().max() <= 6**-0.5
    with pytest.raises(weft.NotationError, match="names two operands, 'ab->b' 1"):
        nn.Einsum("ab->b", (3,))
    with pytest.raises(weft.ShapeError, match=r"the weight of shape \(3,\) has not the modes 'bc'"):
        nn.Einsum("ab,bc->ac", (3,))
    with pytest.raises(weft.NotationError, match="the bias along 'b' needs 'b' in the weight and in the result"):
        nn.Einsum("ab,bc->ac", (3, 4), bias="b")


@pytest.mark.parametrize("features", [(6, 4), (4, 6)])
def test_bilinear_is_torchs(features: tuple[int, int]) -> None:
    theirs = torch.nn.Bilinear(*features, 5)
    layer = nn.Bilinear(*features, 5, activation="sigmoid")
    layer.load_state_dict(theirs.state_dict())
    inputs = [X, Y] if features == (6, 4) else [Y, X]
    with torch.no_grad():
        torch.testing.assert_close(layer(*inputs), torch.sigmoid(theirs(*inputs)))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gate_in_two_kernels_and_in_one(bias: bool, dtype: torch.dtype) -> None:
    layer = nn.GatedLinear(6, 5, bias, dtype=dtype, activation="gelu")
    x = X.to(dtype)
    with torch.no_grad():
        up, gate = (
            functional.linear(x.double(), weight.double(), None if beside is None else beside.double())
            for weight, beside in ((layer.up, layer.up_bias), (layer.gate, layer.gate_bias))
        )
        if dtype is torch.bfloat16:
            gate = gate.to(dtype).double()  # it is stored between the two kernels
        expected = functional.gelu(gate) * up
        rtol = 2**-7 if dtype is torch.bfloat16 else 1e-5
        torch.testing.assert_close(layer(x).double(), expected, rtol=rtol, atol=1e-6)
        one = nn.GatedLinear(6, 5, bias, dtype=dtype, activation="gelu", interleaved=True)
        one.weight.copy_(torch.stack([layer.gate, layer.up], -1))
        if bias:
            one.bias.copy_(torch.stack([layer.gate_bias, layer.up_bias], -1))
        torch.testing.assert_close(one(x).double(), expected, rtol=2 * rtol, atol=1e-6)


def test_interleaved_half_precision_is_trained_and_converted() -> None:
    layer = nn.GatedLinear(6, 5, True, interleaved=True, dtype=torch.float64)
    half = nn.GatedLinear(6, 5, True, interleaved=True, dtype=torch.bfloat16)
    half.load_state_dict(layer.state_dict())
    layer.load_state_dict(half.state_dict())
    x = X.to(torch.bfloat16)
    wide, narrow = (each(x.to(each.weight.dtype)).square().sum() for each in (layer, half))
    wide.backward()
    narrow.backward()
    for exact, found in zip(layer.parameters(), half.parameters(), strict=True):
        assert found.grad.dtype is torch.bfloat16
        scale = exact.grad.abs().max()
        torch.testing.assert_close(found.grad.double() / scale, exact.grad / scale, rtol=0.05, atol=0.02)
    torch.testing.assert_close(layer.to(torch.bfloat16)(x), half(x), rtol=0, atol=0)
    with pytest.raises(weft.DTypeError, match="pairs of floating numbers, not of int8"):
        nn.GatedLinear(6, 5, dtype=torch.int8, interleaved=True)


def test_devices_and_types_are_asked_for_as_in_torch() -> None:
    makers: list[Callable[..., Any]] = [
        lambda **given: nn.Linear(6, 5, **given),
        lambda **given: nn.Einsum("ab,bc->ac", (6, 5), bias="c", **given),
        lambda **given: nn.Bilinear(6, 4, 5, **given),
        lambda **given: nn.GatedLinear(6, 5, True, **given),
    ]
    for make in makers:
        layer = make(device="meta", dtype="bf16")
        assert {(each.device.type, each.dtype) for each in layer.parameters()} == {("meta", torch.bfloat16)}
    assert nn.Linear(6, 5, device="meta")(X.to("meta")).shape == (2, 3, 5)


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_gate_has_autocasts_type(interleaved: bool) -> None:
    layer = nn.GatedLinear(6, 5, bias=True, interleaved=interleaved)
    expected = layer(X)
    for x in (X, X.bfloat16(), X.half()):
        with torch.autocast("cpu", torch.bfloat16):
            found = layer(x)
        assert found.dtype == torch.bfloat16
        torch.testing.assert_close(found.float(), expected, rtol=5e-2, atol=5e-2)
        grads = torch.autograd.grad(found.float().sum(), [*layer.parameters()])
        assert all(grad.dtype == torch.float32 for grad in grads)


@pytest.mark.parametrize(
    ("layer", "inputs"),
    [
        (nn.Linear(6, 5), (X[..., :1],)),
        (nn.Linear(1, 5, activation="gelu"), (X,)),
        (nn.Linear(6, 5, weight_dtype="int8"), (X[..., :1],)),
        (nn.GatedLinear(6, 5), (X[..., :1],)),
        (nn.GatedLinear(1, 5, interleaved=True), (X,)),
        (nn.Bilinear(6, 1, 5), (X, Y)),
        (nn.Attention(6, 2), (X[..., :1],)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_single_feature_is_not_broadcast(layer: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
    with pytest.raises(weft.ShapeError, match=r"has not the \d features of the layer"):
        layer(*inputs)
