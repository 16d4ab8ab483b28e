"""Times in torch's tier of a matrix spread over a batch, beside copies and one product: what `weft.library.scheme`
goes by.

    python tools/spread_times.py OUT.json [--only WORD]     (a minute and a half on a GPU)

Rows are contractions of the everyday set and of TCCG that one of two operands can be spread in, and "pq,bqc->bpc" in
many sizes: microseconds, medians, operands out of cache. Without a GPU what would be timed is counted.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

import weft
from weft.library import family, sums
from weft.library import scheme as schemes
from weft.library.scheme import LibraryScheme, scheme_of
from weft.library.views import Frame
from weft.machine.stamp import command, commit, device_stamp
from weft.planner.schedule import Target
from weft.planner.target import target_of
from weft_bench.cases.everyday import everyday
from weft_bench.cases.suite import tccg

TYPES = (torch.float32, torch.float16, torch.float64)
SIDES = {2: (2, 16, 64, 512), 4: (4, 16, 64, 256), 8: (8, 16, 64), 16: (2, 16, 64), 32: (4, 16, 64), 64: (16,),
         128: (8, 64)}  # of the matrix, and columns of each product  # fmt: skip
ELEMENTS = (1 << 20, 1 << 24, 1 << 26)  # of the other operand


class Problem(NamedTuple):
    name: str
    equation: str
    shapes: list[tuple[int, ...]]
    dtype: torch.dtype


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default="", help="a word of the names of problems")
    given = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "meta")
    target = target_of("triton", device) if device.type == "cuda" else Target("cuda", capability=90)
    rows: list[dict[str, Any]] = []
    for problem in problems():
        if given.only in problem.name and (row := timed(problem, device, target)):
            rows.append(row)
            print(json.dumps(row), flush=True)
    stamp = device_stamp(device if device.type == "cuda" else "cpu")
    record = {"command": command(), "commit": commit(), "machine": stamp, "rows": rows}
    given.out.write_text(json.dumps(record, indent=1) + "\n")


def problems() -> Iterator[Problem]:
    for dtype in TYPES:
        for each in everyday():
            plain = each.count == 2 and each.task == "contract" and not (each.fused or each.ragged or each.layouts)
            if plain and not each.options:
                shapes = [tuple(each.extents[label] for label in term) for term in each.terms[:2]]
                yield Problem(each.name, each.equation, shapes, dtype)
        for case in tccg(dtype, dtype):
            terms = case.equation.partition("->")[0].split(",")
            shapes = [tuple(case.extents[label] for label in term) for term in terms]
            yield Problem(case.name, case.equation, shapes, dtype)
        for side, many in SIDES.items():
            for columns in many:
                for total in ELEMENTS:
                    shapes = [(side, side), (total // (side * columns), side, columns)]
                    yield Problem(f"{side} x {side}, {columns} columns", "pq,bqc->bpc", shapes, dtype)


def timed(problem: Problem, device: torch.device, target: Target) -> dict[str, Any] | None:
    """A row; None where nothing can be spread, or all is in place without it."""
    a, b = (torch.randn(shape, dtype=problem.dtype, device=device) for shape in problem.shapes)
    contraction = weft.plan(problem.equation, a, b, backend="reference").contraction
    scheme = scheme_of(contraction, target.kind)
    if scheme.form != "product":
        return None
    ways = {"copies": by_copies, "spread": spread}
    found = [way(scheme, Frame.whole(contraction)) for way in ways.values()]
    if found[0] == found[1]:
        return None
    row: dict[str, Any] = {**problem._asdict(), "dtype": str(problem.dtype)}
    for name, way in ways.items() if device.type == "cuda" else ():
        with patch.object(sums, "arranged", way):
            choice = family.choice(contraction, "triton", target)
            assert not isinstance(choice, str), choice
            launch = choice.build()
        d = torch.empty(contraction.d.shape, dtype=problem.dtype, device=device)
        row[name] = microseconds(partial(launch, a, b, None, d, 1.0, 1.0, ()))
    return row


def microseconds(call: Callable[[], None]) -> float:
    from triton.testing import do_bench

    return 1e3 * float(do_bench(call, warmup=2, rep=12, return_mode="median"))


def by_copies(scheme: LibraryScheme, frame: Frame) -> schemes.Arranged:
    with patch.object(schemes, "_spread", lambda *_: ()):
        return schemes.arranged(scheme, frame)


def spread(scheme: LibraryScheme, frame: Frame) -> schemes.Arranged:
    with patch.object(schemes, "_LEAST_GPU", ((1, 0),)):
        return schemes.arranged(scheme, frame)


if __name__ == "__main__":
    main()
