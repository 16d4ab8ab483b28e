"""Profiles of real calls on this machine: what is measured, what is missing and why, and the process that replays."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import weft
from bench.sides import READY, have_ceilings
from commands import python, told
from weft.errors import ArgumentError, ShapeError, UnsupportedError
from weft_bench.cases import example, scaled
from weft_bench.profiling.profile import Profile, load
from weft_bench.profiling.scaling import grown, strong
from weft_bench.profiling.subject import of_case, of_plan

A, B, BIAS = torch.randn(6, 5, 4), torch.randn(4, 7), torch.randn(7)


def add_bias(total: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.relu(total + bias)


def test_a_plan_of_the_cpu() -> None:
    plan = weft.plan("abc,cd->adb", A, B)
    found = weft.profile(plan, A, B, budget=0.01)
    assert isinstance(found, Profile)
    assert found.seconds.low <= found.seconds.value <= found.seconds.high
    assert found.flops == 2 * 6 * 5 * 4 * 7
    assert found.bytes == 4 * (A.numel() + B.numel() + 6 * 7 * 5)
    assert found.schedule == str(plan.schedule)
    assert found.kernels == []
    assert "this ran on a CPU" in found.missing["counters"]
    assert "nothing is launched" in found.missing["launches"]
    text = str(found)
    for part in ("abc,cd->adb", "a call [", "missing", "so "):
        assert part in text
    assert Profile.from_dict(json.loads(json.dumps(found.to_dict()))).samples == found.samples
    assert "<section>" in found._repr_html_()


def test_a_call_with_operands_c_and_a_place() -> None:
    out, c = torch.full((6, 5, 7), torch.nan), torch.ones(6, 5, 7)
    plan = weft.plan("abc,cd->abd", A, B, c=c, epilogue=add_bias, operands={"bias": ("d", BIAS)})
    found = weft.profile(plan, A, B, c=c, out=out, operands={"bias": BIAS}, budget=0.01)
    assert torch.allclose(out, torch.relu(torch.einsum("abc,cd->abd", A, B) + c + BIAS), atol=1e-5)
    assert found.samples


def test_a_permutation() -> None:
    found = weft.profile(weft.plan_permute(A, "abc->cab"), A, budget=0.01)
    assert found.flops == 0
    assert found.bytes == 2 * A.numel() * 4


def test_kernels_in_the_interpreter_are_compiled_for_nothing() -> None:
    pytest.importorskip("triton")
    plan = weft.plan("abc,cd->adb", A, B, backend="triton", specialize="now")
    assert plan.kernels
    found = weft.profile(plan, A, B, budget=0)
    assert "is compiled for no GPU: it runs in Triton interpreter" in found.missing["kernels"]
    assert found.flops == 2 * 6 * 5 * 4 * 7


def test_what_cannot_be_profiled_is_said() -> None:
    plan = weft.plan("abc,cd->adb", A, B)
    said = r"a profile is of a plan \(weft.plan, weft.plan_permute\) or a network, not of Tensor"
    with pytest.raises(ArgumentError, match=said):
        weft.profile(A, A, B)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="takes 2 tensors of torch's, not 1"):
        weft.profile(plan, A)
    with pytest.raises(ShapeError, match="b"):
        weft.profile(plan, A, B[:, :3].contiguous(), budget=0.01)


def replayed(recipe: bytes, folder: Path) -> subprocess.CompletedProcess[str]:
    file = folder / "call"
    file.write_bytes(recipe)
    command = [sys.executable, "-m", "weft_bench.profiling.replay", str(file)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_another_process_makes_the_same_call(tmp_path: Path) -> None:
    """The plan with its schedule and function, tensors that lie alike: a transposed one and a repeated one."""
    a, b = A.transpose(0, 1), BIAS[:4, None].expand(4, 9)
    subject = of_plan(weft.plan("bac,cd->abd", a, b, epilogue=torch.relu), (a, b), {})
    sent = subject.recipe_bytes()
    assert isinstance(sent, bytes)
    call, tensors = pickle.loads(sent).make()
    assert [tensor.stride() for tensor in tensors] == [a.stride(), b.stride()]
    assert torch.allclose(call(*tensors), torch.relu(torch.einsum("bac,cd->abd", *tensors)), atol=1e-5)
    done = replayed(sent, tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_plan_that_cannot_be_sent_says_why() -> None:
    plan = weft.plan("abc,cd->adb", A, B, epilogue=lambda total: total * 2)
    said = of_plan(plan, (A, B), {}).recipe_bytes()
    assert isinstance(said, str)
    assert "give its functions names in a module" in said


@pytest.mark.parametrize("who", ["weft", "torch"])
def test_cases_are_sent_by_name(who: str) -> None:
    subject = of_case(scaled(example(), 1 << 12), torch.device("cpu"), who)
    call, tensors = pickle.loads(subject.recipe_bytes()).make()  # type: ignore[arg-type]
    result = call(*tensors)
    a, b, _, _ = tensors
    wanted = torch.einsum("ecbfa,fd->abcde", a.double(), torch.nn.functional.elu(b.double()))
    assert torch.allclose(result.double(), wanted, atol=2e-2)
    with pytest.raises(UnsupportedError, match="cutensor cannot compute this"):
        of_case(scaled(example(), 1 << 12), torch.device("cpu"), "cutensor")


def test_growing_a_case() -> None:
    case = scaled(example(), 1 << 12)
    assert grown(case, 3).work == 3 * case.work
    found = strong(case, 1)
    assert (found.workers, found.speedups) == ((1,), (1.0,))


def test_the_command_measures_compares_and_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft_bench.cli.profile.device_ceilings", lambda place: READY)
    said = told(
        "profile", "mk,kn->mn", "--extents", "m=24,k=16,n=8", "--dtype", "float32", "--functions", "epilogue=relu",
        "--against", "torch", "--claim", "traffic", "--budget", "0.01", "--device", "cpu",
        "--out", tmp_path / "page",
    )  # fmt: skip
    for part in ("by weft on", "by torch on", "against", "effect", "verdict", "right within its bound"):
        assert part in said
    first, second = load(tmp_path / "page")
    assert first.flops == second.flops == 2 * 24 * 16 * 8
    floor = pytest.approx(1e-6 + 4 * (24 * 16 + 16 * 8 + 24 * 8) / 1e10)
    assert first.floor["seconds"] == second.floor["seconds"] == floor
    assert first.share == pytest.approx(first.floor["seconds"] / first.seconds.value)
    assert first.error_over_bound is not None
    assert first.error_over_bound <= 1
    assert (tmp_path / "page" / "index.html").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mk,kn->mn"], "--extents gives the extent of every label"),
        (["mk,kn->mn", "--extents", "m=2,k=3"], "no extent is given for n"),
        (["mk,kn->mn", "--extents", "m=2,k=3,n=4,q=5"], "extents are given for q"),
        (["example", "--placements", "a=k"], "torchrun --nproc-per-node 2 -m weft profile"),
        (["example", "--placements", "c=k"], "'c=k' in --placements is not of the form a=k, for a, b or d"),
        (["example", "--placements", "a=k", "--energy"], "--placements does not go with --energy"),
        (["tccg-01,tccg-02"], "is neither an equation nor one case: profile cases one by one"),
        (["example", "--device", "cpu", "--work", "4096", "--record", "x.json"], "nothing was counted of ecbfa,fd"),
        (["tccg-99"], "'tccg-99' is neither an equation nor a case"),
        (["tccg-04", "--extents", "a=3"], "case tccg-04 has extents of its own"),
        (["example", "--functions", "relu"], "'relu' in --functions is not of the form epilogue=relu"),
        (["example", "--functions", "epilogue=rellu"], "knows no 'rellu'"),
        (["example", "--algebra", "max_plux"], "did you mean 'max_plus'"),
        (["example", "--claim", "magic"], "--claim magic is no mechanism: launches, traffic"),
        (["example", "--device", "cpu", "--work", "4096", "--against", "gett 1x2"], "is none of the"),
    ],
)
def test_bad_requests_end_in_a_line(arguments: list[str], message: str) -> None:
    assert message in " ".join(told("profile", *arguments, code=2).split())


def test_importing_weft_brings_nothing_of_it() -> None:
    code = (
        "import sys, weft; "
        "print([name for name in sys.modules if 'profiling' in name or 'kernels.machine_code' in name or name in"
        " ('weft_bench.machine.energy', 'weft_bench.machine.sensors', 'weft_bench.machine.occupancy', 'matplotlib')]); "
        "print(callable(weft.profile), callable(weft.energy))"
    )
    assert python(code).split("\n")[:2] == ["[]", "True True"]


@pytest.fixture(autouse=True)
def ready(monkeypatch: pytest.MonkeyPatch) -> None:
    have_ceilings(monkeypatch)


@pytest.mark.gpu
def test_a_plan_on_a_gpu_is_counted() -> None:
    a, b = (torch.randn(1024, 1024, device="cuda").half() for _ in range(2))
    found = weft.profile(weft.plan("mk,kn->mn", a, b, epilogue=torch.relu), a, b)
    assert found.launches
    assert found.host is not None
    assert found.kernels
    if found.counters:
        assert found.moved is not None
        assert found.findings
    else:
        assert found.missing["counters"]
