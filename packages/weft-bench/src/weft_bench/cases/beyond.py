"""Cases beyond TCCG, at sizes worth timing: batches, diagonals, lone modes, other types, small, odd and awkward ones.

A case tagged "large" needs more than 2^31 elements in one tensor, and a GPU with memory for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import torch

from weft.selftest.case import Case
from weft.selftest.case import from_letters as case

_HALF = (torch.float16, torch.float16, torch.float16)
_HALF_TO_SINGLE = (torch.float16, torch.float16, torch.float32)
_BRAIN = (torch.bfloat16, torch.bfloat16, torch.bfloat16)
_DOUBLE = (torch.float64,) * 3
_COMPLEX = (torch.complex64,) * 3
_COMPLEX_DOUBLE = (torch.complex128,) * 3


@cache
def beyond() -> tuple[Case, ...]:
    """The list; names are unique."""
    parts = (_batches(), _diagonals(), _lone(), _types(), _small(), _odd(), _memory(), _fused(), _large())
    return tuple(each for part in parts for each in part)


def _batches() -> Iterator[Case]:
    tags = "beyond batch"
    heads = {"b": 8, "h": 16, "i": 1024, "j": 1024, "d": 64}
    yield case("attention-scores", "bhid,bhjd->bhij", tags, **heads, dtypes=_HALF)
    yield case("attention-values", "bhij,bhjd->bihd", tags, **heads, dtypes=_HALF)
    yield case("attention-heads-inside", "bihd,bjhd->bhij", tags, **heads, dtypes=_BRAIN)
    yield case("batch-of-squares", "bmk,bkn->bmn", tags, b=512, m=128, k=128, n=128, dtypes=_HALF_TO_SINGLE)
    yield case("batch-in-the-middle", "mbk,kbn->mbn", tags, b=64, m=512, k=512, n=512, dtypes=_HALF_TO_SINGLE)
    yield case("batch-innermost-wide", "mkb,nkb->mnb", tags, b=4096, m=16, k=16, n=16)
    yield case("batch-two-apart", "xmyk,ykxn->mxny", tags, x=32, y=32, m=64, k=64, n=64, dtypes=_HALF_TO_SINGLE)
    yield case("batch-past-grid-limit", "bmk,bkn->bmn", tags, b=70001, m=8, k=8, n=8)
    yield case("hadamard", "abc,cab->abc", tags, a=256, b=320, c=512)


def _diagonals() -> Iterator[Case]:
    tags = "beyond diagonal"
    yield case("diagonal-of-matrices", "iik,kn->in", tags, i=2048, k=256, n=1024, dtypes=_HALF_TO_SINGLE)
    yield case("diagonal-batched", "bbmk,bkn->bmn", tags, b=48, m=256, k=256, n=256)
    yield case("diagonal-inside", "ijij,jk->ik", tags, i=96, j=96, k=128)
    yield case("partial-trace", "aibi,cbd->acd", tags, a=256, i=64, b=128, c=16, d=16)


def _lone() -> Iterator[Case]:
    tags = "beyond lone"
    yield case("lone-mode-of-a", "mkx,kn->mn", tags, m=1024, k=512, x=64, n=512, dtypes=_HALF_TO_SINGLE)
    yield case("lone-mode-of-b", "mk,xkn->mn", tags, m=512, k=512, x=64, n=1024)
    yield case("lone-sums-of-both", "mx,ny->mn", tags, m=4096, x=1024, n=4096, y=1024)


def _types() -> Iterator[Case]:
    chain = "aebf,dfce->abcd"  # as TCCG's case 20
    cubes = dict.fromkeys("abcdef", 48)
    square = dict.fromkeys("mkn", 2048)
    yield case("complex-product", "mk,kn->mn", "beyond complex", **square, dtypes=_COMPLEX)
    yield case("complex-modes", chain, "beyond complex", **cubes, dtypes=_COMPLEX)
    yield case("complex-double-modes", chain, "beyond complex", **dict.fromkeys("abcdef", 32), dtypes=_COMPLEX_DOUBLE)
    yield case(
        "complex-overlap", "lpr,lps->rs", "beyond complex", l=512, p=16, r=512, s=512, dtypes=_COMPLEX_DOUBLE,
        conjugate=(True, False),
    )  # fmt: skip
    yield case("double-product", "mk,kn->mn", "beyond double", **square, dtypes=_DOUBLE)
    yield case("double-modes", chain, "beyond double", **cubes, dtypes=_DOUBLE)
    yield case("double-ladder", "ijab,abcd->ijcd", "beyond double", i=20, j=20, a=64, b=64, c=64, d=64, dtypes=_DOUBLE)
    yield case("single-modes", chain, "beyond", **cubes)
    yield case("tf32-product", "mk,kn->mn", "beyond tf32", **dict.fromkeys("mkn", 4096), precision="tf32")
    yield case("tf32-modes", chain, "beyond tf32", **cubes, precision="tf32")
    yield case("tf32x3-modes", chain, "beyond tf32", **cubes, precision="tf32x3")
    yield case("bfloat-modes", chain, "beyond", **cubes, dtypes=_BRAIN)
    whole = (torch.int8, torch.int8, torch.int32)
    yield case("int8-product", "mk,nk->mn", "beyond integer", **dict.fromkeys("mkn", 4096), dtypes=whole)


def _small() -> Iterator[Case]:
    tags = "beyond small"
    yield case("small-two-site-update", "xyab,laxr->lbyr", tags, x=2, y=2, a=4, b=4, l=32, r=32, dtypes=_COMPLEX_DOUBLE)
    yield case("small-gate", "pqab,xaybz->xpyqz", tags, p=2, q=2, a=2, b=2, x=1024, y=64, z=256, dtypes=_COMPLEX)
    yield case("small-extents-of-four", "abcde,ebf->acdf", tags, **dict.fromkeys("abcdef", 4))
    yield case("small-batch-of-threes", "bij,bjk->bik", tags, b=100_000, i=3, j=3, k=3, dtypes=_DOUBLE)
    yield case("small-many-modes", "abcdefghijklmnop,aceg->bdfhijklmnop", tags, **dict.fromkeys("abcdefghijklmnop", 2))
    yield case("small-product", "mk,kn->mn", tags, **dict.fromkeys("mkn", 64), dtypes=_DOUBLE)
    yield case("deep-and-narrow", "mk,nk->mn", tags, m=16, k=1 << 20, n=16, dtypes=_HALF_TO_SINGLE)


def _odd() -> Iterator[Case]:
    tags = "beyond odd"
    yield case("odd-product-large", "mk,kn->mn", tags, m=4097, k=4095, n=4093, dtypes=_HALF_TO_SINGLE)
    yield case("odd-modes", "aebf,dfce->abcd", tags, a=71, b=73, c=67, d=69, e=65, f=63, dtypes=_HALF_TO_SINGLE)
    yield case("odd-contiguous-mode", "kma,kn->mna", tags, k=515, m=511, n=257, a=7, dtypes=_HALF)
    yield case("odd-primes", "abc,cbd->ad", tags, a=1009, b=101, c=103, d=997)


def _memory() -> Iterator[Case]:
    tags = "beyond strided"
    here = "contiguous"
    square = dict.fromkeys("mkn", 2048)
    for layout in ("permuted", "padded", "strided", "offset", "expanded"):
        layouts = (layout, here, here, here)
        yield case(f"memory-{layout}", "mk,kn->mn", tags, **square, layouts=layouts, dtypes=_HALF_TO_SINGLE)
    modes = dict.fromkeys("abcdef", 48)
    yield case("memory-padded-modes", "aebf,dfce->abcd", tags, **modes, layouts=("padded", "padded", here, "padded"))
    yield case("memory-result-strided", "mk,kn->mn", tags, **square, layouts=(here, here, here, "strided"))


def _fused() -> Iterator[Case]:
    tags = "beyond fused"
    yield case("fused-paper-example", "ecbfa,fd->abcde", tags, a=16, b=16, c=16, d=64, e=16, f=64,
               dtypes=_HALF_TO_SINGLE, b_fn="elu")  # fmt: skip
    yield case("fused-gelu", "mk,nk->mn", tags, m=4096, k=1024, n=4096, dtypes=_HALF, epilogue="gelu")
    yield case("fused-residual", "mk,nk->mn", tags, m=4096, k=1024, n=4096, dtypes=_BRAIN, epilogue="relu", add=True)


def _large() -> Iterator[Case]:
    tags = "beyond large gpu"
    yield case("large-operand", "xmk,kn->xmn", tags, x=33, m=65536, k=1024, n=8, dtypes=_HALF)
    yield case("large-result", "m,n->mn", tags, m=46343, n=46351, dtypes=_HALF)
