"""The TCCG suite, as data of the package."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources

import torch

from weft.cases.case import Case, from_letters


@cache
def tccg(
    dtype: torch.dtype = torch.float16, out_dtype: torch.dtype = torch.float32, precision: str | None = None
) -> tuple[Case, ...]:
    """The 48 contractions of TCCG (Springer and Bientinesi 2018) at the extents of the GETT paper's Table I.

    The table is column-major: the first index has stride 1. With the labels of every tensor reversed the same memory
    is row-major, as torch allocates it; so these equations are the table's, each tensor read backwards.
    """
    table = json.loads(resources.files("weft").joinpath("data/tccg.json").read_text())
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


def row_major(equation: str) -> str:
    """A column-major equation over the same memory seen row-major: ``"bda,dc->abc"`` becomes ``"adb,cd->cba"``."""
    inputs, output = equation.split("->")
    return ",".join(term[::-1] for term in inputs.split(",")) + "->" + output[::-1]
