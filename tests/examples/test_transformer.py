"""The example that trains: its loss in weft's layers is torch's."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from pages import ROOT

EXAMPLE = ROOT / "examples" / "transformer.py"


@pytest.fixture
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("transformer", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def apart(found: dict[str, list[float]]) -> float:
    return max(abs(ours - theirs) for ours, theirs in zip(found["weft"], found["torch"], strict=True))


def test_the_loss_falls_as_torchs_does(example: ModuleType) -> None:
    """Rounding differs from the first step on; momentum and a hundred steps make at most 1e-4 of 1e-7."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = example.curves(steps=100)
    finally:
        torch.set_num_threads(threads)
    assert apart(found) < 1e-4
    assert found["weft"][0] > 4.3  # ln 80 or so: nothing is known of the letters
    assert sum(found["weft"][-10:]) / 10 < 3.2


def test_both_under_the_compiler(example: ModuleType) -> None:
    """The same steps where dynamo and AOTAutograd see them."""
    plain = torch.compile

    def traced(model: torch.nn.Module, **given: object) -> object:
        return plain(model, backend="aot_eager", **given)  # type: ignore[call-overload]

    torch.compile = traced  # type: ignore[assignment]
    try:
        found = example.curves(steps=5, compiled=True)
    finally:
        torch.compile = plain
        torch._dynamo.reset()
    assert apart(found) < 1e-5


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
def test_on_a_gpu(tmp_path: Path, compiled: bool) -> None:
    out = tmp_path / "curve.json"
    sizes = {"steps": 300, "width": 128, "blocks": 2, "context": 64}
    given = ["--device", "cuda", *(text for name, size in sizes.items() for text in (f"--{name}", str(size)))]
    given += ["--compile"] * compiled
    subprocess.run([sys.executable, str(EXAMPLE), *given, "--out", str(out)], check=True, timeout=500)
    found = json.loads(out.read_text())
    assert apart({name: curve[:50] for name, curve in found.items()}) < 1e-3  # rounding grows step by step
    assert abs(sum(found["weft"][-50:]) - sum(found["torch"][-50:])) / 50 < 0.02
    assert sum(found["weft"][-50:]) / 50 < 2.8  # 2.64 on an H200; 4.3 at first
