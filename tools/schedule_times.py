"""Times of schedules beside the cost model's: `python tools/schedule_times.py PROBLEMS.json OUT.json [--each 3]`.

PROBLEMS.json lists contractions, as those in `tools/problems` do: {"equation": "mk,kn->mn", "extents": {"m": 64, ...}},
and `dtype`, `precision` and `strides` where they are not the defaults. Of each problem the first schedules of each kind
are compiled, checked and measured quickly, as `weft tune` does; a kind is the families that a schedule is made of. A
row is a schedule, with the seconds that the cost model expects and those measured. What a rule of choice would choose,
and what it would lose against the fastest row, is read from the same rows: before a change and after it.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from weft.cli.tuning import of_equation
from weft.errors import WeftError
from weft.machine.stamp import command, commit, device_stamp
from weft.planner.planner import Choice
from weft.planner.schedule import Ranked
from weft.tune.candidates import Candidate, Effort
from weft.tune.compile_pool import Compiler
from weft.tune.tuner import measured

PATIENCE = 1e4  # seconds that a problem may take
KEPT = ("schedule", "predicted", "verdict", "reason", "seconds")


def main() -> None:
    options = _options()
    deadline = time.monotonic() + options.seconds
    problems = [(problem, _choice(problem)) for problem in json.loads(options.problems.read_text())]
    target, backend = problems[0][1].target, problems[0][1].backend
    record: dict[str, Any] = {
        "command": command(), "commit": commit(), "machine": device_stamp(target.device),
        "ended": "finished", "rows": [],
    }  # fmt: skip
    with Compiler(target, backend) as compiler:
        chosen = [list(of_each_kind(choice.ranked, options.each)) for _, choice in problems]
        for (_, choice), ranks in zip(problems, chosen, strict=True):
            for rank in ranks:
                compiler.submit(choice.description, rank)
        for (problem, choice), ranks in zip(problems, chosen, strict=True):
            if time.monotonic() > deadline:
                record["ended"] = "out of time"
                break
            record["rows"] += _rows(problem, choice, ranks, compiler)
            options.out.write_text(written(record))
    options.out.write_text(written(record))


def of_each_kind(ranked: Sequence[Ranked], each: int) -> Iterator[Ranked]:
    """The first schedules of each kind, in their order."""
    seen: Counter[str] = Counter()
    for rank in ranked:
        seen[kind_of(str(rank.schedule))] += 1
        if seen[kind_of(str(rank.schedule))] <= each:
            yield rank


def kind_of(schedule: str) -> str:
    """The families of a schedule: "ttgt, blas" of "ttgt A as k·m; blas mm"."""
    return ", ".join(part.split()[0] for part in schedule.split("; "))


def _choice(problem: dict[str, Any]) -> Choice:
    given = {name: problem[name] for name in ("precision", "strides") if name in problem}
    dtype = getattr(torch, problem.get("dtype", "float32"))
    return of_equation(problem["equation"], problem["extents"], dtype=dtype, **given).choice()


def _rows(problem: dict[str, Any], choice: Choice, ranks: list[Ranked], compiler: Compiler) -> list[dict[str, Any]]:
    found = [Candidate(rank) for rank in ranks]
    try:
        measured(choice, found, Effort(slow=math.inf, budget=PATIENCE), compiler)
    except WeftError as error:
        print(f"{problem['equation']} {problem['extents']}: {error}", flush=True)
    rows = [problem | {name: row[name] for name in KEPT if row[name]} for row in (each.document() for each in found)]
    first, best = found[0].best_known, min(each.best_known for each in found)
    print(f"{problem['equation']} {problem['extents']}: the first takes {first / best:.2f} of the fastest", flush=True)
    return rows


def written(record: dict[str, Any]) -> str:
    """JSON with a line for each row."""
    rows = ",\n".join(json.dumps(row, ensure_ascii=False) for row in record["rows"])
    return json.dumps(record | {"rows": []}, indent=1).replace('"rows": []', f'"rows": [\n{rows}\n]') + "\n"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("problems", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--each", type=int, default=3, help="schedules of each kind")
    parser.add_argument("--seconds", type=float, default=math.inf, help="after which no further problem is begun")
    return parser.parse_args()


if __name__ == "__main__":
    main()
