"""Scaling over the threads of a CPU, measured: the same case on more of them, and cases that grow with them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from weft.machine.timing import measure
from weft_bench.cases import Case
from weft_bench.machine.laws import Scaling
from weft_bench.profiling.subject import of_case

_BUDGET = 0.1  # seconds of samples for each number of threads
_CPU = torch.device("cpu")


def strong(case: Case, most: int | None = None) -> Scaling:
    """The speed-up of one case on 1, 2, 4, ... threads, each planned for that many."""
    counts = _counts(most)
    alone, *others = (_seconds(case, count) for count in counts)
    return Scaling("strong", counts, (1.0, *(alone / seconds for seconds in others)))


def weak(case: Case, most: int | None = None) -> Scaling:
    """The scaled speed-up where the largest mode of D grows with the threads: p times the work over how much longer."""
    counts = _counts(most)
    alone, *others = (_seconds(grown(case, count), count) for count in counts)
    more = zip(counts[1:], others, strict=True)
    return Scaling("weak", counts, (1.0, *(count * alone / seconds for count, seconds in more)))


def grown(case: Case, times: int) -> Case:
    """The case with the largest mode of its result so many times as long."""
    extents = case.extents
    label = max(case.notation.output, key=lambda each: extents[each])
    a, b = (
        tuple(extent * times if each == label else extent for each, extent in zip(term, shape, strict=True))
        for term, shape in zip(case.notation.inputs, case.shapes, strict=True)
    )
    return replace(case, shapes=(a, b))


def _counts(most: int | None) -> tuple[int, ...]:
    limit = most or torch.get_num_threads()
    counts = [1]
    while 2 * counts[-1] < limit:
        counts.append(2 * counts[-1])
    return tuple(dict.fromkeys((*counts, limit)))


def _seconds(case: Case, threads: int) -> float:
    with _planned_for(threads):
        subject = of_case(case, _CPU)
        return measure(
            subject.call, [subject.tensors], device=_CPU, mode="hot", budget=_BUDGET, threads=threads
        ).seconds


@contextmanager
def _planned_for(threads: int) -> Iterator[None]:
    """Within, torch has so many threads, and plans are made for them."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
