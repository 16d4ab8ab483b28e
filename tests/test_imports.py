"""What importing weft costs and brings, seen in fresh interpreters."""

from __future__ import annotations

import os
import subprocess
import sys

ROOMS_WITHOUT_TRITON = (
    "weft",
    "weft.spec",
    "weft.fn",
    "weft.plans",
    "weft.plans.contraction",
    "weft.plans.select",
    "weft.planner.planner",
    "weft.machine",
    "weft.oracle",
    "weft.cpu.eager",
    "weft.reference",
    "weft.testing",
    "weft.cases",
)


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return done.stdout.strip()


def test_rooms_import_no_triton_and_touch_no_gpu() -> None:
    code = (
        "import sys, torch, importlib\n"
        f"for room in {ROOMS_WITHOUT_TRITON}:\n"
        "    importlib.import_module(room)\n"
        "    if 'triton' in sys.modules or torch.cuda.is_initialized(): print(room)"
    )
    assert python(code) == ""


def test_cpu_needs_no_triton() -> None:
    """Where no Triton can be imported, functions are traced and contractions run all the same."""
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch, weft; a = torch.full((3, 3), -1.0)\n"
        "p = weft.plan('mk,kn->mn', a, a, a_fn=torch.relu, epilogue=torch.exp)\n"
        "print(p(a, a).sum().item(), weft.einsum('ij->ji', a).sum().item())"
    )
    assert python(code) == "9.0 -9.0"


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
