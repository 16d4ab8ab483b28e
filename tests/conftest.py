"""Every test file runs without a GPU, its Triton kernels in Triton's interpreter; `-m gpu` runs them on a device."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings

from interpreting import replace_once_per_launch
from support import BACKENDS, Backend

settings.register_profile(
    "weft", deadline=None, derandomize=True, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("long", parent=settings.get_profile("weft"), derandomize=False, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "weft"))

CPU = pytest.param(Backend("cpu", "cpu"), id="cpu")
INTERPRETER = pytest.param(Backend("triton", "cpu"), id="interpreter")
GPU = pytest.param(Backend("triton", "cuda"), id="gpu", marks=pytest.mark.gpu)


def pytest_configure(config: pytest.Config) -> None:
    """Interpret Triton kernels unless GPU tests are asked for; Triton reads the variable when it makes a kernel.

    Tests have a cache of their own: what somebody tuned must not change what they run. Nor does the self-test of
    families run before they are used, but where it is what is tested.
    """
    os.environ.setdefault("WEFT_SELFTEST", "0")
    os.environ.setdefault("WEFT_CACHE_DIR", tempfile.mkdtemp(prefix="weft-tests-"))
    marks = config.getoption("markexpr")
    if "gpu" not in marks or "not gpu" in marks:
        os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session", autouse=True)
def quick_interpreter() -> Iterator[None]:
    """Triton's interpreter without the work that it repeats."""
    with pytest.MonkeyPatch.context() as patch:
        if os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton"):
            replace_once_per_launch(importlib.import_module("triton.runtime.interpreter"), patch)
        yield


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
