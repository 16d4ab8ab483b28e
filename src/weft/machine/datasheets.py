"""Figures of GPUs as their makers print them: peaks, a labelled stand-in where nothing was measured, and limits of SMs.

Limits: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".

Dense rates, without structured sparsity. Sources: *NVIDIA A100 Tensor Core GPU Architecture* (2020) and the A100
product specifications; *NVIDIA H100 Tensor Core GPU Architecture* (2022), SXM5; the H200 product specifications, SXM,
whose compute figures are the H100's; *NVIDIA Ada GPU Architecture* (2022), GeForce RTX 4090, 4080 and 4070, half
precision with sums in single; the product specifications of the RTX 6000 Ada; *NVIDIA Tesla V100 GPU Architecture*
(2017), SXM2; *NVIDIA Turing GPU Architecture* (2018), GeForce RTX 2080 Ti, half precision with sums in single; *NVIDIA
Ampere GA102 GPU Architecture* (2020), GeForce RTX 3090 and RTX A6000; *NVIDIA RTX Blackwell GPU Architecture* (2025),
GeForce RTX 5090; the product specifications of the L40S; *NVIDIA HGX Platform*, B200 (2025), an eighth of eight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from weft.base.figures import nearest
from weft.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class Datasheet:
    """Printed peaks of one product."""

    name: str
    bandwidth: float  # bytes/s
    matrix: Mapping[str, float]  # FLOP/s by rate name (see `weft.machine.ceilings.rate_name`): the fastest unit for it
    vector: Mapping[str, float]  # FLOP/s outside the tensor cores


def _rates(double: float, single: float, tf32: float, half: float, byte: float) -> dict[str, float]:
    """Rates of matrix products by their names."""
    return {
        "float64": double, "float32": single, "tf32": tf32, "float16": half, "bfloat16": half, "int8": byte,
    }  # fmt: skip


_A100 = _rates(19.5e12, 19.5e12, 156e12, 312e12, 624e12)
_A100_VECTOR = {"float64": 9.7e12, "float32": 19.5e12, "float16": 78e12, "bfloat16": 39e12}
_H100 = _rates(66.9e12, 66.9e12, 494.7e12, 989.4e12, 1978.9e12)
_H100_VECTOR = {"float64": 33.5e12, "float32": 66.9e12, "float16": 133.8e12, "bfloat16": 133.8e12}
_V100 = {"float64": 7.8e12, "float32": 15.7e12, "float16": 125e12}
_V100_VECTOR = {"float64": 7.8e12, "float32": 15.7e12, "float16": 31.4e12}
_2080_TI = {"float64": 0.42e12, "float32": 13.4e12, "float16": 53.8e12, "int8": 215.2e12}
_2080_TI_VECTOR = {"float64": 0.42e12, "float32": 13.4e12, "float16": 26.9e12}
_B200 = _rates(37e12, 75e12, 1125e12, 2250e12, 4500e12)
_B200_VECTOR = {"float64": 37e12, "float32": 75e12}



def _graphics(name: str, terabytes: float, teraflops: float, tensor: float = 2) -> Datasheet:
    """An Ampere, Ada or Blackwell by its TFLOP/s of float32; tensor cores make `tensor` times as many of halves."""
    single = 1e12 * teraflops
    short = tensor * single
    matrix = _rates(single / 64, single, short / 2, short, 8 * single)
    vector = {"float64": single / 64, "float32": single, "float16": single, "bfloat16": single}
    return Datasheet(f"NVIDIA {name}", 1e12 * terabytes, matrix, vector)


A100_40GB = Datasheet("NVIDIA A100-SXM4-40GB", 1.555e12, _A100, _A100_VECTOR)
A100_80GB = Datasheet("NVIDIA A100-SXM4-80GB", 2.039e12, _A100, _A100_VECTOR)
H100 = Datasheet("NVIDIA H100 80GB HBM3", 3.35e12, _H100, _H100_VECTOR)
H200 = Datasheet("NVIDIA H200", 4.8e12, _H100, _H100_VECTOR)
B200 = Datasheet("NVIDIA B200", 8e12, _B200, _B200_VECTOR)
GRAPHICS = (
    _graphics("GeForce RTX 3090", 0.936, 35.6),
    _graphics("RTX A6000", 0.768, 38.7, tensor=4),
    _graphics("GeForce RTX 4070", 0.504, 29.1),
    _graphics("GeForce RTX 4080", 0.717, 48.7),
    _graphics("GeForce RTX 4090", 1.008, 82.6),
    _graphics("RTX 6000 Ada Generation", 0.960, 91.1, tensor=4),
    _graphics("L40S", 0.864, 91.6, tensor=4),
    _graphics("GeForce RTX 5090", 1.792, 104.8),
)
OLDER = (
    Datasheet("Tesla V100-SXM2-16GB", 0.9e12, _V100, _V100_VECTOR),
    Datasheet("Tesla V100-SXM2-32GB", 0.9e12, _V100, _V100_VECTOR),
    Datasheet("NVIDIA GeForce RTX 2080 Ti", 0.616e12, _2080_TI, _2080_TI_VECTOR),
)

DATASHEETS = {sheet.name: sheet for sheet in (A100_40GB, A100_80GB, H100, H200, B200, *GRAPHICS, *OLDER)}


def datasheet(name: str) -> Datasheet | None:
    """The sheet of the product that torch calls `name`, or None."""
    return DATASHEETS.get(name)


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
