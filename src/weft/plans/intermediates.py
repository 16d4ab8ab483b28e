"""Types of intermediates, and the options of a step that reads them.

Of halves they are float32, whose range they do not leave, multiplied as tf32, which keeps as many digits. Of integers
they have 64 bits where the result has more than 32, or is a floating number: they wrap around no earlier than it does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch

from weft.planner.options import Options
from weft.spec.dtypes import resolve, results_of, storage_type, type_between

WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32}  # types in which parts of sums are added up
EXACT = (None, "ieee", "ieee_bound")  # precisions of products as they are


def intermediate_type(own: torch.dtype, asked: Any, accumulate: torch.dtype | None) -> torch.dtype:
    """The type of an intermediate of operands of type `own`, where `asked` is the requested type of the result."""
    return torch.float32 if own == torch.float16 else type_between(own, asked, accumulate)


def is_of_halves(dtypes: Iterable[torch.dtype]) -> bool:
    """Whether all operands are of float16."""
    return set(dtypes) == {torch.float16}


def step_options(options: Options, a: torch.dtype, b: torch.dtype, halves: bool) -> Options:
    """Options of a step whose operands have these types; `halves`: of contractions whose operands are all float16."""
    halves = halves and options.algebra is None and options.accumulate is None and options.precision in EXACT
    changes = step_changes(a, b, halves)
    return replace(options, **changes) if changes else options


def step_changes(a: torch.dtype, b: torch.dtype, halves: bool) -> dict[str, Any]:
    """Options that such a step needs; `halves`: of contractions of float16 whose arithmetic no option sets."""
    found: dict[str, Any] = {}
    if a != b and {a, b} & {torch.float32, torch.int64}:  # an intermediate, wider than an operand
        found["promote"] = True
    if halves and torch.float32 in (a, b):
        found["precision"] = "tf32"
    return found


def part_options(options: Options, a: torch.dtype, b: torch.dtype) -> Options:
    """Options of a part of a sum that is made in several calls: it is kept in the type of sums, the last part has the
    epilogue, and adds what was kept."""
    results = results_of(options.out_dtype, storage_type(a, b, False, options.promote))
    types = resolve(a, b, options.precision, options.accumulate, promote=options.promote, results=results, count=2**31)
    return replace(options.having(epilogue=None), out_dtype=types.accumulate)
