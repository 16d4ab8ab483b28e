"""The everyday set: contractions, permutations and groups as users of torch, quimb, PySCF and transformers write them.

Nothing of weft is imported here: a process that measures a first call has these cases before its clock runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from weft_bench.cases.everyday.case import EverydayCase, Fused
from weft_bench.cases.everyday.learning import learning
from weft_bench.cases.everyday.plain import plain
from weft_bench.cases.everyday.public import public
from weft_bench.cases.everyday.science import science

__all__ = ["EverydayCase", "Fused", "chosen", "everyday"]


@cache
def everyday() -> tuple[EverydayCase, ...]:
    """All cases; their names are unique."""
    return (*learning(), *science(), *plain(), *public())


def chosen(cases: Sequence[EverydayCase], words: Sequence[str]) -> list[EverydayCase]:
    """The cases whose name or domain has one of `words` in it; all of them where there are no words."""
    return [each for each in cases if not words or any(word in f"{each.domain}: {each.name}" for word in words)]
