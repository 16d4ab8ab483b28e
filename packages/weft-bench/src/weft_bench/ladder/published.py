"""Published figures as facts, each with the machine that it was measured on."""

from __future__ import annotations

from collections.abc import Mapping

from weft_bench import dense_thesis
from weft_bench.ladder.rung import Published, Rung

SLIDES = "Machine Learning Systems (lecture slides), SGEMM at 4096"
NETWORKS = "Design and Performance Engineering of GPU-Accelerated Tensor Network Algorithms (thesis)"
GETT = "Flexible Performant Tensor Contractions on GPUs (the GETT paper)"

_PEAK = 60e3  # GFLOP/s of an H100's fp32 units, as the slides have it

# Cases of the dense thesis that ladders stand on, and its seconds for them on a Quadro P6000 (tables 4.11 and 4.21).
_PRODUCT, _MOVE, _MOVE_IN_PLACE = "dense-square-5000x5000x5000", "transpose-square-10000x10000", "in-place-10000x10000"
_PRODUCTS_P6000 = {"1.1": 1.735417, "1.4": 1.036679, "1.5": 9.616447e-01, "1.6": 1.539299}
_MOVES_P6000 = {"2.1": 2.396712e-02, "2.2": 1.956313e-02, "2.3": 9.526299e-03, "2.4": 7.535703e-03}
# Its kernels by the module and the function of a rung.
_KERNELS = {
    "multiply.flat_tiles.run": "1.1", "multiply.flat_tiles.run_numbered": "1.2", "multiply.shared_sums.run": "1.3",
    "multiply.shared_tiles.run": "1.4", "multiply.padded_tiles.run": "1.5", "multiply.four_by_four.run": "1.6",
    "transpose.diagonal_tiles.run": "2.1", "transpose.one_kernel.run": "2.2", "transpose.padded_tiles.run": "2.3",
    "transpose.in_place.run": "2.4",
}  # fmt: skip


def slides(rate: float, before: float | None = None) -> Published:
    """A rate in GFLOP/s on an H100, and the rate of the rung before."""
    gain = rate / before if before is not None else None
    return Published(f"{rate:g} GFLOP/s, H100", SLIDES, gain, rate / _PEAK, "60 TFLOP/s")


def product_kernel(number: str, before: str | None = None) -> Published:
    """Kernel 1.x, and the one that the gain is over."""
    return _kernel(number, before, (_PRODUCT,), _PRODUCTS_P6000)


def transposition_kernel(number: str, before: str | None = None) -> Published:
    """Kernel 2.x, and the one that the gain is over."""
    return _kernel(number, before, (_MOVE, _MOVE_IN_PLACE), _MOVES_P6000)


def counters_of(rung: Rung) -> Mapping[str, float]:
    """Counters of the dense thesis for the kernel that a rung is, by metric; empty for a kernel of others."""
    number = _KERNELS.get(f"{rung.module}.{rung.function}")
    return dense_thesis.published_counters(number) if number else {}


def _kernel(number: str, before: str | None, cases: tuple[str, ...], others: Mapping[str, float]) -> Published:
    """A kernel of the dense thesis on a V100; the first of the cases has the library's time."""
    known = [dense_thesis.published_times()[each] for each in cases]
    times = {name: seconds for each in known for name, seconds in each.kernels.items()}
    assert known[0].library is not None
    library, best = known[0].library
    seconds = times[number]
    figure = f"kernel {number}: {seconds * 1e3:.4g} ms in double precision, {cases[0].rpartition('-')[2]}, V100"
    gain = times[before] / seconds if before is not None else None
    if before in others and number in others:
        figure += f" (over {before} on a Quadro P6000: {others[str(before)] / others[number]:.2f})"
    source = f"{dense_thesis.SOURCE}, table {known[0].table}"
    return Published(figure, source, gain, best / seconds, library)
