"""Published figures as facts, each with the machine that it was measured on."""

from __future__ import annotations

from weft_bench.ladder.rung import Published

SLIDES = "Machine Learning Systems (lecture slides), SGEMM at 4096"
DENSE = "Parallel algorithms for operations with dense matrices (thesis), table 4.5"
MOVED = "Parallel algorithms for operations with dense matrices (thesis), table 4.17"
NETWORKS = "Design and Performance Engineering of GPU-Accelerated Tensor Network Algorithms (thesis)"
GETT = "Flexible Performant Tensor Contractions on GPUs (the GETT paper)"

_PEAK = 60e3  # GFLOP/s of an H100's fp32 units, as the slides have it

# Seconds of the dense thesis on a Tesla V100, in double precision: products of 5000 x 5000 beside cuBLAS, matrices of
# 10000 x 10000 beside MAGMA.
_PRODUCTS = {"1.1": 2.475856e-01, "1.2": 2.427144e-01, "1.3": 2.423779e-01, "1.4": 2.354888e-01, "1.5": 2.021816e-01,
             "1.6": 1.130343e-01}  # fmt: skip
_CUBLAS = 3.369595e-02
_MOVES = {"2.1": 7.205122e-03, "2.2": 6.498019e-03, "2.3": 3.821392e-03, "2.4": 2.667357e-03}
_MAGMA = 3.093129e-03
# The same on a Quadro P6000 (tables 4.11 and 4.21).
_PRODUCTS_P6000 = {"1.1": 1.735417, "1.4": 1.036679, "1.5": 9.616447e-01, "1.6": 1.539299}
_MOVES_P6000 = {"2.1": 2.396712e-02, "2.2": 1.956313e-02, "2.3": 9.526299e-03, "2.4": 7.535703e-03}


def slides(rate: float, before: float | None = None) -> Published:
    """A rate in GFLOP/s on an H100, and the rate of the rung before."""
    gain = rate / before if before is not None else None
    return Published(f"{rate:g} GFLOP/s, H100", SLIDES, gain, rate / _PEAK, "60 TFLOP/s")


def product_kernel(number: str, before: str | None = None) -> Published:
    """Kernel 1.x, and the one that the gain is over."""
    return _kernel(number, before, _PRODUCTS, _PRODUCTS_P6000, _CUBLAS, "cuBLAS", DENSE)


def transposition_kernel(number: str, before: str | None = None) -> Published:
    """Kernel 2.x, and the one that the gain is over."""
    return _kernel(number, before, _MOVES, _MOVES_P6000, _MAGMA, "MAGMA", MOVED)


def _kernel(
    number: str, before: str | None, times: dict[str, float], others: dict[str, float], best: float, library: str,
    source: str,
) -> Published:  # fmt: skip
    seconds = times[number]
    figure = f"kernel {number}: {seconds * 1e3:.4g} ms in double precision, V100"
    gain = times[before] / seconds if before is not None else None
    if before in others and number in others:
        figure += f" (over {before} on a Quadro P6000: {others[str(before)] / others[number]:.2f})"
    return Published(figure, source, gain, best / seconds, library)
