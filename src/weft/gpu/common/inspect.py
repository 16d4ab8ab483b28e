"""Kernels compiled for any GPU, and without one."""

from __future__ import annotations

from typing import Any

from triton._utils import canonicalize_dtype
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler import compile as triton_compile
from triton.runtime.jit import JITFunction

from weft.gpu.common.constants import TensorMap
from weft.gpu.common.launch import KernelLaunch
from weft.gpu.common.release import PDL_OPTION
from weft.spec import Layout

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_86": GPUTarget("cuda", 86, 32),
    "sm_89": GPUTarget("cuda", 89, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "sm_120": GPUTarget("cuda", 120, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}

SCALARS = ("alpha", "alpha_im", "beta", "beta_im")  # parameters of kernels


def compiled(launch: KernelLaunch, architecture: str) -> Any:
    """Triton's compiled kernel of a built launch for an architecture of `TARGETS`; `.asm` holds its texts.

    Needs no GPU, but Triton must not be in interpreter mode. Raises `KeyError` for an unknown architecture.
    """
    names = launch.kernel.arg_names[: len(launch.layouts)]
    signature: dict[str, Any] = {name: pointer_type(layout) for name, layout in zip(names, launch.layouts, strict=True)}
    signature |= dict.fromkeys((name for name in launch.kernel.arg_names if name in SCALARS), "i64")
    aux_args = "pointers" in launch.kernel.arg_names
    if aux_args:
        signature["pointers"] = tuple(map(pointer_type, launch.pointers)) or "constexpr"
    if launch.numbers is not None:
        signature["numbers"] = ("i32",) * len(launch.numbers)
    signature |= dict.fromkeys(launch.constants, "constexpr")
    aligned: dict[tuple[int, ...], Any] = {
        (at,): [["tt.divisibility", 16]]
        for at, layout in enumerate(launch.layouts)
        if isinstance(layout, Layout) and layout.alignment == 16
    }
    place = launch.kernel.arg_names.index("pointers") if aux_args else -1
    aligned |= {
        (place, at): [["tt.divisibility", 16]] for at, layout in enumerate(launch.pointers) if layout.alignment == 16
    }
    missing = {name: None for name, layout in zip(names, launch.layouts, strict=True) if layout is None}
    if aux_args and not launch.pointers:
        missing["pointers"] = None
    constants = missing | launch.triton_constants()
    source = _source_type(launch.kernel)(launch.kernel, signature, constants, aligned)
    target = TARGETS[architecture]
    pdl = launch.options.get(PDL_OPTION, False) and target.backend == "cuda" and target.arch >= 90
    return triton_compile(source, target=target, options=launch.options | {PDL_OPTION: pdl})


def _source_type(kernel: JITFunction[Any]) -> type[ASTSource]:
    """Kernels in Gluon enter the compiler later than others."""
    if not kernel.is_gluon():
        return ASTSource
    from triton.experimental.gluon._runtime import GluonASTSource

    return GluonASTSource


def pointer_type(layout: Layout | TensorMap | None) -> str:
    """A parameter's type as Triton spells it in a launch."""
    if layout is None:
        return "constexpr"
    if isinstance(layout, TensorMap):
        return f"tensordesc<{canonicalize_dtype(layout.layout.dtype)}{list(layout.block)},{layout.shared.meant}>"
    return f"*{canonicalize_dtype(layout.dtype)}"
