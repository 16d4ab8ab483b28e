"""Small analytical models: intensity under padding, storage against capacity, scaling laws, contraction order.

Each stands in *Design and Performance Engineering of GPU-Accelerated Tensor Network Algorithms* in the section named,
with a table that the tests hold it against.
"""

from __future__ import annotations

import math

# --- arithmetic intensity of C = A B + C, M x K by K x N (section 3.3.3, table 3.3)


def padded(extent: int, tile: int) -> int:
    """The smallest multiple of `tile` that is at least `extent`."""
    if tile < 1:
        raise ValueError(f"a tile of {tile} elements")
    return -(-extent // tile) * tile


def gemm_intensity(m: int, n: int, k: int, element_bytes: int) -> float:
    """FLOP per byte when A and B are read once and C is read and written once."""
    return 2 * m * n * k / (element_bytes * (m * k + k * n + 2 * m * n))


def padded_intensity(m: int, n: int, k: int, element_bytes: int, tile: int) -> float:
    """Useful FLOP per byte when all three extents are padded to multiples of `tile` in memory."""
    m_hat, n_hat, k_hat = (padded(extent, tile) for extent in (m, n, k))
    return 2 * m * n * k / (element_bytes * (m_hat * k_hat + k_hat * n_hat + 2 * m_hat * n_hat))


def padding_loss(m: int, n: int, k: int, element_bytes: int, tile: int) -> float:
    """The share of the intensity that padding costs, between 0 and 1."""
    return 1 - padded_intensity(m, n, k, element_bytes, tile) / gemm_intensity(m, n, k, element_bytes)


# --- storage of a square product against a capacity (section 3.3.3, table 3.4)


def gemm_storage(extent: int, element_bytes: int) -> int:
    """Bytes of three square matrices, without workspace: ``3 k^2 s``."""
    return 3 * extent**2 * element_bytes


def capacity_extent(capacity: float, element_bytes: int) -> float:
    """The extent at which three square matrices fill `capacity` bytes; its floor is the largest that fits."""
    return math.sqrt(capacity / (3 * element_bytes))


# --- scaling (section 2.2.2; table 3.5)


def speedup(serial_seconds: float, parallel_seconds: float) -> float:
    """``T_1 / T_p``."""
    return serial_seconds / parallel_seconds


def parallel_efficiency(serial_seconds: float, parallel_seconds: float, workers: int) -> float:
    """Speedup over the number of workers."""
    return speedup(serial_seconds, parallel_seconds) / workers


def amdahl(parallel_fraction: float, workers: float) -> float:
    """Bound of the speedup of a fixed problem; `workers` may be infinite (G. Amdahl, 1967)."""
    _check_fraction(parallel_fraction)
    rest = (1 - parallel_fraction) + parallel_fraction / workers
    return 1 / rest if rest else math.inf


def gustafson(serial_fraction: float, workers: int) -> float:
    """Speedup of a problem that grows with the workers (J. Gustafson, 1988)."""
    _check_fraction(serial_fraction)
    return workers - serial_fraction * (workers - 1)


# --- order of contraction in Y[b,p,r] = sum over q, c of G[p,q] X[b,q,c] M[c,r] (section 3.2, table 3.1)


def two_site_direct_terms(batch: int, physical: int, bond: int) -> int:
    """Terms evaluated when both sums run for every element of Y: ``B d_p^2 chi^2``."""
    return batch * physical**2 * bond**2


def two_site_ordered_terms(batch: int, physical: int, bond: int) -> int:
    """Terms of two products in sequence, G X and then (G X) M: ``B (d_p^2 chi + d_p chi^2)``."""
    return batch * (physical**2 * bond + physical * bond**2)


def _check_fraction(fraction: float) -> None:
    if not 0 <= fraction <= 1:
        raise ValueError(f"a fraction of {fraction}: it lies between 0 and 1")
