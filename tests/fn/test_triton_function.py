"""`@triton.jit` functions of the user's, taken as they are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from forked import printed
from weft.errors import FunctionError, UnsupportedError
from weft.fn import fingerprint, trace

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

SLOPE = tl.constexpr(0.25)


@triton.jit
def leaky(x):
    return tl.where(x > 0, x, x * SLOPE)


@triton.jit
def scaled(x, scale, bias):
    return x * scale + bias


def test_it_is_itself() -> None:
    function = trace(leaky, (torch.float32,), hook="epilogue")
    assert function.jit is leaky
    assert function.result == torch.float32
    assert function.flops == 0
    assert function.inputs == ("x",)
    assert "def leaky(x):" in function.source
    assert fingerprint(leaky) is not None


def test_the_cpu_needs_a_torch_function() -> None:
    with pytest.raises(UnsupportedError, match=r"leaky is a Triton function .* torch operations"):
        trace(leaky, (torch.float32,))(torch.ones(2))


def test_inputs_stand_in_the_order_of_its_parameters() -> None:
    function = trace(scaled, (torch.float32, torch.float16, torch.int32), names=("bias", "scale"))
    assert function.inputs == ("x", "scale", "bias")
    assert function.dtypes == (torch.float32, torch.int32, torch.float16)


def test_its_parameters_are_checked() -> None:
    with pytest.raises(FunctionError, match="epilogue: missing a required argument: 'scale'"):
        trace(scaled, (torch.float32,), hook="epilogue")


def test_dtypes_belong_to_the_identity() -> None:
    assert trace(leaky, (torch.float32,)) != trace(leaky, (torch.float64,))
    assert trace(leaky, (torch.float32,)) == trace(leaky, (torch.float32,))


def test_stale_keys_of_compiled_functions(tmp_path: Path) -> None:
    """FIELD-BUGS 13: a global constexpr that changes, a helper function that is replaced; without the interpreter."""
    script = tmp_path / "stale.py"
    script.write_text(
        """
import torch, triton, triton.language as tl
from weft.fn import trace

ALPHA = tl.constexpr(0.5)

@triton.jit
def helper(x):
    return x + 1

@triton.jit
def other_helper(x):
    return x + 2

@triton.jit
def fn(x):
    return helper(x) * ALPHA

first = trace(fn, (torch.float32,))
assert first.jit is fn and trace(fn, (torch.float32,)) is first
ALPHA = tl.constexpr(0.25)
second = trace(fn, (torch.float32,))
assert second.identity != first.identity
assert second.jit.cache_key != first.jit.cache_key
helper = other_helper
third = trace(fn, (torch.float32,))
assert len({first.identity, second.identity, third.identity}) == 3
"""
    )
    printed(script)
