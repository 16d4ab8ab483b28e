"""A contraction for C: what is written compiles, says what the kernel takes, and checks what it gives. No GPU runs."""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from forked import printed

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
