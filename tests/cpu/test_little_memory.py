"""Little memory: LLVM ends a process where it lacks some, so that nothing is compiled without room for it."""

from __future__ import annotations

import pytest

from forked import said

_PROGRAM = """
import os, resource, torch, weft

a = torch.ones(400, 600)
pages = int(open("/proc/self/statm").read().split()[0])
_, hard = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (pages * os.sysconf("SC_PAGE_SIZE") + (64 << 20), hard))
try:
    weft.permute(a, "ij->ji", backend="cpu", specialize="now")
    print("nothing was compiled")
except weft.WorkspaceError as error:
    print(error)
print(weft.permute(a, "ij->ji", specialize="library")[0, 0].item())
resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
print(weft.permute(a, "ij->ji", backend="cpu", specialize="now")[0, 0].item())
"""


def test_compiling_without_memory_is_an_error(tmp_path: object) -> None:
    pytest.importorskip("resource")
    found = said(_PROGRAM, WEFT_CACHE_DIR=str(tmp_path), WEFT_KERNELS="0", WEFT_SELFTEST="0").splitlines()
    assert found[0].startswith("out of memory: compiling or loading a kernel for this CPU takes up to 201 MB")
    assert found[-2:] == ["1.0", "1.0"]
