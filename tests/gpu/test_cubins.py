"""Kernels that weft keeps are what Triton compiles; on a GPU, one process after the other finds them without Triton."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from forked import said

_COMPILED = """
import json
from gpu.test_cubins_lookup import chosen, kernel_of
from weft.api.describe import TARGETS
from weft.gpu.common import cubins
from weft.gpu.common.inspect import compiled
from weft.tune.compile_worker import in_place_of_the_driver
in_place_of_the_driver(TARGETS["sm_90"])
launch = kernel_of(chosen())
found, direct = cubins.code_of(launch), compiled(launch, "sm_90")
kept = cubins.found(cubins.key_of(launch), 90)
print(json.dumps([found.code == direct.asm["cubin"], kept == found, found.name, list(found.sizes)]))
"""


def test_the_kept_code_is_what_triton_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    same, kept, name, sizes = json.loads(said(_COMPILED))
    assert same
    assert kept
    assert name == "simt_kernel"
    assert sizes == [8] * 5


def _python(code: str, *arguments: str) -> str:
    """The last line that a program prints where Triton compiles."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent.parent), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=300, env=environment,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


_ON_A_DEVICE = """
import json, sys, threading
import torch, weft
from weft.gpu.common import cubins

def operands():
    torch.manual_seed(0)
    return torch.randn(2, 2, 3, device="cuda"), torch.randn(2, 2, 5, 3, device="cuda")

def right(d, a, b):
    return bool(torch.allclose(d.double(), torch.einsum("ckl,hcal->lahk", a.double(), b.double()), atol=1e-5))

a, b = operands()
answers = {}
if sys.argv[1] == "captured":
    graph, d = torch.cuda.CUDAGraph(), torch.zeros(3, 5, 2, 2, device="cuda")
    with torch.cuda.graph(graph):
        weft.contract("ckl,hcal->lahk", a, b, specialize="now", out=d)
    d.zero_()
    graph.replay()
elif sys.argv[1] == "thread":
    found = []
    thread = threading.Thread(
        target=lambda: found.append(weft.contract("ckl,hcal->lahk", a, b, specialize="now"))
    )
    thread.start(); thread.join()
    torch.cuda.synchronize()
    d = found[0]
else:
    d = weft.contract("ckl,hcal->lahk", a, b, specialize="now")
torch.cuda.synchronize()
answers["right"] = right(d, a, b)
answers["triton"] = "triton" in sys.modules
plan = weft.plan("ckl,hcal->lahk", a, b, specialize="now")
launches = plan._first().launch.kernels
answers["keys"] = [cubins.key_of(each) for each in launches]
answers["digests"] = [each.digest for each in launches]
answers["registers"] = [each.registers for each in plan.kernels]
answers["triton after"] = "triton" in sys.modules
if sys.argv[1] == "described":
    kernel = plan.kernels[0]
    answers["code"] = [".entry" in kernel.ptx, kernel.name in kernel.sass, kernel.occupancy.blocks]
    answers["driver"] = kernel.blocks_by_driver()
print(json.dumps(answers))
"""


@pytest.mark.gpu
class TestOnADevice:
    """A process after the other, each of which finds what the first one has compiled."""

    @pytest.fixture(scope="class")
    def first(self, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
        """A process with empty caches, which Triton compiles for."""
        folder = tmp_path_factory.mktemp("cubins")
        return folder, self.ran("plain", folder)

    def ran(self, how: str, folder: Path) -> dict[str, Any]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("WEFT_CACHE_DIR", str(folder))
            patch.setenv("TRITON_CACHE_DIR", str(folder / "triton"))
            found: dict[str, Any] = json.loads(_python(_ON_A_DEVICE, how))
        assert found["right"]
        return found

    def test_triton_compiles_what_is_nowhere(self, first: tuple[Path, dict[str, Any]]) -> None:
        assert first[1]["triton"]

    @pytest.mark.parametrize("how", ["plain", "captured", "thread", "described"])
    def test_a_second_process_imports_no_triton(self, first: tuple[Path, dict[str, Any]], how: str) -> None:
        folder, before = first
        found = self.ran(how, folder)
        assert not found["triton"]
        assert not found["triton after"]
        assert found["digests"] == before["digests"]
        assert found["registers"] == before["registers"]
        if how == "described":
            *written, blocks = found["code"]
            assert all(written)
            assert blocks == found["driver"]
