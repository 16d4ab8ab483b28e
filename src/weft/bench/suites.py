"""The suites: named lists of cases, taken from the one list in `weft.cases`, in groups that are averaged apart.

    tccg          the 48 TCCG contractions, for pairs of number types
    tccg-fusion   the same with no function, ReLU, leaky ReLU and ELU on A, B and D
    beyond        what TCCG lacks
    dense         products of dense matrices: square, wide, tall, growing and thin, and the transposition states

A suite is a function that makes entries; `SUITES` knows them by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from weft import cases
from weft.cases import Case
from weft.cases.layout import dense, dense_states
from weft.errors import WeftError


@dataclass(frozen=True)
class Entry:
    """A case within a suite. `group` is averaged apart; cases with one `base` differ in functions alone."""

    case: Case
    group: str
    base: str
    scaled: bool = False


#: Number types by name: of A and B, of D, and how products are made.
PAIRS: dict[str, tuple[torch.dtype, torch.dtype, str | None]] = {
    "fp16_fp32": (torch.float16, torch.float32, None),
    "fp16_fp16": (torch.float16, torch.float16, None),
    "bf16_fp32": (torch.bfloat16, torch.float32, None),
    "bf16_bf16": (torch.bfloat16, torch.bfloat16, None),
    "fp32": (torch.float32, torch.float32, None),
    "tf32": (torch.float32, torch.float32, "tf32"),
    "tf32x3": (torch.float32, torch.float32, "tf32x3"),
    "fp64": (torch.float64, torch.float64, None),
    "complex64": (torch.complex64, torch.complex64, None),
    "complex64_tf32": (torch.complex64, torch.complex64, "tf32"),
    "complex128": (torch.complex128, torch.complex128, None),
}
DEFAULT_PAIRS = {
    "tccg": ("fp16_fp32", "fp16_fp16"),
    "tccg-fusion": ("fp16_fp32",),
    "dense": ("fp32", "fp64", "fp16_fp16"),
}
FUSED = (None, "relu", "leaky_relu", "elu")
PLAIN = "none"  # the group of the fusion suite without a function

# What a case of `beyond` is about: the first of these among its tags.
_TOPICS = (
    *("large", "fused", "strided", "odd", "small", "complex", "double", "tf32", "integer"),
    *("diagonal", "lone", "batch"),
)


def entries(name: str, pairs: Sequence[str] = (), only: Sequence[str] = (), work: int | None = None) -> list[Entry]:
    """The cases of suite `name`.

    `pairs` chooses number types from `PAIRS` (`beyond` has no choice), `only` the cases whose name matches one of
    these: a number (of TCCG), a name, or a pattern with ``*``. `work` shrinks every case to so many multiply-adds.
    `WeftError` for names that do not exist, and when nothing is left.
    """
    if name not in SUITES:
        raise WeftError(f"no suite is called '{name}': there are {', '.join(SUITES)}")
    for pair in pairs:
        if pair not in PAIRS:
            raise WeftError(f"no number types are called '{pair}': there are {', '.join(PAIRS)}")
        if name not in DEFAULT_PAIRS:
            raise WeftError(f"the cases of '{name}' have number types of their own")
    found = SUITES[name](pairs or DEFAULT_PAIRS.get(name, ()))
    if only:
        found = [entry for entry in found if any(_matches(entry.case.name, pattern) for pattern in only)]
        if not found:
            raise WeftError(f"no case of '{name}' is called {' or '.join(only)}")
    return found if work is None else [_shrunk(entry, work) for entry in found]


def _tccg(pairs: Sequence[str]) -> list[Entry]:
    return [Entry(case, pair, case.name) for pair in pairs for case in cases.tccg(*PAIRS[pair])]


def _fusion(pairs: Sequence[str]) -> list[Entry]:
    """All functions of one case follow one another, so that they meet the same state of the machine."""
    found = []
    for pair in pairs:
        prefix = "" if pair == "fp16_fp32" and len(pairs) == 1 else f"{pair}."
        for case in cases.tccg(*PAIRS[pair]):
            for function in FUSED:
                fused = replace(case, a_fn=function, b_fn=function, epilogue=function)
                found.append(Entry(fused, f"{prefix}{function or PLAIN}", case.name))
    return found


def _beyond(pairs: Sequence[str]) -> list[Entry]:
    return [
        Entry(case, next((topic for topic in _TOPICS if topic in case.tags), "types"), case.name)
        for case in cases.beyond()
    ]


def _dense(pairs: Sequence[str]) -> list[Entry]:
    found = []
    for pair in pairs:
        dtype, out, precision = PAIRS[pair]
        for case in (*dense(dtype), *dense_states(dtype)):
            found.append(Entry(replace(case, dtypes=(dtype, dtype, out), precision=precision), pair, case.name))
    return found


SUITES: dict[str, Callable[[Sequence[str]], list[Entry]]] = {
    "tccg": _tccg,
    "tccg-fusion": _fusion,
    "beyond": _beyond,
    "dense": _dense,
}
ABOUT = {
    "tccg": "the 48 contractions of the TCCG benchmark, for pairs of number types",
    "tccg-fusion": "the same with no function, ReLU, leaky ReLU and ELU on A, B and D",
    "beyond": "batches, diagonals, lone modes, other number types, small, odd, strided, fused and large ones",
    "dense": "dense matrices: square from 100 to 10000, wide, tall, growing and thin ones, all transposition states",
}


def _matches(name: str, pattern: str) -> bool:
    if pattern.isdecimal():
        pattern = f"tccg-{int(pattern):02}"
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), name) is not None


def _shrunk(entry: Entry, work: int) -> Entry:
    small = cases.scaled(entry.case, work)
    return replace(entry, case=small, scaled=small.shapes != entry.case.shapes)
