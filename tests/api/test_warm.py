"""What `weft.warm` would compile, and what it refuses. Compiling itself needs a GPU or minutes."""

from __future__ import annotations

import pytest
import torch
from typer.testing import CliRunner

import weft
from weft.api.describe import TARGETS, choices, described, in_types, read_equations
from weft.cli.main import app
from weft.spec import Contraction

pytest.importorskip("triton")


def test_equations_of_a_file_are_planned() -> None:
    text = "# mine\n\nab,bc->ac a=3,b=4,c=5\nabc->cab a=2,b=3,c=4\nabc->cab a=2,b=3,c=4\nab,bc->ac a=999,b=999,c=999\n"
    found = list(read_equations(text))
    assert [equation for equation, _ in found] == ["ab,bc->ac", "abc->cab", "abc->cab", "ab,bc->ac"]
    assert [tuple(operand.shape) for operand in found[0][1]] == [(3, 4), (4, 5)]
    wanted = choices((described(*each) for each in found), TARGETS["sm_90"])
    assert [choice.description.text for choice in wanted] == ["ab,bc->ac", "abc->cab"], "BLAS compiles nothing"
    types = [torch.float16, torch.float64]
    again = [described(*each) for each in in_types(found[:1], types)]
    assert [each.a.dtype for each in again if isinstance(each, Contraction)] == types


@pytest.mark.parametrize("line", ["ab,bc->ac", "ab,bc->ac a=3,b=4", "ab,bc->ac a=x,b=4,c=5"])
def test_a_line_that_cannot_be_read_is_named(line: str) -> None:
    with pytest.raises(weft.NotationError, match="line 1 is no equation with the extent of every label"):
        list(read_equations(line))


def test_another_device_is_refused() -> None:
    with pytest.raises(weft.UnsupportedError, match="compiled ahead for NVIDIA GPUs, not for 'cpu' here"):
        weft.warm(device="cpu")
    done = CliRunner().invoke(app, ["warm", "--device", "cpu"])
    assert done.exit_code
    assert "NVIDIA GPUs" in done.output


@pytest.mark.gpu
def test_what_is_compiled_is_found_by_calls() -> None:
    a, b = torch.ones(7, 9, device="cuda"), torch.ones(9, 5, device="cuda")
    assert weft.warm([("ab,bc->ac", (a, b))]) == 1
    assert torch.equal(weft.contract("ab,bc->ac", a, b, specialize="now"), torch.full((7, 5), 9.0, device="cuda"))
