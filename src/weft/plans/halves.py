"""Intermediates of halves: float32, whose range they do not leave, multiplied as tf32, which keeps as many digits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch


def is_of_halves(dtypes: Iterable[torch.dtype]) -> bool:
    """Whether all operands are of float16."""
    return set(dtypes) == {torch.float16}


def step_keywords(keywords: Mapping[str, Any], a: torch.dtype, b: torch.dtype, halves: bool) -> Mapping[str, Any]:
    """Keywords of a step whose operands have these types; `halves`: of contractions whose operands are all float16."""
    if torch.float32 not in (a, b) or (a == b and not halves):
        return keywords
    found = dict(keywords)
    if a != b:
        found["promote"] = True
    plain = found.get("algebra", "plus_times") == "plus_times" and found.get("accumulate") is None
    if halves and plain and found.get("precision") in (None, "ieee"):
        found["precision"] = "tf32"
    return found
