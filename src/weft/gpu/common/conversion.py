"""A tile in the type that it is multiplied in, where the compiler's own way would take longer than the memory it came
from.

int8 to float16: an instruction converts one element, at an eighth of the rate at which a byte of weights arrives.
Instead the byte with its sign bit flipped becomes the lowest bits of 1024, whose unit in the last place is 1, and 1152
is subtracted from two elements at once (Y. J. Kim and others, "Who Says Elephants Can't Run: Bringing Large Scale MoE
Models into Cloud Scale Production", 2022, section 4.2). Every int8 is a float16, so this is exact.
"""

from __future__ import annotations

from typing import Any

import triton.language as tl

from weft.planner.target import interpreting

# Four elements: the bytes x + 128, each under the byte of 1024 in float16; then less 1024 + 128.
_BYTES_TO_HALVES = """
{
    .reg .b32 bytes, offset;
    mov.b32 offset, 0x64806480;
    xor.b32 bytes, $2, 0x80808080;
    prmt.b32 $0, bytes, 0x64646464, 0x4140;
    prmt.b32 $1, bytes, 0x64646464, 0x4342;
    sub.f16x2 $0, $0, offset;
    sub.f16x2 $1, $1, offset;
}
"""


@tl.core.builtin
def _converted(tile: Any, dtype: Any, _semantic: Any = None) -> Any:
    dtype = tl.core._unwrap_if_constexpr(dtype)
    bytes_to_halves = tile.dtype == tl.int8 and dtype == tl.float16
    if not bytes_to_halves or _semantic.builder.options.backend_name != "cuda":
        return tile.to(dtype, _semantic=_semantic)
    return tl.inline_asm_elementwise(
        _BYTES_TO_HALVES, "=r,=r,r", [tile], dtype=tl.float16, is_pure=True, pack=4, _semantic=_semantic
    )


converted = (lambda tile, dtype: tile.to(dtype)) if interpreting() else _converted
"""A tile, or one element, as `dtype`."""
