"""Every test file runs without a GPU, its Triton kernels in Triton's interpreter; `-m gpu` runs them on a device."""

from __future__ import annotations

import gc
import importlib.util
import os
import shutil
import signal
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

# Threads of torch sleep while they wait. Where processes share the cores, as with `-n auto`, waiting in a loop takes
# the core from the thread that is waited for: tests of the tuner then take three times as long. Read when torch is
# imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
import torch
from hypothesis import HealthCheck, settings

from interpreting import prepare
from support import BACKENDS, Backend, link_compiled
from weft.cpu import jit
from weft.engine.memo import keeps
from weft.machine import rotation
from weft.machine.store import cache_directory

settings.register_profile(
    "weft", deadline=None, derandomize=True, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("long", parent=settings.get_profile("weft"), derandomize=False, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "weft"))

SYSTEM = Path("/sys")
LARGE = 1 << 32  # bytes
CPU = pytest.param(Backend("cpu", "cpu"), id="cpu")
INTERPRETER = pytest.param(Backend("triton", "cpu"), id="interpreter")
GPU = pytest.param(Backend("triton", "cuda"), id="gpu", marks=pytest.mark.gpu)


def pytest_configure(config: pytest.Config) -> None:
    """Interpret Triton kernels unless GPU tests are asked for; Triton reads the variable when it makes a kernel.

    Tests have a cache of their own and no pack: what somebody tuned or built must not change what they run. Nor does
    the self-test of families run before they are used, nor the library tier before their kernels, but where these are
    what is tested. Nor are predictions held against calls on a CPU.
    """
    os.environ.setdefault("WEFT_SELFTEST", "0")
    os.environ.setdefault("WEFT_TIERS", "0")
    os.environ.setdefault("WEFT_KERNELS", "0")
    os.environ.setdefault("WEFT_CACHE_DIR", tempfile.mkdtemp(prefix="weft-tests-"))
    keep_compiled(config.rootpath / ".pytest_cache" / "compiled")
    config.option.loadscopereorder = False  # xdist keeps the order below: its own knows only how many tests a file has
    marks = config.getoption("markexpr")
    patch = pytest.MonkeyPatch()
    config.add_cleanup(patch.undo)
    leave_out_waiting(patch)
    hear_interrupts()
    if "alone" not in marks or "not alone" in marks:
        assume_small_caches(patch)
    if "gpu" not in marks or "not gpu" in marks:
        os.environ.setdefault("TRITON_INTERPRET", "1")
        os.environ.setdefault("WEFT_GUARD", "0")


def hear_interrupts() -> None:
    """Let tests interrupt calls, also where the run was begun in the background, which ignores Ctrl-C."""
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if ignored and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)


def leave_out_waiting(patch: pytest.MonkeyPatch) -> None:
    """Leave files to the system to write: a disk that others write to takes up to a tenth of a second for each."""
    patch.setattr(os, "fsync", lambda handle: None)


def assume_small_caches(patch: pytest.MonkeyPatch) -> None:
    """Let timings on the CPU rotate over inputs of 3 MiB.

    Where the last cache has hundreds of MiB, as those of servers have, each fills a gigabyte. What tests measure beside
    others is not looked at, but for being there.
    """
    size_in = rotation._size_in

    def small(file: Path) -> int:
        return min(size_in(file), 1 << 20) if SYSTEM in file.parents else size_in(file)

    patch.setattr(rotation, "_size_in", small)


def keep_compiled(kept: Path) -> None:
    """Keep the functions that are compiled for the CPU from one run to the next: they depend on weft's code alone.

    A kernel takes ten seconds. Whichever process compiles it first, the others find it, whatever caches tests give
    themselves afterwards.
    """
    if jit.fault() is not None:
        return
    link_compiled(cache_directory(), kept)
    for other in kept.iterdir():
        if other.name != jit.folder().name:
            shutil.rmtree(other, ignore_errors=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The order in which processes take files: first those marked so, then those of many tests.

    Before that cases of cross products are marked slow, but for one of so many.

    At the end no process is left alone with a long one. With WEFT_REPLAY=0 tests of what calls keep are skipped.
    """
    seen: Counter[str] = Counter()
    for item in items:
        one_of = item.get_closest_marker("one_of")
        if one_of is None or item.get_closest_marker("gpu") or item.get_closest_marker("slow"):
            continue
        name = item.nodeid.partition("[")[0]
        if seen[name] % one_of.args[0]:
            item.add_marker(pytest.mark.slow)
        seen[name] += 1
    for item in items if not keeps() else ():
        if item.get_closest_marker("keeps"):
            item.add_marker(pytest.mark.skip(reason="calls keep nothing with WEFT_REPLAY=0"))
    early = {item.path for item in items if item.get_closest_marker("early")}
    counts = Counter(item.path for item in items)
    items.sort(key=lambda item: (item.path not in early, -counts[item.path]))


def pytest_collection_finish() -> None:
    """Tens of thousands of tests stay until the end: Python need not look through them for garbage again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def prepared_interpreter() -> Iterator[None]:
    """Triton's interpreter as these tests need it."""
    with pytest.MonkeyPatch.context() as patch:
        if os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton"):
            prepare(importlib.import_module("triton.runtime.interpreter"), patch)
        yield


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Each test draws the same numbers in every run, alone or among others: one that fails can be run again."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def shared_memory() -> Iterator[None]:
    """What a test took of a GPU's memory is free again for the processes beside it, where it was much."""
    yield
    if torch.cuda.is_initialized() and torch.cuda.memory_reserved() > LARGE:
        torch.cuda.empty_cache()


def present(backend: Backend) -> Backend:
    if backend.device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return backend


@pytest.fixture(params=[CPU, INTERPRETER, GPU])
def backend(request: pytest.FixtureRequest) -> Backend:
    """Each way to run a contraction, the device among them."""
    return present(request.param)


@pytest.fixture(params=[CPU, GPU])
def quick_backend(request: pytest.FixtureRequest) -> Backend:
    """The same without the interpreter, which is slow and runs one kernel at a time."""
    return present(request.param)


@pytest.fixture(params=[INTERPRETER, GPU])
def triton_backend(request: pytest.FixtureRequest) -> Backend:
    """Triton's kernels, interpreted or on a device."""
    return present(request.param)


@pytest.fixture(params=BACKENDS)
def on(request: pytest.FixtureRequest) -> dict[str, str]:
    """The option that names a backend, for tests that compare with torch itself and not with the oracle."""
    return {"backend": request.param}
