"""Types of intermediates, and what a step that meets them is asked for.

Of halves they are float32, whose range they do not leave, multiplied as tf32, which keeps as many digits. Of integers
they have 64 bits where the result has more than 32, or is a floating number: they wrap around no earlier than it does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from weft.spec.whole_sums import between


def intermediate_type(own: torch.dtype, asked: Any, accumulate: torch.dtype | None) -> torch.dtype:
    """The type of an intermediate of operands of type `own`, where the result is asked for as `asked` says."""
    return torch.float32 if own == torch.float16 else between(own, asked, accumulate)


def is_of_halves(dtypes: Iterable[torch.dtype]) -> bool:
    """Whether all operands are of float16."""
    return set(dtypes) == {torch.float16}


def step_keywords(keywords: Mapping[str, Any], a: torch.dtype, b: torch.dtype, halves: bool) -> dict[str, Any]:
    """Keywords of a step whose operands have these types; `halves`: of contractions whose operands are all float16."""
    found = dict(keywords)
    if a != b and {a, b} & {torch.float32, torch.int64}:  # an intermediate, wider than an operand
        found["promote"] = True
    plain = found.get("algebra", "plus_times") == "plus_times" and found.get("accumulate") is None
    if halves and torch.float32 in (a, b) and plain and found.get("precision") in (None, "ieee"):
        found["precision"] = "tf32"
    return found
