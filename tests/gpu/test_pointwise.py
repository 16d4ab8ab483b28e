"""Fused passes: how they go over tensors, what NVRTC makes of them without a GPU, and where kernels come from."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from weft.fn import trace
from weft.fn.pointwise import inlined
from weft.gpu.common.cubins import Cubin
from weft.gpu.pointwise import launch, nvrtc
from weft.gpu.pointwise.source import KernelText, Passage, PassTensor, Step, kernel_text, passage
from weft.planner import validity
from weft.planner.schedule import Target

HALF, SINGLE, DOUBLE = torch.float16, torch.float32, torch.float64
TARGET = Target("cuda", name="NVIDIA H100 80GB HBM3", capability=90)


@pytest.fixture
def with_nvrtc() -> None:
    if nvrtc.identity() is None:
        pytest.skip("no NVRTC is installed here")


def found(extents: tuple[int, ...], *tensors: PassTensor, written: int = 1) -> Passage:
    made = passage(extents, tensors, written)
    assert isinstance(made, Passage), made
    return made


def rows(dtype: torch.dtype, *strides: int, **given: Any) -> PassTensor:
    return PassTensor(dtype, strides, **given)


def test_modes_that_are_contiguous_everywhere_are_one() -> None:
    made = found((4, 6, 8), rows(SINGLE, 48, 8, 1), rows(HALF, 48, 8, 1))
    assert (made.form.modes, made.form.width, made.numbers[0]) == (1, 8, 4 * 6)
    broadcast = found((4, 6, 8), rows(SINGLE, 48, 8, 1), rows(HALF, 0, 0, 1), rows(HALF, 48, 8, 1))
    assert broadcast.form.modes == 2
    assert broadcast.numbers == (24, 1, 8, 0, 8)


def test_coordinates_keep_their_modes() -> None:
    index = PassTensor(torch.int32, (0, 1), 3, is_index=True)
    made = found((4, 8), rows(SINGLE, 8, 1), index, rows(SINGLE, 8, 1))
    assert made.form.modes == 2
    assert made.form.indices == (False, True, False)
    assert made.starts == (0, 0, 0)


@pytest.mark.parametrize(
    ("extent", "tensor", "width"),
    [
        (24, rows(HALF, 24, 1), 8), (12, rows(HALF, 12, 1), 4), (7, rows(HALF, 7, 1), 1),
        (24, rows(HALF, 25, 1), 1), (24, rows(HALF, 24, 1, start=2), 2), (24, rows(HALF, 24, 1, alignment=4), 2),
        (24, rows(DOUBLE, 24, 1), 4), (24, rows(HALF, 48, 2), 8), (24, rows(torch.int8, 24, 1), 8),
    ],
)  # fmt: skip
def test_runs_are_as_wide_as_every_tensor_allows(extent: int, tensor: PassTensor, width: int) -> None:
    made = found((5, extent), rows(SINGLE, 1024, 1), tensor)
    assert made.form.width == width
    assert made.form.steps[1] is (Step.APART if tensor.strides[1] == 2 else Step.RUN)


@pytest.mark.parametrize(
    ("extents", "tensors", "sentence"),
    [
        ((0, 4), (rows(SINGLE, 4, 1), rows(SINGLE, 4, 1)), "there is nothing to compute"),
        ((3, 4), (rows(SINGLE, 1, 3), rows(SINGLE, 4, 1)), "sums and results lie in other orders"),
        ((2**20, 2**16), (rows(SINGLE, 2**17, 1), rows(SINGLE, 2**17 + 1, 1)), "a pass takes at most"),
        ((2,) * 33, (rows(SINGLE, *[3**at for at in range(33)]),) * 2, "33 modes are left"),
    ],
    ids=["empty", "transposed", "long", "modes"],
)  # fmt: skip
def test_what_is_left_to_torch_is_said(extents: Any, tensors: Any, sentence: str) -> None:
    assert sentence in str(passage(extents, tensors, 1))


def text_of(fn: Callable[..., Any], made: Passage, dtype: torch.dtype = SINGLE) -> KernelText:
    function = trace(fn, (dtype,), hook="fn")
    return kernel_text(made.form, (), lambda w, values, factors: inlined(w, function, values))


@pytest.mark.usefixtures("with_nvrtc")
def test_runs_are_loads_and_stores_of_sixteen_bytes() -> None:
    made = found((64, 96), rows(SINGLE, 96, 1), rows(HALF, 100, 1))
    assert made.form.width == 4
    made = found((64, 96), rows(SINGLE, 96, 1), rows(HALF, 104, 1))
    ptx = nvrtc.ptx(text_of(torch.nn.functional.gelu, made).source, 90)
    assert len(re.findall(r"ld\.global\S*\.v4\.\S*32", ptx)) == 2
    assert len(re.findall(r"st\.global\.v4\.\S*32", ptx)) == 1
    assert "cvt.rn.f16.f32" in ptx


@pytest.mark.usefixtures("with_nvrtc")
@pytest.mark.parametrize("capability", [80, 90])
def test_conversions_of_short_types_compile(capability: int) -> None:
    for dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
        text = text_of(lambda x, dtype=dtype: torch.erfinv(x).to(dtype), found((7,), rows(SINGLE, 1), rows(dtype, 1)))
        assert nvrtc.compiled(text.source, capability).startswith(b"\x7fELF")


@pytest.mark.usefixtures("with_nvrtc")
def test_an_error_of_the_compiler_is_said() -> None:
    with pytest.raises(nvrtc.CompileError, match="nonsense"):
        nvrtc.compiled("nonsense", 90)


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(validity, "here", lambda target: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    text = KernelText("", ())
    for setting in ("0", str(tmp_path / "libnvrtc.so")):
        monkeypatch.setenv("WEFT_NVRTC", setting)
        assert nvrtc.identity() is None
        assert launch.kernel_of(text, TARGET) == "there is no NVRTC, which compiles it"
    for other in (Target("hip", capability=94), Target("cuda")):
        assert launch.kernel_of(text, other) == "it is made for NVIDIA GPUs alone"
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"no library")
    monkeypatch.setenv("WEFT_NVRTC", str(broken))
    with pytest.raises(nvrtc.CompileError, match="NVRTC is not loaded"):
        nvrtc.compiled("", 90)


@pytest.mark.usefixtures("with_nvrtc")
def test_a_kernel_is_kept_for_the_next_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Compiled in a thread, loaded, kept; whoever asks for it afterwards has it at once."""
    loaded: list[Cubin] = []

    def load(cubin: Cubin, device: int) -> Any:
        loaded.append(cubin)
        return cubin

    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(launch, "load", load)
    monkeypatch.setattr(launch, "LEAST", 60.0)
    text = text_of(torch.relu, found((8,), rows(SINGLE, 1), rows(SINGLE, 1)))
    first = launch.PassKernel(text, "some key", TARGET)
    assert first.settled is None
    assert isinstance(first.wait(), Cubin)
    again = launch.PassKernel(text, "some key", TARGET)
    assert isinstance(again.settled, Cubin)
    assert [each.digest for each in loaded] == [loaded[0].digest] * 2
    assert loaded[0].sizes == text.sizes
