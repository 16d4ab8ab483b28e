#!/usr/bin/env python3
"""The study that fits the constants of shape-generic kernels and chooses which of them are compiled first.

    PYTHONPATH=src python tools/at_hand_study.py kernels
    PYTHONPATH=src python tools/at_hand_study.py times --out FILE [--seconds 120]

kernels  how many of the random contractions that `weft warm` plans take each kernel, those of the most first, with the
         smallest contraction that takes it (no GPU is needed): `weft.plans.handful.SHAPES` are the first of them
times    every candidate at hand of small, mixed and ordinary contractions, timed on this GPU, once with the warps that
         it is offered with and once with half and twice as many: a line of JSON each, [kind, equation, shapes, types,
         schedule, predicted seconds, whether it is offered, seconds]
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from at_hand_gpu import shape
from weft.api import warm
from weft.api.contract import plan
from weft.api.describe import TARGETS
from weft.gpu.generic import family
from weft.machine.timing import measure
from weft.planner.at_hand import at_hand
from weft.planner.planner import Choice
from weft.planner.schedule import Ranked
from weft.planner.target import target_of
from weft.tune.compile_pool import Compiler
from weft_bench import cases

SEED = 7  # apart from the seeds of figures
WORSE = 6.0  # times the best predicted seconds of a shape up to which a candidate is timed


class Study(NamedTuple):
    """A contraction to be timed."""

    kind: str
    equation: str
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    dtypes: tuple[torch.dtype, torch.dtype]  # of the operands and of D

    @property
    def description(self) -> Any:
        a, b = (torch.empty(shape, dtype=self.dtypes[0], device="meta") for shape in self.shapes)
        return plan(self.equation, a, b, out_dtype=self.dtypes[1], backend="reference").contraction


def kernels() -> None:
    target, counts, smallest = TARGETS["sm_90"], Counter[Any](), dict[Any, tuple[Any, str]]()
    for at, (equation, extents) in enumerate(warm.sampled()):
        if at >= warm.SAMPLED and at % 3:  # a third of the larger ones
            continue
        description = warm._description(equation, *warm._operands(equation, extents, torch.float32))
        choice = at_hand(description, "triton", target)
        if not isinstance(choice, Choice) or choice.best.family is not family:
            continue
        line = f"{equation} {','.join(f'{label}={extent}' for label, extent in extents.items())}"
        size = len(extents), math.prod(extents.values())
        for structure in family.structures(description, choice.best.schedule, target):
            counts[structure] += 1
            smallest[structure] = min(smallest.get(structure, (size, line)), (size, line))
    so_far = 0
    for structure, count in counts.most_common():
        so_far += count
        print(f"{count:5} {so_far / counts.total():6.1%}  {smallest[structure][1]}")


def studies() -> Iterator[Study]:
    single = torch.float32, torch.float32
    rng = random.Random(SEED)
    for _ in range(40):
        equation, *shapes = shape(rng)
        yield Study("small", equation, tuple(map(tuple, shapes)), single)  # type: ignore[arg-type]
    for equation, extents in list(warm.sampled())[warm.SAMPLED :][:30]:
        a, b = warm._operands(equation, extents, torch.float32)
        yield Study("mixed", equation, (tuple(a.shape), tuple(b.shape)), single)
    for equation, given in warm._ORDINARY:
        if "," in equation:
            a, b = warm._operands(equation, given, torch.float32)
            yield Study("ordinary", equation, (tuple(a.shape), tuple(b.shape)), single)
    for case in cases.tccg()[::4]:
        yield Study("tccg", str(case.equation), case.shapes, (case.dtypes[0], case.dtypes[2]))


def candidates(description: Any, target: Any) -> list[tuple[Any, float, bool]]:
    """Schedule, predicted seconds, whether it is offered."""
    found = []
    for schedule in family.schedules(description, target).schedules:
        for warps in (schedule.warps // 2, schedule.warps, 2 * schedule.warps):
            other = replace(schedule, warps=warps)
            found.append((other, family.predict(description, other, target), warps == schedule.warps))
    least = min([seconds for _, seconds, offered in found if offered], default=0.0)
    return [each for each in found if each[1] <= WORSE * least]


def times(file: Path, seconds: float) -> None:
    began, target = time.monotonic(), target_of("triton", torch.device("cuda"))
    work = [(study, study.description) for study in studies()]
    with Compiler(target, "triton") as compilers:
        known: set[Any] = set()
        for _, description in work:
            for schedule, _, _ in candidates(description, target):
                structures = family.structures(description, schedule, target)
                if not known.issuperset(structures):
                    known.update(structures)
                    last = compilers.submit(description, Ranked(schedule, 0.0, family))
        last.result()
        print(f"{len(known)} kernels compiled after {time.monotonic() - began:.0f} s", flush=True)
    random.Random(1).shuffle(work)
    with file.open("w") as out:
        for study, description in work:
            if time.monotonic() - began > seconds:
                print("the time is up")
                break
            _timed(study, description, target, out)
    print(f"{time.monotonic() - began:.0f} s")


def _timed(study: Study, description: Any, target: Any, out: Any) -> None:
    a, b = (torch.randn(shape, device="cuda").to(study.dtypes[0]) for shape in study.shapes)
    d = torch.empty(description.d.shape, dtype=study.dtypes[1], device="cuda")
    for schedule, predicted, offered in candidates(description, target):
        launch = family.build(description, schedule, target)
        taken = measure(
            lambda x, y, run=launch: run(x, y, None, d, 1.0, 0.0), [(a, b)], device="cuda", quick=True, budget=0.02
        ).seconds  # fmt: skip
        types = [str(dtype) for dtype in study.dtypes]
        row = [study.kind, study.equation, study.shapes, types, str(schedule), predicted, offered, taken]
        out.write(json.dumps(row) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("kernels", "times"))
    parser.add_argument("--out", type=Path, default=Path("at_hand_times.jsonl"))
    parser.add_argument("--seconds", type=float, default=120.0, help="until no further shape is begun")
    options = parser.parse_args()
    if options.what == "kernels":
        kernels()
    else:
        times(options.out, options.seconds)


if __name__ == "__main__":
    main()
