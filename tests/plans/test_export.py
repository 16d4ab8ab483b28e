"""A contraction for C: what is written compiles, and says what the kernel takes. Kernels are compiled, not run."""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from forked import printed

SCRIPT = """
import sys
from pathlib import Path
import torch, weft
from weft.api.describe import choice_for, hypothetical
from weft.errors import UnsupportedError
from weft.plans.kernels.export import export

extents = {"a": 20, "b": 6, "c": 40, "k": 48}
for name, options in {
    "plain": {"dtype": torch.float16, "out_dtype": torch.float32},
    "fused": {"dtype": torch.float32, "epilogue": lambda total, bias: torch.relu(total + bias),
              "operands": {"bias": ("c", torch.float32)}},
    "int8": {"dtype": torch.int8, "out_dtype": torch.int32},
}.items():
    asked = hypothetical("abk,kc->cab", extents, target="sm_90", **options)
    contraction, choice = choice_for(asked)
    export(contraction, choice, Path(sys.argv[1]) / name)
double = hypothetical("abk,kc->cab", extents, target="sm_90", dtype=torch.complex64)
try:
    export(*choice_for(double), Path(sys.argv[1]) / "complex")
except UnsupportedError as error:
    print(error)
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
    found = find_spec("triton")
    compiler = shutil.which("cc")
    if compiler is None or found is None or not found.submodule_search_locations:
        pytest.skip("no C compiler, or no cuda.h")
    include = Path(found.submodule_search_locations[0]) / "backends" / "nvidia" / "include"
    command = [compiler, "-std=c99", "-Wall", "-Werror", "-c", f"-I{include}", "example.c", "-o", "example.o"]
    subprocess.run(command, cwd=written / name, check=True, timeout=60)


def test_what_is_no_single_kernel_is_refused(written: Path) -> None:
    assert "no candidate is one kernel without tensor maps and workspace" in (written / "said").read_text()
