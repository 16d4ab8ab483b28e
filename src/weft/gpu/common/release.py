"""Which Triton is here, without importing it where its package says so, and what of its interpreter is corrected.

See `triton_versions` for what kernels take. The interpreter is made to take what the compiler takes:

Comparisons: one of scalars keeps the operands' type alongside its bits. Spread over a tile it becomes a tile of that
type, which Triton 3.9 refuses as a mask. They get the type of bits.
Indices: Triton 3.6 makes one of an array of one element by `int`, which NumPy 2.4 refuses.
Conversions of short floating types: the interpreter cuts off where a GPU rounds, and makes numbers of infinity and NaN.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch

from weft.planner.registry import triton_version
from weft.spec.dtypes import NAMES

_INSTALLED = triton_version() or "0.0"
RELEASE = tuple(int(part) for part in _INSTALLED.split(".")[:2])
"""(0, 0) where there is none."""

# Whether a run that holds no aligned groups, such as 0 1 2 | 90 91 92 | ..., is stated as groups of two. That is not
# true of every two (2 and 90), but it tells the compiler along which axis neighbours follow. Up to 3.8 it tells nothing
# else: an access is no wider than what its address is known to be a multiple of, here a single element. From 3.9 on a
# thread that reads or writes elements of a group one by one, each under its mask, takes the address of the first for
# all of them (pull request 11317 of triton-lang/triton): wrong values, and no error.
ODD_RUNS_STATED = RELEASE < (3, 9)

FUSION = {"enable_fp_fusion": True}
"""Options of every kernel for a GPU: products and sums become fused multiply-adds. This has always been the default;
3.9 warns of a later version that changes it, unless it is said."""

PDL_OPTION = "launch_pdl"
"""Triton's name for launches that are dependent by program, see `device`."""

TESTED = ("3.6", "3.7", "3.8", "3.9")
"""Versions whose Gluon compiles every one of weft's kernels; any other is tried, see `warp_specialized`. Those of 3.6
have run on a GPU; with the others the self-test of families decides on each machine."""


def version() -> str:
    """The whole version, as Triton itself says it where it is imported."""
    return str(getattr(sys.modules.get("triton"), "__version__", None) or _INSTALLED)


def is_tested() -> bool:
    """Whether the project has run its kernels in Gluon with the Triton that is here."""
    return ".".join(version().split(".")[:2]) in TESTED


def launches_are_hooked() -> bool:
    """Whether somebody, a profiler say, has hooked Triton's launches."""
    knobs = sys.modules.get("triton.knobs")
    if knobs is None:
        return False
    runtime = knobs.runtime
    before, after = runtime.launch_enter_hook, runtime.launch_exit_hook
    # The calls of a chain of hooks, or the hook itself where somebody has set one.
    return bool(getattr(before, "calls", before) or getattr(after, "calls", after))


_MARK = "_corrected_by_weft"
_TYPES = NAMES | {"fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2}


def correct(interpreter: Any) -> None:
    """Do so to Triton's module, once; what a version does not have is left out."""
    if getattr(interpreter, _MARK, False):
        return
    setattr(interpreter, _MARK, True)
    builder, language = getattr(interpreter, "InterpreterBuilder", None), getattr(interpreter, "tl", None)
    if hasattr(builder, "binary_op") and hasattr(language, "int1"):
        builder.binary_op = _comparing(builder.binary_op, language.int1)  # type: ignore[union-attr]
    if hasattr(interpreter, "_convert_float"):
        interpreter._convert_float = _converted
    if hasattr(interpreter, "_patch_lang_tensor"):
        interpreter._patch_lang_tensor = _indexing(interpreter._patch_lang_tensor)


def _comparing(compute: Any, bit: Any) -> Any:
    def binary_op(builder: Any, lhs: Any, rhs: Any, op: Any) -> Any:
        result = compute(builder, lhs, rhs, op)
        if result.data.dtype == bool:
            result.dtype = bit
        return result

    return binary_op


def _converted(values: Any, held: Any, wanted: Any, rounding: Any) -> Any:
    """Bits of floating numbers of one type as those of another."""
    bits = torch.from_numpy(np.array(values).view(f"u{held.primitive_bitwidth // 8}"))
    found = bits.view(_TYPES[held.name]).to(_TYPES[wanted.name])
    return found.view(getattr(torch, f"uint{wanted.primitive_bitwidth}")).numpy()


def _indexing(patch: Any) -> Any:
    def patch_lang_tensor(tensor: Any, *scope: Any) -> None:
        patch(tensor, *scope)
        change = scope[0].set_attr if scope and hasattr(scope[0], "set_attr") else setattr
        change(tensor, "__index__", lambda self: self.handle.data.item())

    return patch_lang_tensor
