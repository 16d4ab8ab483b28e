"""The linter of devices finds each function of torch that would take the default device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.utils._device

import devices


@pytest.mark.parametrize("text", ["torch.zeros(3)", "torch.tensor(1.0, dtype=kind)", "list(map(torch.tensor, x))"])
def test_makers_without_a_device(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "room.py").write_text(f"import torch\n\nx = {text}\n")
    assert devices.main(str(tmp_path)) == 1
    assert "room.py:3: torch." in capsys.readouterr().out


@pytest.mark.parametrize("text", [
    "torch.zeros(3, device=x.device)", "torch.zeros(3, **words)", "torch.zeros_like(x)", "x.new_zeros(3)",
    "partial(torch.zeros, 3, device=place)", 'call(torch.arange, (3,), {"device": "cpu"})', "numpy.zeros(3)",
])  # fmt: skip
def test_makers_with_one(text: str, tmp_path: Path) -> None:
    (tmp_path / "room.py").write_text(f"import torch\n\nx = {text}\n")
    assert devices.main(str(tmp_path)) == 0


def test_all_functions_that_take_the_default_device_are_known() -> None:
    ours = {each.__name__ for each in torch.utils._device._device_constructors() if hasattr(torch, each.__name__)}
    assert ours <= devices.MAKERS
