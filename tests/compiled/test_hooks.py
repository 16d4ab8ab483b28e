"""What else of torch sees weft's calls: fake and meta tensors, tracers, export, counters of flops."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

import weft
from commands import python
from compiled.test_compile import BIAS, CALLS, A, B, layer
from forked import said
from weft.fn.trace import _traces as trace_cache

OPERATIONS = ("contract", "contract_out", "permute", "permute_out")


def alike(found: Any, expected: Any) -> None:
    """Of one shape, type and lie."""
    pairs = zip(found, expected, strict=True) if isinstance(expected, tuple) else [(found, expected)]
    for one, other in pairs:
        if isinstance(other, tuple):
            alike(one, other)
            continue
        assert (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype)


OWN_TENSORS = ("closure and operand", "types", "einsum of three", "out", "plan")  # calls that take more than A and B


@pytest.mark.parametrize("name", [name for name in CALLS if name not in OWN_TENSORS])
def test_tensors_without_memory_give_such_results(name: str) -> None:
    expected = CALLS[name](A, B)
    mode = FakeTensorMode()
    fake = CALLS[name](mode.from_tensor(A), mode.from_tensor(B))
    alike(fake, expected)
    first = fake[0] if isinstance(fake, tuple) else fake
    assert type(first).__name__ == "FakeTensor"
    assert first.device == A.device
    with mode:
        alike(CALLS[name](torch.empty(8, 6), torch.empty(6, 5)), expected)
    if name != "validated":
        meta = CALLS[name](A.to("meta"), B.to("meta"))
        alike(meta, expected)
        assert (meta[0] if isinstance(meta, tuple) else meta).is_meta
    assert type(CALLS[name](A, B)) is type(expected)  # nothing fake was kept for real calls
    torch.testing.assert_close(CALLS[name](A, B), expected, rtol=0, atol=0)


def test_a_plan_and_a_place_without_memory() -> None:
    meta = A.to("meta")
    out = torch.empty(8, 5, device="meta")
    assert weft.contract("mk,kn->mn", meta, B.to("meta"), out=out) is out
    with pytest.raises(weft.ShapeError, match=r"out has shape \(8, 4\), the result has \(8, 5\)"):
        weft.contract("mk,kn->mn", meta, B.to("meta"), out=torch.empty(8, 4, device="meta"))
    planned = weft.plan("mk,kn->mn", A, B)
    assert planned(meta, B.to("meta")).shape == (8, 5)


def test_networks_of_tensors_without_memory() -> None:
    given = A.to("meta"), B.to("meta"), torch.empty(5, 8, device="meta")
    out, text = torch.empty(8, 8, device="meta"), "mk,kn,nj->jm"
    net = weft.network(text, *given)
    for found in (weft.einsum(text, *given), net(*given), weft.einsum(text, *given, out=out)):
        assert found.is_meta
        assert found.shape == (8, 8)
    half = weft.einsum(text, *given, epilogue=torch.relu, out_dtype="fp16")
    assert (half.dtype, half.stride()) == (torch.float16, (8, 1))
    with pytest.raises(weft.ShapeError, match="label 'n' has extent 5 in operand 1 and 8 in operand 2"):
        weft.einsum(text, *given[:2], given[2].T)
    with pytest.raises(weft.ShapeError, match="the network was made for meta"):
        net(A, B, torch.empty(5, 8))


def test_errors_of_calls_without_memory_are_those_of_calls() -> None:
    with pytest.raises(weft.ShapeError, match="label 'k' has extent 6 in operand 0 and 8 in operand 1"):
        weft.contract("mk,kn->mn", A.to("meta"), A.to("meta"))
    with pytest.raises(weft.DTypeError, match="operands of types float32 and float64"):
        weft.contract("mk,kn->mn", A.to("meta"), B.double().to("meta"))


def test_a_tracer_writes_the_operations_down() -> None:
    traced = make_fx(lambda a, b: weft.einsum("ab,bc->ca", a, b, epilogue=torch.relu))(A, B)
    targets = [node.target for node in traced.graph.nodes if node.op == "call_function"]
    assert torch.ops.weft.contract.default in targets
    other = torch.randn(8, 6)
    torch.testing.assert_close(traced(other, B), torch.relu(other @ B).T)


def test_flops_are_counted() -> None:
    with FlopCounterMode(display=False) as counter:
        layer(A, B)
        weft.permute(A, "ab->ba")
    assert counter.get_total_flops() == 2 * 8 * 6 * 5
    z = torch.randn(8, 6, dtype=torch.complex64)
    with FlopCounterMode(display=False) as counter:
        weft.einsum("bmk,kn->bmn", torch.stack([z, z]), torch.randn(6, 5, dtype=torch.complex64))
        weft.einsum("mk,kn->mn", A.to("meta"), B.to("meta"))
    assert counter.get_total_flops() == 8 * 2 * 8 * 6 * 5 + 2 * 8 * 6 * 5


def test_a_counter_that_was_imported_after_weft_counts() -> None:
    code = (
        "import torch, weft\nfrom torch.utils.flop_counter import FlopCounterMode\n"
        "a, b = torch.ones(3, 4), torch.ones(4, 5)\nweft.matmul(a, b)\n"
        "with FlopCounterMode(display=False) as counter: weft.matmul(a, b)\nprint(counter.get_total_flops())"
    )
    assert python(code) == "120"


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randn(6, 5))

    def forward(self, x: torch.Tensor) -> Any:
        return weft.matmul(
            x, self.weight, epilogue=lambda total, bias: torch.relu(total + bias), operands={"bias": ("n", BIAS)}
        )


@pytest.mark.parametrize("strict", [False, True])
def test_a_module_is_exported(strict: bool, tmp_path: Path) -> None:
    module, rows = Layer(), torch.export.Dim("rows", min=2)
    program = torch.export.export(module, (A,), dynamic_shapes={"x": {0: rows}}, strict=strict)
    for a in (A, torch.randn(3, 6)):
        torch.testing.assert_close(program.module()(a), module(a), rtol=0, atol=0)
    assert any(node.target is torch.ops.weft.contract.default for node in program.graph.nodes)


def test_an_exported_program_runs_where_its_source_is_not(tmp_path: Path) -> None:
    module = Layer()
    trace_cache._entries.clear()  # functions are traced while torch traces: nothing of it stands in the program
    torch.export.save(torch.export.export(module, (A,)), tmp_path / "layer.pt2")
    torch.save((A, module(A)), tmp_path / "expected.pt")
    code = (
        "import sys, torch, weft\n"
        "x, expected = torch.load(sys.argv[2])\n"
        "found = torch.export.load(sys.argv[1]).module()(x)\n"
        "print(torch.equal(found, expected))"
    )
    assert said(code, str(tmp_path / "layer.pt2"), str(tmp_path / "expected.pt")).strip() == "True"


def test_torch_finds_nothing_wrong_with_the_operations() -> None:
    text = make_fx(lambda a, b: layer(a, b))(A, B)
    (node,) = (node for node in text.graph.nodes if node.target is torch.ops.weft.contract.default)
    call = node.args[0]
    tests = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    found = torch.library.opcheck(torch.ops.weft.contract.default, (call, [A, B, BIAS], 0.5, 1.0), test_utils=tests)
    out = torch.empty(8, 5)
    found |= torch.library.opcheck(
        torch.ops.weft.contract_out.default, (call, [A, B, BIAS], 0.5, 1.0, [out]), test_utils=tests[:2]
    )
    assert set(found.values()) == {"SUCCESS"}


def test_operations_are_named_once() -> None:
    for name in OPERATIONS:
        assert getattr(torch.ops.weft, name).default.name() == f"weft::{name}"
    buffer = io.StringIO()
    print(torch.ops.weft.contract.default._schema, file=buffer)
    assert "str call, Tensor[] tensors, Scalar alpha, Scalar beta" in buffer.getvalue()
