"""Instructions of the device that Triton's own functions wrap in more of them, or do not reach.

Functions of Triton code, called by emitted functions as `device_math.exp2(x)`. In the interpreter `host_math` takes
their place.
"""

from __future__ import annotations

from typing import Any

import triton.language as tl

from weft.fn.triton.device_cast import to_type
from weft.fn.triton.device_elu import elu

__all__ = ["elu", "exp2", "fma_to_one", "reciprocal", "to_type"]


@tl.core.builtin
def exp2(x: Any, _semantic: Any = None) -> Any:
    """2^x of float32 within 2^-22 of it; subnormal results are zero.

    One instruction on NVIDIA GPUs (PTX ISA, `ex2.approx.ftz.f32`). `tl.exp2` keeps subnormals, which takes three more.
    """
    if _semantic.builder.options.backend_name != "cuda":
        return tl.exp2(x, _semantic=_semantic)
    return _instruction("ex2.approx.ftz.f32", x, semantic=_semantic)


@tl.core.builtin
def reciprocal(x: Any, _semantic: Any = None) -> Any:
    """1 / x of float32 within a unit in the last place; subnormal results are zero.

    One instruction on NVIDIA GPUs (PTX ISA, `rcp.approx.ftz.f32`), a division elsewhere.
    """
    if _semantic.builder.options.backend_name != "cuda":
        return tl.fdiv(1.0, x, _semantic=_semantic)
    return _instruction("rcp.approx.ftz.f32", x, semantic=_semantic)


@tl.core.builtin
def fma_to_one(x: Any, y: Any, z: Any, _semantic: Any = None) -> Any:
    """x y + z of float32, rounded once, and 1 where it is more; what is less than 0 may be 0, and NaN may be.

    One instruction on NVIDIA GPUs (PTX ISA, `fma.rn.sat.f32`).
    """
    if _semantic.builder.options.backend_name != "cuda":
        return tl.minimum(tl.fma(x, y, z, _semantic=_semantic), 1.0, _semantic=_semantic)
    return _instruction("fma.rn.sat.f32", x, y, z, semantic=_semantic)


def _instruction(name: str, *operands: Any, semantic: Any) -> Any:
    numbered = ", ".join(f"${at}" for at in range(len(operands) + 1))
    constraints = "=f" + ",f" * len(operands)
    return tl.inline_asm_elementwise(
        f"{name} {numbered};", constraints, list(operands), dtype=tl.float32, is_pure=True, pack=1, _semantic=semantic
    )
