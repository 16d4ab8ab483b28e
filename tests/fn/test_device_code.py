"""The emitted functions as Triton functions: compiled without a GPU, found again, and imported only when asked for."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fn.function_cases import CASES
from forked import printed
from weft.fn import trace

pytestmark = pytest.mark.early
SCRIPT = Path(__file__).with_name("cross_compile.py")


def run_python(*arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def cross_compile(cache: Path, *jobs: str) -> dict[str, dict[str, dict[str, Any]]]:
    return json.loads(printed(SCRIPT, *jobs, TRITON_CACHE_DIR=str(cache)).splitlines()[-1])


@pytest.mark.parametrize(
    "jobs",
    [
        pytest.param(("sm_90:float32,int32", "sm_80:int8", "gfx942:bfloat16"), id="a type of each kind"),
        pytest.param(
            (
                "sm_90:float32,float64,float16,bfloat16,int32,int64,uint8",
                "sm_80:float32,int8",
                "gfx942:float32,float64,bfloat16,int16",
            ),
            id="all types",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_every_operation_compiles_for_every_target(tmp_path: Path, jobs: tuple[str, ...]) -> None:
    """And its keys, by which Triton finds a kernel on disk, are the same in the next process."""
    pytest.importorskip("triton")
    compiled = cross_compile(tmp_path, *jobs)
    for dtypes in compiled.values():
        for dtype, facts in dtypes.items():
            assert len(facts["keys"]) == sum(getattr(torch, dtype) in case.dtypes for case in CASES)
    assert "float32" in compiled["sm_90"]
    for target in ("sm_90", "sm_80"):
        if "float32" not in compiled[target]:
            continue
        ptx = compiled[target]["float32"]["ptx"]
        assert ptx["max.NaN.f32"] > 0  # a maximum that hands NaN on is one instruction
        assert ptx["div.full"] == 0  # division rounds correctly
        assert ptx["call.uni"] == 0  # everything is inlined
    again = json.loads(run_python(str(SCRIPT), "none:float32,int8", TRITON_INTERPRET="0").splitlines()[-1])["none"]
    assert again["float32"]["keys"] == compiled["sm_90"]["float32"]["keys"]
    assert again["int8"]["keys"] == compiled["sm_80"]["int8"]["keys"]


def test_one_jit_function_for_one_source() -> None:
    pytest.importorskip("triton")
    one, other = (trace(eval(text), (torch.float32,)) for text in ("lambda x: x * 3", "lambda value: value * 3"))
    assert one.jit is other.jit
    assert one.jit is not trace(lambda x: x * 4, (torch.float32,)).jit


def test_source_can_be_inspected() -> None:
    pytest.importorskip("triton")
    function = trace(lambda x: F.elu(x, 0.7), (torch.float32,))
    assert function.source.startswith("@triton.jit\ndef fused_")
    assert inspect.getsource(function.jit.fn) == function.source
    assert function.source.count("def ") == 1


def test_tracing_and_emitting_import_no_triton() -> None:
    text = (
        "import sys, torch\n"
        "from weft.fn import trace, fingerprint\n"
        "p = trace(lambda x: torch.tanh(x) * 2, (torch.float32,))\n"
        "p(torch.ones(3, 2)), p.identity, p.flops, p.source, fingerprint(torch.tanh)\n"
        "assert not any(name == 'triton' or name.startswith('triton.') for name in sys.modules), 'triton'\n"
    )
    run_python("-c", text)


def test_gluon_kernels_take_the_same_function(tmp_path: Path) -> None:
    pytest.importorskip("triton.experimental.gluon._runtime")
    text = """
import torch, triton
from triton.backends.compiler import GPUTarget
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource
from weft.fn import trace

@gluon.jit
def kernel(p, FN: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    i = gl.arange(0, 256, layout=layout)
    gl.store(p + i, FN(gl.load(p + i)))

for fn in (torch.nn.functional.gelu, lambda x: torch.where(x > 0.1, x % 0.3, 0.1) ** 1.7, lambda x: 0.1):
    source = GluonASTSource(
        fn=kernel,
        signature={"p": "*fp64", "FN": "constexpr"},
        constexprs={"FN": trace(fn, (torch.float64,)).jit},
    )
    assert triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["cubin"]
"""
    script = tmp_path / "gluon_kernel.py"
    script.write_text(text)
    printed(script, TRITON_CACHE_DIR=str(tmp_path))
