"""Orders in which programs take output tiles: each of them computes every tile once."""

from __future__ import annotations

import pytest
import torch

import weft
from support import Backend
from weft.errors import UnsupportedError
from weft.planner.schedule import ORDERS, in_every_order


@pytest.mark.parametrize("order", [order for order in ORDERS if order != 8])
def test_every_order_computes_every_tile(order: int, triton_backend: Backend) -> None:
    generator = torch.Generator().manual_seed(order)
    a, b = (
        torch.randint(-4, 5, shape, generator=generator).to(triton_backend.device, torch.float16)
        for shape in ((2, 150, 33), (33, 2, 90))
    )
    ranked = weft.plan("zmk,kzn->zmn", a, b, backend="triton")._first().choice.ranked
    grouped = [rank for rank in ranked if len(in_every_order(rank)) > 1]
    smallest = min(grouped, key=lambda rank: rank.schedule.tile[:2])
    (other,) = (each for each in in_every_order(smallest) if each.schedule.group == order)
    assert f"group={order}" in str(other.schedule)
    d = weft.contract("zmk,kzn->zmn", a, b, backend="triton", schedule=str(other.schedule), specialize="now")
    assert torch.equal(d.double(), torch.einsum("zmk,kzn->zmn", a.double(), b.double()))


def test_an_order_that_is_none_is_refused(triton_backend: Backend) -> None:
    a = torch.zeros(40, 40, device=triton_backend.device)
    ranked = weft.plan("ik,kj->ij", a, a, backend="triton")._first().choice.ranked
    grouped = next(rank for rank in ranked if len(in_every_order(rank)) > 1)
    with pytest.raises(UnsupportedError, match="is none of the"):
        weft.plan("ik,kj->ij", a, a, backend="triton", schedule=f"{grouped.schedule} group=3")
