"""A Triton that is absent, torn or unknown: one sentence names it and says what still works."""

from __future__ import annotations

import pytest
import torch

import weft
from commands import python
from weft.planner import registry

BROKEN = {
    "absent": "sys.modules['triton'] = None",
    "torn": "sys.modules['triton'] = types.ModuleType('triton')",  # no attribute is there
}
AROUND = {"TRITON_INTERPRET": "1", "WEFT_SELFTEST": "1"}


@pytest.mark.parametrize("how", BROKEN)
def test_one_sentence_when_triton_is_asked_for(how: str) -> None:
    code = (
        f"import sys, types; {BROKEN[how]}\n"
        "import torch, weft; a = torch.ones(3, 3)\n"
        "try: weft.contract('mk,kn->mn', a, a, backend='triton')\n"
        "except weft.UnsupportedError as error: print(error)\n"
        "print(weft.contract('mk,kn->mn', a, a, a_fn=torch.exp, backend='cpu').shape)"
    )
    sentence, *_, last = python(code, **AROUND).splitlines()
    version = registry.package_version("triton")
    assert sentence.count("Triton") <= 2, "once for all families"
    assert "cannot be imported (" in sentence if version else "Triton is not installed" in sentence
    assert version is None or f"Triton {version}" in sentence
    assert "backend 'cpu' works without it" in sentence
    assert last == "torch.Size([3, 3])"


def test_doctor_goes_on_without_it() -> None:
    code = (
        f"import sys, types; {BROKEN['torn']}\n"
        "from typer.testing import CliRunner; from weft.cli.main import app\n"
        "done = CliRunner().invoke(app, ['doctor', '--backend', 'triton', '--device', 'cpu'])\n"
        "print(done.exit_code, ' '.join(done.output.split()))"
    )
    told = python(code, **AROUND)
    assert told.startswith("1 ")
    assert "backend 'cpu' works without it" in told


def test_one_family_that_cannot_be_imported_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.FAMILIES, "cpu", ("weft.nowhere.family", *registry.FAMILIES["cpu"]))
    a, b = torch.ones(4, 11), torch.ones(11, 3)
    plan = weft.plan("mk,kn->mn", a, b, backend="cpu", workspace_limit=1 << 21)
    assert torch.equal(plan(a, b), a @ b)
    [line] = [line for line in plan.explain().splitlines() if "nowhere" in line]
    assert "it cannot be imported under torch" in line
    assert "ModuleNotFoundError" in line
