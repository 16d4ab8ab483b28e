"""Single instructions of the device that Triton's own functions wrap in more of them.

Functions of Triton code, called by emitted functions as `device_math.exp2(x)`. In the interpreter `host_math` takes
their place.
"""

from __future__ import annotations

from typing import Any

import triton.language as tl


@tl.core.builtin
def exp2(x: Any, _semantic: Any = None) -> Any:
    """2^x of float32 within 2^-22 of it; subnormal results are zero.

    One instruction on NVIDIA GPUs (PTX ISA, `ex2.approx.ftz.f32`). `tl.exp2` keeps subnormals, which takes three more.
    """
    if _semantic.builder.options.backend_name != "cuda":
        return tl.exp2(x, _semantic=_semantic)
    return _instruction("ex2.approx.ftz.f32", x, _semantic)


@tl.core.builtin
def reciprocal(x: Any, _semantic: Any = None) -> Any:
    """1 / x of float32 within a unit in the last place; subnormal results are zero.

    One instruction on NVIDIA GPUs (PTX ISA, `rcp.approx.ftz.f32`), a division elsewhere.
    """
    if _semantic.builder.options.backend_name != "cuda":
        return tl.fdiv(1.0, x, _semantic=_semantic)
    return _instruction("rcp.approx.ftz.f32", x, _semantic)


def _instruction(name: str, x: Any, semantic: Any) -> Any:
    return tl.inline_asm_elementwise(
        f"{name} $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1, _semantic=semantic
    )
