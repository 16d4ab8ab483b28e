"""The TCCG suite, as data of the package, the fused example, and a few so small that only the call takes time."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources

import torch

from weft.selftest.case import Case, from_letters


@cache
def tccg(
    dtype: torch.dtype = torch.float16, out_dtype: torch.dtype = torch.float32, precision: str | None = None
) -> tuple[Case, ...]:
    """The 48 contractions of TCCG (Springer and Bientinesi 2018) at the extents of the GETT paper's Table I.

    The table is column-major: the first index has stride 1. With the labels of every tensor reversed the same memory
    is row-major, as torch allocates it; so these equations are the table's, each tensor read backwards.
    """
    table = json.loads(resources.files("weft_bench").joinpath("data/tccg.json").read_text())
    return tuple(
        from_letters(
            f"tccg-{row['tc']:02}",
            row_major(row["equation"]),
            "tccg",
            dtypes=(dtype, dtype, out_dtype),
            precision=precision,
            **row["extents"],
        )
        for row in table["cases"]
    )


@cache
def example() -> Case:
    """``D[abcde] = A[ecbfa] * elu(B[fd])``: *Flexible Performant Tensor Contractions on GPUs*, sections III and IV."""
    return from_letters(
        "example", "ecbfa,fd->abcde", a=16, b=16, c=16, d=64, e=16, f=64,
        dtypes=(torch.float16, torch.float16, torch.float32), b_fn="elu",
    )  # fmt: skip


@cache
def tiny() -> tuple[Case, ...]:
    """Contractions of a few hundred elements, for the time that the host takes to call them."""
    half = torch.float16
    product = {"m": 16, "k": 16, "n": 16}
    letters = dict.fromkeys("abcdef", 4)
    return (
        from_letters("product", "mk,kn->mn", "tiny", **product),
        from_letters("product-half", "mk,kn->mn", "tiny", **product, dtypes=(half, half, half)),
        from_letters("batched", "bmk,bkn->bmn", "tiny", **product, b=4),
        from_letters("modes", "aebf,dfce->abcd", "tiny", **letters),  # as TCCG's case 20
        from_letters("modes-half", "afbce,df->edcba", "tiny", **letters, dtypes=(half, half, half)),  # as its case 7
        from_letters("fused", "mk,kn->mn", "tiny", **product, a_fn="relu", epilogue="relu"),
    )


def row_major(equation: str) -> str:
    """A column-major equation over the same memory seen row-major: ``"bda,dc->abc"`` becomes ``"adb,cd->cba"``."""
    inputs, output = equation.split("->")
    return ",".join(term[::-1] for term in inputs.split(",")) + "->" + output[::-1]
