"""Peak figures of GPUs as their makers print them: a labelled stand-in where nothing was measured.

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


@dataclass(frozen=True, slots=True)
class Datasheet:
    """Printed peaks of one product."""

    name: str
    bandwidth: float  # bytes/s
    matrix: Mapping[str, float]  # FLOP/s by rate name (see `weft.machine.ceilings.rate_name`): the fastest unit for it
    vector: Mapping[str, float]  # FLOP/s outside the tensor cores


_A100 = {
    "float64": 19.5e12,
    "float32": 19.5e12,
    "tf32": 156e12,
    "float16": 312e12,
    "bfloat16": 312e12,
    "int8": 624e12,
}
_A100_VECTOR = {"float64": 9.7e12, "float32": 19.5e12, "float16": 78e12, "bfloat16": 39e12}
_H100 = {
    "float64": 66.9e12,
    "float32": 66.9e12,
    "tf32": 494.7e12,
    "float16": 989.4e12,
    "bfloat16": 989.4e12,
    "int8": 1978.9e12,
}
_H100_VECTOR = {"float64": 33.5e12, "float32": 66.9e12, "float16": 133.8e12, "bfloat16": 133.8e12}
_V100 = {"float64": 7.8e12, "float32": 15.7e12, "float16": 125e12}
_V100_VECTOR = {"float64": 7.8e12, "float32": 15.7e12, "float16": 31.4e12}
_2080_TI = {"float64": 0.42e12, "float32": 13.4e12, "float16": 53.8e12, "int8": 215.2e12}
_2080_TI_VECTOR = {"float64": 0.42e12, "float32": 13.4e12, "float16": 26.9e12}
_B200 = {
    "float64": 37e12,
    "float32": 75e12,
    "tf32": 1125e12,
    "float16": 2250e12,
    "bfloat16": 2250e12,
    "int8": 4500e12,
}
_B200_VECTOR = {"float64": 37e12, "float32": 75e12}



def _graphics(name: str, terabytes: float, teraflops: float, tensor: float = 2) -> Datasheet:
    """An Ampere, Ada or Blackwell by its TFLOP/s of float32; tensor cores make `tensor` times as many of halves."""
    single = 1e12 * teraflops
    short = tensor * single
    matrix = {"float64": single / 64, "float32": single, "tf32": short / 2, "float16": short, "bfloat16": short}
    vector = {"float64": single / 64, "float32": single, "float16": single, "bfloat16": single}
    return Datasheet(f"NVIDIA {name}", 1e12 * terabytes, {**matrix, "int8": 8 * single}, vector)


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
