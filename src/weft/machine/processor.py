"""The limits of an SM of each compute capability, and how many SMs products have.

Limits: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from weft.base.figures import nearest
from weft.errors import UnsupportedError

RESERVED = 1024  # bytes of shared memory that the driver takes of each block
KIB = 1024


@dataclass(frozen=True, slots=True)
class SmLimits:
    """The resources of one SM of a compute capability."""

    capability: int  # 90 for 9.0
    warps: int
    blocks: int
    shared: int  # bytes, for all blocks together
    sizes: tuple[int, ...]  # KiB: how much of the first cache can be shared memory
    registers: int = 65536  # 32-bit, for all blocks together; a block may have as many
    barriers: int = 2  # for each block slot (from 9.0 on they may limit)
    partitions: int = 4  # each with its scheduler and its share of the registers

    @property
    def reserved(self) -> int:
        """Bytes of shared memory that the driver takes of each block."""
        return RESERVED if self.capability >= 80 else 0

    @property
    def shared_block(self) -> int:
        """Bytes that one block may ask for."""
        return self.shared - self.reserved


_SIZES_164 = (0, 8, 16, 32, 64, 100, 132, 164)
_SIZES_228 = (*_SIZES_164, 196, 228)
_SIZES_100 = (0, 8, 16, 32, 64, 100)
LIMITS: Mapping[int, SmLimits] = {
    each.capability: each
    for each in (
        SmLimits(70, 64, 32, 96 * KIB, (0, 8, 16, 32, 64, 96), barriers=1),
        SmLimits(75, 32, 16, 64 * KIB, (32, 64), barriers=1),
        SmLimits(80, 64, 32, 164 * KIB, _SIZES_164),
        SmLimits(86, 48, 16, 100 * KIB, _SIZES_100, barriers=1),
        SmLimits(89, 48, 24, 100 * KIB, _SIZES_100, barriers=1),
        SmLimits(90, 64, 32, 228 * KIB, _SIZES_228),
        SmLimits(100, 64, 32, 228 * KIB, _SIZES_228),
        SmLimits(120, 48, 24, 100 * KIB, _SIZES_100, barriers=1),
    )
}

# Compute capability and SMs of products, from their makers' data sheets.
PRODUCTS: Mapping[str, tuple[int, int]] = {
    "v100": (70, 80), "rtx2080ti": (75, 68), "rtx4070": (89, 46), "rtx4080": (89, 76), "rtx6000ada": (89, 142),
    "a100": (80, 108), "rtx3090": (86, 82), "a6000": (86, 84), "rtx4090": (89, 128), "l40s": (89, 142),
    "h100": (90, 132), "h200": (90, 132), "b200": (100, 148), "rtx5090": (120, 170),
}  # fmt: skip


def limits_of(capability: int) -> SmLimits:
    """`UnsupportedError` for an architecture that is not in the table."""
    if capability not in LIMITS:
        known = ", ".join(f"sm_{each}" for each in LIMITS)
        raise UnsupportedError(f"the SM of compute capability {capability / 10:.1f} is not in the table: {known}")
    return LIMITS[capability]


def plain_name(product: str) -> str:
    """A product or an architecture without its maker: "rtx4090" of "NVIDIA GeForce RTX 4090", "sm90" of "sm_90"."""
    plain = "".join(each for each in product.lower() if each.isalnum())
    return plain.removeprefix("nvidia").removeprefix("geforce")


def find_sm(name: str) -> tuple[SmLimits, int | None]:
    """Limits, and SMs of the whole device where a product is named: "h200", "sm_90", "9.0"."""
    plain = plain_name(name)
    if plain in PRODUCTS:
        capability, processors = PRODUCTS[plain]
        return LIMITS[capability], processors
    number = plain.removeprefix("sm").removeprefix("cc")
    if number.isdecimal() and int(number) in LIMITS:
        return LIMITS[int(number)], None
    known = (*(f"sm_{each}" for each in LIMITS), *PRODUCTS)
    raise UnsupportedError(f"target {name!r} is none of {', '.join(known)}{nearest(name, known)}")
