"""What importing weft costs and brings, seen in fresh interpreters."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

ROOMS_WITHOUT_TRITON = (
    "weft",
    "weft.spec",
    "weft.fn",
    "weft.plan",
    "weft.plan.plan",
    "weft.plan.planner",
    "weft.perf",
    "weft.cpu",
    "weft.reference",
    "weft.testing",
    "weft.cases",
)


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return done.stdout.strip()


@pytest.mark.parametrize("room", ROOMS_WITHOUT_TRITON)
def test_imports_no_triton_and_touches_no_gpu(room: str) -> None:
    code = f"import sys, torch, {room}; print('triton' in sys.modules, torch.cuda.is_initialized())"
    assert python(code) == "False False"


def test_cpu_contraction_needs_no_triton() -> None:
    """Running on the CPU, functions and plans included, leaves Triton alone."""
    code = (
        "import sys, torch, weft; a = torch.ones(3, 3); "
        "p = weft.plan('mk,kn->mn', a, a, a_fn=torch.relu); p(a, a); p.explain(); weft.einsum('ij->ji', a); "
        "print('triton' in sys.modules)"
    )
    assert python(code) == "False"


def test_import_is_quick() -> None:
    """Under 0.3 s beyond torch: the processor time of the import alone, best of three interpreters."""
    code = "import torch, time; t = time.process_time(); import weft; print(time.process_time() - t)"
    assert min(float(python(code)) for _ in range(3)) < 0.3


def test_public_names() -> None:
    import weft

    for name in weft.__all__:
        assert hasattr(weft, name)
    wanted = {"contract", "plan", "Plan", "einsum", "reference", "WeftError", "NotationError", "ShapeError"}
    wanted |= {"DTypeError", "FunctionError", "UnsupportedError", "WorkspaceError"}
    assert wanted <= set(dir(weft))


def test_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "weft", "--help"], capture_output=True, text=True, check=True, timeout=120,
        env={**os.environ, "COLUMNS": "80"},
    )  # fmt: skip
    assert "demo" in done.stdout
