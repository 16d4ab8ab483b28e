"""The kernels of a plan: facts, code at every level, and the loop, by cross-compilation without a GPU."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from forked import printed
from plans.kernels_report import EQUATION
from weft.errors import UnsupportedError
from weft.machine.datasheets import LIMITS
from weft_bench.kernels import machine_code
from weft_bench.kernels.text import code_text
from weft_bench.machine.occupancy import occupancy

pytest.importorskip("triton")


TARGETS = ("sm_90", "a100", "rtx4090")


@pytest.fixture(scope="module")
def report() -> dict[str, dict[str, Any]]:
    return json.loads(printed(Path(__file__).with_name("kernels_report.py")))


def test_code_at_every_level(report: dict[str, dict[str, Any]]) -> None:
    for kernel in (report[name] for name in TARGETS):
        assert f".entry {kernel['name']}" in kernel["ptx"]
        assert "ttg." in kernel["ttgir"]
        assert f".text.{kernel['name']}" in kernel["sass"]
        assert 16 <= kernel["registers"] <= 255
        assert kernel["spills"] == 0
        [threads] = re.findall(r"\.(?:reqntid|maxntid) (\d+)", kernel["ptx"])
        assert 32 * kernel["warps"] == int(threads)


def test_occupancy_is_that_of_the_facts(report: dict[str, dict[str, Any]]) -> None:
    for name, capability, processors in (("sm_90", 90, 132), ("a100", 80, 108), ("rtx4090", 89, 128)):
        kernel = report[name]
        mine = occupancy(
            LIMITS[capability],
            **{what: kernel[what] for what in ("registers", "shared", "warps", "barriers")},
        )
        assert kernel["blocks_per_sm"] == mine.blocks >= 1
        assert kernel["waves"] == kernel["programs"] / (processors * mine.blocks)


@pytest.mark.parametrize(("name", "product"), [("sm_90", "wgmma"), ("a100", "mma"), ("rtx4090", "mma")])
@pytest.mark.parametrize("of", ["ptx", "sass"])
def test_the_mix_has_what_the_gpu_multiplies_with(
    name: str, product: str, of: str, report: dict[str, dict[str, Any]]
) -> None:
    """Matrix instructions of its own generation, 16-byte accesses, and no instruction of an unknown kind."""
    read = machine_code.read_ptx if of == "ptx" else machine_code.read_sass
    lines = read(report[name][of])
    kinds = machine_code.mix([each for each in lines if not isinstance(each, str)])
    assert kinds[product] >= 4
    assert "other" not in kinds
    assert kinds.keys() & {"ld.global 16 B", "cp.async 16 B", "TMA load"}
    loop = machine_code.loop_of(lines)
    assert loop.mix[product] >= 1
    assert any("kernel.py:" in each.source for each in loop.instructions)


def test_text_names_facts_mix_and_lines(report: dict[str, dict[str, Any]]) -> None:
    for of in ("ptx", "sass"):
        text = report["sm_90"][f"{of} text"]
        for part in (report["sm_90"]["name"], "registers a thread", "blocks by warps", "wgmma", "... and "):
            assert part in text
    assert "no kernel of weft's own" in code_text([], "ptx")


def test_kernels_of_the_microbenchmarks(report: dict[str, dict[str, Any]]) -> None:
    """Strided elements go one by one; what comes from the L2 comes in 16 bytes, past the first cache."""
    found = report["micro"]
    copied = machine_code.mix(
        [each for each in machine_code.read_ptx(found["strided_copy_kernel"]) if not isinstance(each, str)]
    )
    assert copied["ld.global 4 B"] == copied["st.global 4 B"] == 2
    again = machine_code.read_ptx(found["read_again_kernel"])
    loads = [each.text for each in again if not isinstance(each, str) and each.kind == "ld.global 16 B"]
    assert loads
    assert all(".cg" in load for load in loads)


def test_a_plan_on_the_cpu_has_none() -> None:
    a = torch.ones(3, 3)
    assert weft.plan("ij,jk->ik", a, a).kernels == ()


def test_loops_are_told_from_straight_code() -> None:
    text = """
        .file 1 "a/b/kernel.py"
$L__BB0_1:
        .loc 1 7 3
        mma.sync.aligned.m16n8k16 {%r1}, {%r2};
        st.shared.v4.b32 [%r3], {%r1, %r1, %r1, %r1};
        @%p1 bra $L__BB0_1;
        st.global.v2.b64 [%rd1], {%rd2, %rd2};
        @!%p2 ld.global.b16 %rs1, [%rd1];
        ret;
    """
    lines = machine_code.read_ptx(text)
    shown = [each.text for each in lines if not isinstance(each, str)]
    assert shown[0] == "mma.sync.aligned.m16n8k16 {%r1}, {%r2}"  # its last brace closes
    assert shown[1] == "st.shared.v4.b32 [%r3], {%r1, %r1, %r1, %r1}"
    loop = machine_code.loop_of(lines)
    assert not loop.whole
    assert loop.mix == {"mma": 1, "st.shared 16 B": 1, "branch": 1}
    assert loop.instructions[0].source == "b/kernel.py:7"
    every = machine_code.mix([each for each in lines if not isinstance(each, str)])
    assert every["st.global 16 B"] == every["ld.global 2 B"] == 1
    straight = machine_code.loop_of(machine_code.read_sass("/*0000*/ @!P0 LDG.E.128 R4, desc[UR4][R2.64] ;"))
    assert straight.whole
    assert straight.mix == {"ld.global 16 B": 1}


def test_without_tools_it_says_which_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_code, "tool", lambda name: None)
    with pytest.raises(UnsupportedError, match="nvdisasm, which is neither in Triton's package nor on PATH"):
        machine_code.sass(b"\x7fELF")


def test_what_is_no_kernel_is_said() -> None:
    with pytest.raises(UnsupportedError, match="nvdisasm cannot read this kernel"):
        machine_code.sass(b"not a cubin")


@pytest.mark.gpu
def test_the_calculator_agrees_with_the_driver() -> None:
    """Every kernel of a list of contractions and permutations, as loaded."""
    device = torch.device("cuda")
    plans = []
    for dtype in (torch.float16, torch.float32, torch.float64):
        a = torch.randn(16, 16, 16, 256, 16, device=device).to(dtype)
        b = torch.randn(256, 64, device=device).to(dtype)
        first = weft.plan(EQUATION, a, b, specialize="now")
        plans.append(first)
        for candidate in first.report().candidates[:12]:
            try:
                plans.append(weft.plan(EQUATION, a, b, schedule=candidate.schedule))
            except UnsupportedError:  # it does not fit the device
                continue
        plans.append(weft.plan_permute(a, "ecbfa->abcef"))
    x = torch.randn(512, 512, device=device)
    plans += [weft.plan("ik,kj->ij", x, x, algebra="max_plus"), weft.plan("ik,kj->ij", x + 0j, x + 0j)]
    found = [kernel for plan in plans for kernel in plan.kernels]
    assert len({kernel.name for kernel in found}) >= 4
    for kernel in found:
        assert kernel.occupancy.blocks == kernel.blocks_by_driver(), (kernel, kernel.to_dict())


SCRIPT = """
import sys
from pathlib import Path
import torch, weft
from weft.api.describe import choice_for, hypothetical
from weft.errors import UnsupportedError
from weft_bench.kernels.export import export

extents = {"a": 20, "b": 6, "c": 40, "k": 48}
for name, options in {
    "plain": {"dtype": torch.float16, "out_dtype": torch.float32},
    "fused": {"dtype": torch.float32, "epilogue": lambda total, bias: torch.relu(total + bias),
              "operands": {"bias": ("c", torch.float32)}},
    "int8": {"dtype": torch.int8, "out_dtype": torch.int32},
}.items():
    asked = hypothetical("abk,kc->cab", extents, target="sm_90", **options)
    contraction, choice = choice_for(asked)
    export(asked, contraction, choice, Path(sys.argv[1]) / name)
double = hypothetical("abk,kc->cab", extents, target="sm_90", dtype=torch.complex64)
try:
    export(double, *choice_for(double), Path(sys.argv[1]) / "complex")
except UnsupportedError as error:
    print(error)
"""


# The driver as far as the example calls it: memory is the host's, and the kernel is relu(sum + bias) in plain loops.
DRIVER = """
#include <string.h>
#include <stdlib.h>
#include <cuda.h>
CUresult cuInit(unsigned f) { return 0; }
CUresult cuGetErrorName(CUresult s, const char **n) { return 0; }
CUresult cuDeviceGet(CUdevice *d, int n) { return 0; }
CUresult cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice d) { return 0; }
CUresult cuCtxSetCurrent(CUcontext c) { return 0; }
CUresult cuCtxSynchronize(void) { return 0; }
CUresult cuModuleLoad(CUmodule *m, const char *f) { return 0; }
CUresult cuModuleGetFunction(CUfunction *f, CUmodule m, const char *n) { return 0; }
CUresult cuFuncSetAttribute(CUfunction f, CUfunction_attribute a, int v) { return 0; }
CUresult cuMemAlloc(CUdeviceptr *p, size_t n) { *p = (CUdeviceptr)malloc(n); return 0; }
CUresult cuMemcpyHtoD(CUdeviceptr d, const void *s, size_t n) { memcpy((void *)d, s, n); return 0; }
CUresult cuMemcpyDtoH(void *d, CUdeviceptr s, size_t n) { memcpy(d, (void *)s, n); return 0; }
CUresult cuLaunchKernel(CUfunction f, unsigned x, unsigned y, unsigned z, unsigned tx, unsigned ty, unsigned tz,
                        unsigned shared, CUstream s, void **given, void **extra)
{
    float *A = *(float **)given[0], *B = *(float **)given[1], *D = *(float **)given[2], *bias = *(float **)given[5];
    for (int c = 0; c < 40; c++)
        for (int ab = 0; ab < 120; ab++) {
            double sum = bias[c];
            for (int k = 0; k < 48; k++)
                sum += (double)A[ab * 48 + k] * B[k * 40 + c];
            D[c * 120 + ab] = sum > 0 ? sum : 0;
        }
    if (getenv("WRONG"))
        D[0] += 1;
    return 0;
}
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    (folder / "script.py").write_text(SCRIPT)
    (folder / "said").write_text(printed(folder / "script.py", str(folder)))
    return folder


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("plain", "a b d alpha beta"), ("fused", "a b d alpha beta bias"), ("int8", "a b d alpha beta")],
)
def test_the_example_compiles_and_passes_what_the_kernel_takes(name: str, arguments: str, written: Path) -> None:
    header = (written / name / "contraction.h").read_text()
    given = re.search(r"arguments\[\] = \{(.*)\}", header)
    assert given is not None
    assert given[1].replace("&", "").replace(",", "").split() == [*arguments.split(), "scratch[0]", "scratch[1]"]
    assert ("double alpha" in header) == (name != "int8")
    assert (written / name / "contraction.cubin").read_bytes().startswith(b"\x7fELF")
    subprocess.run([*compiler(), "-c", "example.c", "-o", "example.o"], cwd=written / name, check=True, timeout=60)


def compiler() -> list[str]:
    """The command of a C compiler that finds the driver's header, which Triton brings."""
    found, command = find_spec("triton"), shutil.which("cc")
    if command is None or found is None or not found.submodule_search_locations:
        pytest.skip("no C compiler, or no cuda.h")
    include = Path(found.submodule_search_locations[0]) / "backends" / "nvidia" / "include"
    return [command, "-std=c99", "-Wall", "-Werror", f"-I{include}"]


def test_the_example_tells_right_results_from_wrong_ones(written: Path) -> None:
    folder = written / "fused"
    (folder / "driver.c").write_text(DRIVER)
    subprocess.run([*compiler(), "example.c", "driver.c", "-o", "example"], cwd=folder, check=True, timeout=60)
    right, wrong = (
        subprocess.run([folder / "example"], cwd=folder, env=env, capture_output=True, text=True, timeout=60)
        for env in ({}, {"WRONG": "1"})
    )
    assert (right.returncode, right.stderr) == (0, "")
    assert re.fullmatch(r"\d\d elements of D are as expected\n", right.stdout)
    assert wrong.returncode == 1
    assert re.fullmatch(r"D\[0\] is off by 1, more than \S+\n", wrong.stdout)


@pytest.mark.parametrize(
    ("name", "values"),
    [("half", [1.0, 0.375, -2.5, 65504.0, 6e-8, 6.1e-5, 0.0]), ("bfloat16", [1.0, 0.375, -2.5, 3e38, 1e-38])],
)
def test_short_types_are_read(name: str, values: list[float], tmp_path: Path) -> None:
    from weft_bench.kernels.export import _READING

    stored = torch.tensor(values, dtype=getattr(torch, name))
    reader = {"half": "half", "bfloat16": "brain"}[name]
    bits = ", ".join(str(each & 0xFFFF) for each in stored.view(torch.int16).tolist())
    (tmp_path / "main.c").write_text(
        f"#include <stdio.h>\n{_READING[reader]}\nint main(void) {{ unsigned short some[] = {{{bits}}};\n"
        f'for (int i = 0; i < {len(values)}; i++) printf("%.17g\\n", {reader}(some[i]));\nreturn 0; }}\n'
    )
    subprocess.run([*compiler(), "main.c", "-o", "main"], cwd=tmp_path, check=True, timeout=60)
    said = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=True, timeout=60).stdout
    assert [float(line) for line in said.split()] == stored.double().tolist()


def test_what_is_no_single_kernel_is_refused(written: Path) -> None:
    assert "no candidate is one kernel without tensor maps and workspace" in (written / "said").read_text()
