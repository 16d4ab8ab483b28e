"""Functions between two contractions, each beside what it is in plain torch on all of S, whose last mode is k."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import weft

INF = math.inf


@dataclass(frozen=True)
class Between:
    """A function of S, of coordinates i of q and j of k and of a bias where `aux`, and the same in torch."""

    name: str
    function: Callable[..., Any]
    plainly: Callable[..., Any]
    form: str
    aux: bool = False


def _soft(s: Tensor) -> Tensor:
    return torch.softmax(s, -1).nan_to_num(0.0)


def _standard(s: Tensor) -> Tensor:
    return (s - s.mean(-1, keepdim=True)) * torch.rsqrt(s.var(-1, unbiased=False, keepdim=True) + 1)


def _hand(s: Tensor) -> Tensor:
    weights = torch.exp(s - weft.amax(s, "k"))
    return weights / weft.sum(weights, "k")


def _causal(s: Tensor, i: Tensor, j: Tensor, bias: Tensor) -> Tensor:
    return torch.where(j <= i, s + bias, -INF)


def _before(s: Tensor, i: Tensor, j: Tensor, bias: Tensor) -> Tensor:
    return torch.where(j < i - 1, s * bias, -INF)


def _alternating(s: Tensor) -> Tensor:
    return torch.exp(s - weft.logsumexp(s - weft.logsumexp(s, "k"), "q") - weft.logsumexp(s, "k"))


def _alternating_plainly(s: Tensor) -> Tensor:
    rows = s.logsumexp(-1, keepdim=True)
    return torch.exp(s - (s - rows).logsumexp(-2, keepdim=True) - rows)


def _span(s: Tensor) -> Tensor:
    s = s - weft.mean(s, "k")
    return weft.amax(s, "qk") - weft.amin(s, "qk")


def _span_plainly(s: Tensor) -> Tensor:
    s = s - s.mean(-1, keepdim=True)
    return (s.amax((-1, -2), keepdim=True) - s.amin((-1, -2), keepdim=True)).expand_as(s)


FUNCTIONS = [
    Between("identity", lambda s: s, lambda s: s, "one pass"),
    Between("sigmoid", torch.sigmoid, torch.sigmoid, "one pass"),
    Between("softmax", lambda s: weft.softmax(s, "k"), _soft, "running"),
    Between("softmax by hand", _hand, _soft, "running"),
    Between(
        "softmax and logsumexp", lambda s: (weft.softmax(s, "k"), weft.logsumexp(s, "k")),
        lambda s: (_soft(s), s.logsumexp(-1)), "running",
    ),
    Between(
        "over a sum", lambda s: torch.relu(s) / (1 + weft.sum(torch.relu(s), "k")),
        lambda s: torch.relu(s) / (1 + torch.relu(s).sum(-1, keepdim=True)), "running",
    ),
    Between(
        "standardized",
        lambda s: (s - weft.mean(s, "k")) * torch.rsqrt(weft.mean((s - weft.mean(s, "k")) ** 2, "k") + 1),
        _standard, "whole",
    ),
    Between("rows and columns", _alternating, _alternating_plainly, "whole"),
    Between(
        "extremes",
        lambda s: (s, weft.amax(s, "k"), weft.argmax(s, "k"), weft.amin(s, "q"), weft.argmin(s, "q")),
        lambda s: (s, s.amax(-1), s.argmax(-1), s.amin(-2), s.argmin(-2)), "one pass",
    ),
    Between(
        "a loss", lambda s: (s * 0.5, weft.mean(weft.logsumexp(s, "k") ** 2, "q"), weft.sum(s > 0, "kq")),
        lambda s: (s * 0.5, (s.logsumexp(-1) ** 2).mean(-1), (s > 0).sum((-1, -2))), "one pass",
    ),
    Between(
        "causal", lambda s, i, j, bias: weft.softmax(_causal(s, i, j, bias), "k"),
        lambda s, i, j, bias: _soft(_causal(s, i, j, bias)), "running", aux=True,
    ),
    Between(
        "rows masked out",
        lambda s, i, j, bias: (weft.softmax(_before(s, i, j, bias), "k"), weft.logsumexp(_before(s, i, j, bias), "k")),
        lambda s, i, j, bias: (_soft(_before(s, i, j, bias)), _before(s, i, j, bias).logsumexp(-1)),
        "running", aux=True,
    ),
    Between(
        "of columns alone", lambda s: weft.logsumexp(s, "q"), lambda s: s.logsumexp(-2, keepdim=True).expand_as(s),
        "whole",
    ),
    Between("of all at once", _span, _span_plainly, "whole"),
    Between(
        "a window", lambda s, i, j, bias: torch.where((j <= i) & (j > i - 3), torch.exp(s) * bias, 0.0),
        lambda s, i, j, bias: torch.where((j <= i) & (j > i - 3), torch.exp(s) * bias, 0.0), "one pass", aux=True,
    ),
    Between(
        "scaled behind", lambda s, i, j, bias: 2 * weft.softmax(s + bias * (j - i), "k"),
        lambda s, i, j, bias: 2 * _soft(s + bias * (j - i)), "running", aux=True,
    ),
]  # fmt: skip
