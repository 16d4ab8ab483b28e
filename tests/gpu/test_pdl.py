"""Launches that come to the device before the ones before have ended: what they read is there all the same."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

import weft
from weft.gpu.common import driver as module
from weft.gpu.common.constraints import is_short
from weft.gpu.common.driver import can_pdl
from weft.gpu.common.release import PDL_OPTION
from weft.gpu.warp_specialized import family as boxes
from weft.planner.schedule import Target
from weft.spec import Contraction, Layout, canonical, parse
from weft.spec.contraction import class_modes
from weft.spec.dtypes import resolve

H200 = Target("cuda", 0, "NVIDIA H200", 90, 132, 232448)
A100 = Target("cuda", 0, "NVIDIA A100", 80, 108, 166912)
GPU = Path(weft.__file__).parent / "gpu"
KERNELS = [*sorted(GPU.glob("*/*kernel.py")), GPU / "selection.py", GPU / "common/tiles.py"]


def square(n: int) -> Contraction:
    notation = parse("ij,jk->ik")
    a, b, d = (Layout.contiguous((n, n), torch.float16) for _ in range(3))
    modes = class_modes(notation, a, b, None, d, dict.fromkeys("ijk", n))
    return canonical(Contraction(modes, a, b, None, d, resolve(torch.float16, torch.float16, None), text="ij,jk->ik"))


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.stem)
def test_every_kernel_waits_before_anything_else(path: Path) -> None:
    functions = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
    launched = [function for function in functions if function.name.endswith("_kernel")]
    assert launched
    for function in launched:
        calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
        waits = [call.lineno for call in calls if ast.unparse(call) in ("pdl_begin()", "pdl_wait()")]
        assert len(waits) == 1, function.name
        roles = [call.lineno for call in calls if ast.unparse(call.func) == "pipeline.start_roles"]
        first = next(
            each for each in function.body if ast.get_docstring(function) is None or each is not function.body[0]
        )
        assert waits[0] < min(roles) if roles else waits[0] == first.lineno, function.name


def test_only_devices_that_can_let_launches_follow() -> None:
    assert can_pdl(H200)
    assert not can_pdl(A100)
    assert not can_pdl(Target("hip", 0, "AMD MI300X", 94, 304, 65536))


@pytest.mark.parametrize(("version", "pdl"), [(12020, False), (12030, True), (None, True)])
def test_only_drivers_whose_graphs_can_hold_such_launches(
    monkeypatch: pytest.MonkeyPatch, version: int | None, pdl: bool
) -> None:
    monkeypatch.setattr(module, "driver_version", lambda: version)
    assert can_pdl(H200) is pdl


def test_long_products_of_tma_tiles_do_not_follow() -> None:
    """Their order of tiles is worth more than a microsecond."""
    assert is_short(square(2048))
    assert not is_short(square(4096))
    for n in (2048, 4096):
        schedule = boxes.schedules(square(n), H200).schedules[0]
        (launch,) = boxes.build(square(n), schedule, H200).kernels
        assert launch.options[PDL_OPTION] is (n == 2048)


def chain(x: torch.Tensor, turns: list[torch.Tensor]) -> torch.Tensor:
    """Short launches, each of which reads what the one before wrote, often where a freed workspace was."""
    for i, turn in enumerate(turns):
        grown = (lambda v: v * 1.25) if i % 2 else (lambda v: v * 0.8)
        x = weft.contract("ij,jk->ki", x, turn, a_fn=grown, out_dtype=x.dtype)
        x = weft.permute(x, "ab->ba")
        x = weft.contract("ij,kj->ik", x, turn, out_dtype=x.dtype)
    return x


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_a_chain_of_short_launches_reads_what_was_written(dtype: torch.dtype) -> None:
    device = torch.device("cuda")
    torch.manual_seed(0)
    x = torch.randn(320, 320, device=device, dtype=torch.float64).to(dtype)
    turns = [torch.linalg.qr(torch.randn(320, 320, device=device))[0].to(dtype) for _ in range(16)]
    first = chain(x, turns)
    error = (first.double() - x.double()).norm() / x.double().norm()  # each turn is turned back
    assert error < (2e-2 if dtype is torch.float16 else 1e-5)
    for _ in range(20):
        assert torch.equal(chain(x, turns), first)


@pytest.mark.gpu
def test_a_captured_chain_between_other_work_reads_what_was_written() -> None:
    device = torch.device("cuda")
    torch.manual_seed(0)
    x = torch.randn(320, 320, device=device, dtype=torch.float16)
    turns = [torch.linalg.qr(torch.randn(320, 320, device=device))[0].half() for _ in range(8)]
    first = chain(x, turns)
    read = torch.empty_like(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        read.copy_(x)  # no kernel: a copy
        result = chain(read, turns)
        read.zero_()  # after the chain has read it
        again = chain(result, turns)
        kept = again.clone()
    for _ in range(20):
        kept.fill_(float("nan"))
        graph.replay()
        assert torch.equal(result, first)
        assert torch.equal(kept, chain(first, turns))
