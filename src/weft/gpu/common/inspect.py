"""The code a schedule compiles to, for any GPU and without one: PTX or AMD assembly, shared memory, spills."""

from __future__ import annotations

import re
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler import compile as triton_compile
from triton.runtime.jit import JITFunction

from weft.gpu.common.constants import TRITON_TYPES
from weft.gpu.common.launch import KernelLaunch
from weft.gpu.common.release import PDL_OPTION
from weft.gpu.common.tensor_maps import TensorMap
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
    """A parameter's type as Triton spells it."""
    if layout is None:
        return "constexpr"
    if isinstance(layout, TensorMap):
        return f"tensordesc<{_spelled(layout.layout.dtype)}{list(layout.block)},{layout.shared.meant}>"
    return f"*{_spelled(layout.dtype)}"


def _spelled(dtype: torch.dtype) -> str:
    """A type as in signatures: its name, but for integers, which are i8 or u8 there and int8 or uint8 elsewhere."""
    return str(TRITON_TYPES[dtype].meant).replace("uint", "u").replace("int", "i")


def instructions(text: str) -> dict[str, int]:
    """How often the instructions that decide a kernel's speed stand in its PTX."""
    wanted = {
        "wgmma": r"wgmma\.mma_async",
        "tcgen05": r"tcgen05\.mma",
        "mma": r"mma\.sync",
        "mfma": r"v_mfma",
        "cp.async": r"cp\.async\.c[ag]",
        "cp.async.bulk": r"cp\.async\.bulk\.tensor",
        "cp.async.16": r"cp\.async\.c[ag]\S* \[.*0x10",  # of 16 bytes
        "ld.global": r"ld\.global",
        "ld.global.16": r"ld\.global\S*\.(v4\.[bf]32|v2\.[bf]64)",
        "st.global": r"st\.global",
        "st.global.16": r"st\.global\S*\.(v4\.[bf]32|v2\.[bf]64)",
        "local": r"\.local|scratch_(load|store)",
        "waits": r"griddepcontrol\.wait",  # for the launches before
    }
    found = {name: len(re.findall(pattern, text)) for name, pattern in wanted.items()}
    faults = {"unfenced": unfenced(text), "unawaited": unawaited(text), "unmet": unmet(text), "unread": unread(text)}
    return found | faults


def unawaited(text: str) -> int:
    """How many accesses to memory stand in PTX before the wait for the launches before: what they read may not have
    been written."""
    before, wait, _ = text.partition("griddepcontrol.wait")
    return len(re.findall(r"(?:ld|st|atom|red)\.global|cp\.async", before)) if wait else 0


def unfenced(text: str) -> int:
    """How many fences for the matrix units in PTX come too late: after the threads that stored have met, and with no
    other meeting before a wgmma.

    Matrix units read shared memory by another path than threads write it. Every thread that stores must fence, and then
    all must meet: otherwise a warp may multiply while the fence of another is still to come.
    """
    count, state = 0, ""
    for line in text.splitlines():
        if "st.shared" in line or "stmatrix" in line:
            state = "stored"
        elif "bar.sync" in line:
            state = "met" if state == "stored" else ""
        elif "fence.proxy.async" in line:
            state = "late" if state == "met" else ""
        elif "wgmma.mma_async" in line and state:
            count += state == "late"
            state = ""
    return count


def unread(text: str) -> int:
    """How many groups of wgmmas in PTX may still be reading a factor in registers when a loop begins anew, which then
    writes the next one: assemblers before CUDA 13.3 may give both the same registers."""
    count, made = 0, False
    flying: list[bool] = []  # groups under way: whether a factor of theirs is in registers
    labels: set[str] = set()
    for line in text.splitlines():
        if found := re.match(r"(\$L\w+):", line):
            labels.add(found[1])
        elif found := re.search(r"wgmma\.mma_async\S* \{[^}]*\},\s*(\{)?", line):
            made = made or found[1] is not None
        elif "wgmma.commit_group" in line:
            flying, made = [*flying, made], False
        elif found := re.search(r"wgmma\.wait_group\S*\s+(\d+)", line):
            flying = flying[max(len(flying) - int(found[1]), 0) :]
        elif (found := re.search(r"\bbra\S*\s+(\$L\w+);", line)) and found[1] in labels:
            count += sum(flying)
    return count


def unmet(text: str) -> int:
    """How many arrivals at an mbarrier in PTX follow an access to shared memory, or the wait for a wgmma, that not all
    threads of the role are known to be done with: one thread arrives for all, so all must meet before.

    Gluon's compiler puts that meeting there. Kernels with specialised warps count on it where they give slots back.
    """
    count, met = 0, True
    for line in text.splitlines():
        if re.search(r"\b(bar|barrier)\.(warp\.)?sync", line):
            met = True
        elif re.search(r"(ld|st)\.shared|ldmatrix|stmatrix|wgmma\.wait_group", line):
            met = False
        elif "mbarrier.arrive" in line and "expect_tx" not in line:
            count += not met
    return count
