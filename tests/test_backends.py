"""What every backend keeps: the oracle's values, and limits on workspace."""

from __future__ import annotations

import torch

import weft
from support import Backend
from weft import reference
from weft_bench import cases


def test_reference_is_the_oracle() -> None:
    for case in cases.general():
        if case.layouts[3] == "contiguous":
            given = cases.operands(case)
            options = case.options()
            d = weft.contract(case.equation, given.a, given.b, c=given.c, backend="reference", **options)
            expected = reference.contract(case.equation, given.a, given.b, c=given.c, **options)
            assert torch.equal(d, expected), case.name


def test_auto_is_cpu_here() -> None:
    a = torch.ones(2, 2)
    assert weft.plan("mk,kn->mn", a, a).schedule == weft.plan("mk,kn->mn", a, a, backend="cpu").schedule


def test_an_operand_is_copied_whole_only_where_the_plan_says_so(backend: Backend) -> None:
    """Planned, not run. On a GPU a copy may be the fastest way; no call needs one."""
    a = torch.empty(512, 130, 256, device=backend.device)
    b = torch.empty(256, 512, 130, device=backend.device)
    p = weft.plan("abc,cad->bd", a, b, backend=backend.name)
    copied = "ttgt" in str(p.schedule)
    assert (p.workspace_bytes >= a.nbytes) if copied else (0 <= p.workspace_bytes < a.nbytes / 4)
    assert not copied or backend.device != "cpu"
    lean = weft.plan("abc,cad->bd", a, b, backend=backend.name, workspace_limit=a.nbytes // 4)
    assert "ttgt" not in str(lean.schedule)
    assert 0 <= lean.workspace_bytes < a.nbytes / 4


def test_workspace_limit_is_kept_or_refused(backend: Backend) -> None:
    a = torch.ones(40, 50, 60, device=backend.device)
    b = torch.ones(60, 40, 30, device=backend.device)
    needed = weft.plan("abc,cad->bd", a, b, backend=backend.name).workspace_bytes
    try:
        least = weft.plan("abc,cad->bd", a, b, backend=backend.name, workspace_limit=0).workspace_bytes
    except weft.WorkspaceError as error:
        least = int(str(error).split(" takes ")[1].split()[0])  # the least that a plan needs is named
    assert 0 <= least <= needed
    assert weft.plan("abc,cad->bd", a, b, backend=backend.name, workspace_limit=least).workspace_bytes <= least
    assert weft.plan("abc,cad->bd", a, b, backend=backend.name, workspace_limit=needed).workspace_bytes <= needed
