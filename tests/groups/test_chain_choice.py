"""When an update of two sites is one launch: where two contractions would not be faster."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from weft.gpu.chain.launch import Extents, pays
from weft.spec.dtypes import resolve


@pytest.mark.parametrize(
    ("dtype", "precision", "updates", "one"),
    [
        (torch.float32, None, 16, True),
        (torch.float32, None, 256, False),
        (torch.float64, None, 256, False),
        (torch.float32, "tf32", 256, True),
        (torch.float16, None, 256, True),
    ],
)  # fmt: skip
def test_large_updates_without_matrix_units_are_two_contractions(
    dtype: torch.dtype, precision: str | None, updates: int, one: bool
) -> None:
    assert pays(Extents(updates, 16, 16, 256, 256), resolve(dtype, dtype, precision)) is one
