"""float32 products made of products of shorter terms, and what is proven of them.

A float32 value is a sum of terms in a shorter type, each the rounding of what the terms before it leave:

    a = a0 + a1 2^-s + a2 2^-2s + r        s: `shift`, by which what is left is scaled up, so that no term underflows

Products of two terms are exact in float32. Those with i + j = o are an *order*: their sum has the factor 2^-(o s).
Orders are summed by matrix units and added in float32, the last first: products of small terms never meet a large sum.
Orders from `orders` on are left out. The first order is summed in runs of `RUN` products, as matrix units cut off where
IEEE sums round: over a long sum the errors of one sign would be seen.

The bound. Let p be the digits of a term's significand and h = 2^-p. Rounding to nearest leaves |a - a0| <= h |a|, and
half of h of that in each further step, as what is left is below the half unit that it was cut at (Ootomo and Yokota,
Int. J. High Perform. Comput. Appl. 36, 2022, section 3, whose scheme is `FP16X3`). With S = sum_k |a_k| |b_k| and u the
roundoff of float32, relative to u S:

    r                         2 |r| / u, 0 where the terms hold 24 digits
    products left out         sum over i + j >= orders of t_i t_j / u        t_0 = 1, t_1 = h, t_2 = h^2 / 2
    sums of the first order   UNIT_LOSS min(K, RUN) + K / RUN
    sums of order o           UNIT_LOSS (o + 1) K m_o                        m_o = sum over i + j = o of t_i t_j
    additions of orders       sum over o of m_o + ... + m_last

A *joined* scheme is made by one kernel (`weft.gpu.terms`). It adds all later orders in one sum of matrix units, scales
nothing up where there are several of them, and may have programs share a sum, each of which adds a run at least:

    sum of later orders       UNIT_LOSS (2 + 3 + ...) K (m_1 + m_2 + ...)
    additions of runs         3 ceil(K / RUN) m_0      each partial may end a run early, and is added itself
    addition of later orders  m_0 + m_1 + ...

An IEEE sum of K products is off by at most K u S (Jeannerod and Rump, SIAM J. Matrix Anal. Appl. 34, 2013). So a scheme
is *admitted* for sums of K products where its loss is at most K.

`UNIT_LOSS` is the model of matrix units (Fasi, Higham, Mikaitis and Pranesh, PeerJ Comput. Sci. 7:e330, 2021; Khattak
and Mikaitis, arXiv 2512.07004): an instruction aligns B products and the sum so far to the largest of them, cuts off
what is `GUARD` bits below its last digit, adds, and cuts the sum to 24 digits. Its loss is at most (B + 1) 2^-GUARD + 1
units of 2u of what was added so far, once in B products. B and GUARD are those of Hopper, as measured on an H200.

What is beyond a range: a magnitude of 2^127 or more, as its first term may round up to infinity, and sums of half of
float32's range, as an order may be twice as large as what it stands for. Terms of bfloat16 hold subnormal values
exactly. Infinities and NaN come out as of IEEE products: orders but the first are dropped where they are not finite.

Kernels that split tiles in registers, and joined schemes of bfloat16, scale nothing up. A value below `LEAST` is off by
up to `LOST` there, which is the least bfloat16.

float16 has too few exponents for that. Its operands are scaled by a power of two, so that the largest magnitude is
2^14 to 2^15, and what is below 2^-14 loses digits: terms of a value are off by up to 2^-36 then, which makes at most
K 2^-19 in a sum. Where of each row of A and of each column of B at least three quarters are `NEAR` or more, half of the
products of every sum are NEAR^2 or more; then S is at least K NEAR^2 / 2, and that is at most `SPREAD_LOSS` u S. Where
it does not hold bfloat16 serves.
"""

from __future__ import annotations

from functools import lru_cache
from math import log2
from typing import NamedTuple

import torch

from weft.planner.coefficients import fitted
from weft.planner.schedule import Target

U = 2.0**-24  # roundoff of float32
BLOCK, GUARD = 16, 2  # products that an instruction of Hopper adds at once in 16 bits, and digits that it keeps besides
UNIT_LOSS = ((BLOCK + 1) * 2.0**-GUARD + 1) * 2 / BLOCK
LARGEST = 2.0**127  # magnitudes from here on have no terms
LEAST, LOST = 2.0**-110, 2.0**-133  # what is below the first may be off by the second where terms are not scaled up
ALIGNED = 8  # elements of a word of 16 bytes
RUN = 512  # products of the first order that matrix units add up,
STEPS = (16, 32, 64)  # and those of a kernel that adds each step along k in float32
SCALED = 15  # bits: the largest magnitude of float16 terms is below two to the power of this, and half of it or more
NEAR, SPREAD_LOSS = 2.0**3, 4.0  # see above
TILE, NARROW = 128, 64  # rows and columns of an output tile of a joined product, and columns where there are so few
# Launches of a joined product: terms of both operands and the kernel; and those that look at values besides: zeros,
# peaks, terms by the other scheme, verdict, the kernel that ends at once.
LAUNCHES, LOOKS = 3, 7
PROCESSORS = 132  # of the devices whose matrix units are known
PARTIALS = 9 << 20  # bytes of shared sums: no more than a tile on each SM

_FITTED = fitted("split")
# Flops a second of large IEEE products and of those by each scheme, bytes a second of passes, and seconds of a launch
# and of a kernel's tiles besides their products.
SINGLE_RATE, RATES, PASS_RATE = _FITTED("single_rate"), _FITTED.table("rates"), _FITTED("pass_rate")
LAUNCH, ROUND = _FITTED("launch"), _FITTED("round")
SHALLOW = _FITTED("shallow")  # of the rate of tiles that are split in registers where they are 16 products deep
# The same by rows and columns of such tiles, and of tiles that nobody measured, in so few steps along k; in more steps
# it counts less.
IN_REGISTERS, OTHER_TILES, FEW_STEPS = _FITTED.table("in_registers"), _FITTED("other_tiles"), _FITTED("few_steps")


class SplitScheme(NamedTuple):
    """Terms of a float32 value, and which of their products are made."""

    name: str
    term: torch.dtype
    terms: int
    orders: int
    shift: int  # bits
    lost: float = 0.0  # by the range of terms, in u S

    @property
    def digits(self) -> int:
        """Digits of a term's significand."""
        return 1 - int(log2(torch.finfo(self.term).eps))

    def loss(self, count: int, runs: tuple[int, ...] = (RUN,), *, joined: bool = False) -> float:
        """The bound of a sum of `count` products, relative to u times the sum of magnitudes.

        `runs` are how many products matrix units may add up before their sum is added in float32; `joined`: all orders
        but the first are one sum.
        """
        return max(_loss(self, count, run, joined) for run in runs)

    def admitted(self, count: int, runs: tuple[int, ...] = (RUN,), *, joined: bool = False) -> bool:
        """Whether the bound is not above that of an IEEE sum."""
        return self.loss(count, runs, joined=joined) <= count


@lru_cache(maxsize=4096)
def _loss(scheme: SplitScheme, count: int, run: int, joined: bool) -> float:
    step = 2.0**-scheme.digits
    size = [step**at / (2 ** (at - 1) if at else 1) for at in range(scheme.terms)]  # of each term, relative to a
    held = sum([scheme.digits + at for at in range(1, scheme.terms)], scheme.digits)  # each but the first holds a sign
    left = 0.0 if held >= 24 else size[-1] * step / 2
    places = range(scheme.terms)
    orders = [sum(size[i] * size[j] for i in places for j in places if i + j == at) for at in range(scheme.orders)]
    orders[0] *= (1 + step) ** 2  # a first term may be rounded up
    dropped = sum(size[i] * size[j] for i in places for j in places if i + j >= scheme.orders)
    runs = -(-count // run)
    if joined:
        later = sum(range(2, len(orders) + 1)) * sum(orders[1:])
        added = sum(orders) + 3 * runs * orders[0]
    else:
        later = sum((at + 1) * orders[at] for at in range(1, len(orders)))
        added = sum(sum(orders[at:]) for at in range(len(orders) - 1)) + runs * orders[0]
    units = UNIT_LOSS * (min(count, run) * orders[0] + count * later)
    return scheme.lost + units + added + (2 * left + dropped) / U


BF16X6 = SplitScheme("bf16x6", torch.bfloat16, 3, 3, 8)
FP16X3 = SplitScheme("fp16x3", torch.float16, 2, 2, 11, SPREAD_LOSS)


def refusal(target: Target) -> str | None:
    """Why nothing is proven of a device's matrix units, in one sentence; None where something is."""
    if target.kind == "cuda" and target.capability == 90:
        return None
    return f"how the matrix units of {target.name or target.kind} cut off sums is known of compute capability 9.0 alone"


def seconds(batch: int, m: int, n: int, k: int, scheme: SplitScheme) -> float:
    """Predicted seconds of a joined product by a scheme, its passes included.

    float16 terms have values looked at before. Tiles of the kernel are whole, and each SM has as many of them.
    """
    factors, results = batch * (m + n) * padded_length(k), batch * m * n
    width = NARROW if n <= NARROW else TILE
    tiles = batch * -(-m // TILE) * -(-n // width)
    splits = min(max(PROCESSORS // tiles, 1), -(-k // RUN))
    rounds = -(-tiles * splits // PROCESSORS)
    arithmetic = rounds * (PROCESSORS * 2.0 * TILE * width * k / splits / RATES[scheme.name] + ROUND)
    term = scheme.terms * scheme.term.itemsize
    shared = 2 * splits * results if splits > 1 else 0
    read = factors * (4 + term + (4 if scheme is FP16X3 else 0)) + 4 * shared
    kernel = max(arithmetic, (factors * term + 4 * results) / PASS_RATE)
    return kernel + read / PASS_RATE + (LAUNCHES + (LOOKS if scheme is FP16X3 else 0) + (splits > 1)) * LAUNCH


def is_worth(batch: int, m: int, n: int, k: int) -> bool:
    """Whether terms are predicted to be faster than IEEE products."""
    worth = BF16X6.admitted(k, joined=True)
    return worth and split_seconds(batch, m, n, k) < 2.0 * batch * m * n * k / SINGLE_RATE + LAUNCH


def prefers_float16(batch: int, m: int, n: int, k: int) -> bool:
    """Whether a joined product by float16 terms is predicted to be worth looking at all values for."""
    dims = batch, m, n, k
    return FP16X3.admitted(k, joined=True) and seconds(*dims, FP16X3) < seconds(*dims, BF16X6)


def padded_length(k: int) -> int:
    """The length of a term along k: the next one begins at a whole word."""
    return -(-k // ALIGNED) * ALIGNED


def split_bytes(batch: int, m: int, n: int, k: int) -> int:
    """Bytes that a joined product takes: terms of the scheme that has most, counts, sums that are shared, and D where
    it lies as TMA does not store it."""
    terms = batch * (padded_length(m) + padded_length(n)) * padded_length(k) * BF16X6.terms * BF16X6.term.itemsize
    return terms + 4 * batch * (m * padded_length(n) + m + n) + PARTIALS


def split_seconds(batch: int, m: int, n: int, k: int) -> float:
    """Predicted seconds of a product by the fastest scheme that is admitted."""
    admitted = (scheme for scheme in (BF16X6, FP16X3) if scheme.admitted(k, joined=True))
    return min(seconds(batch, m, n, k, scheme) for scheme in admitted)
