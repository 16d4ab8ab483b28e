"""Precisions of one contraction: digits as they must come out, on this machine's CPU."""

from __future__ import annotations

import torch

from weft_bench.cases import from_letters
from weft_bench.profiling.text import trade_lines
from weft_bench.profiling.tradeoff import Trade, digits, picture, trade

CASE = from_letters("product", "mk,kn->mn", m=32, k=64, n=16, epilogue="relu")


def test_digits_count_what_agrees() -> None:
    exact = torch.ones(100, dtype=torch.float64)
    assert digits(exact, exact) == 17
    assert 2.99 < digits(exact * (1 + 1e-3), exact) < 3.01
    assert digits(torch.zeros(3), torch.zeros(3, dtype=torch.float64)) == 17


def test_narrower_types_have_fewer_digits() -> None:
    found = {each.precision: each for each in trade(CASE, torch.device("cpu"), 0.001)}
    assert list(found) == ["fp64", "fp32", "tf32x3", "tf32", "fp16"]
    values = {name: each.digits for name, each in found.items() if each.digits is not None}
    assert values["fp64"] > 14
    assert 6 < values["fp32"] < 9
    assert 2.5 < values["fp16"] < 5
    assert all(each.seconds is not None or each.missing for each in found.values())
    assert all(each.joules is None for each in found.values())


def test_they_are_drawn_and_listed() -> None:
    trades = [Trade("fp64", 9e-3, 8e-3, 1e-2, 4.0, 15.9, "gett"), Trade("tf32", missing="no such instruction")]
    figure = picture(trades, "trade")
    assert figure is not None
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["fp64: 4 J"]
    assert picture(trades[1:], "trade") is None
    lines = trade_lines(trades)
    assert "9 ms" in lines[1]
    assert "15.9" in lines[1]
    assert "no such instruction" in lines[2]
    assert trade_lines([]) == []
