"""The command ``python -m sanitize``; `make sanitize` gives it its paths. Ends with 1 where something is to be judged.

(1) Choose the jobs and compile their kernels in as many processes as there are cores, without a tool.
(2) Run them under each tool; then, one after the other, with Triton's own sanitizers.
(3) Say of each address in shared memory what lies there, and hold all findings against those that were judged.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import torch

from sanitize import instrumented, run
from sanitize.jobs import IN_PLACE, MATRICES, Job, jobs, small_target
from sanitize.report import Outcome, judged, record, table
from sanitize.workload import in_place
from weft.planner.schedule import Ranked, Target
from weft.planner.target import target_of
from weft.tune.compile_pool import Compiler


def main() -> int:
    options = _options()
    if not torch.cuda.is_available():
        print("there is no GPU here", file=sys.stderr)
        return 2
    began = time.monotonic()
    target = small_target(target_of("triton", torch.device("cuda", 0)))
    wanted = set(options.families.split(",")) if options.families else None
    chosen = list(jobs(target, lambda family: wanted is None or family in wanted))
    names = [str(job) for job in chosen if not options.match or options.match in str(job)]
    if wanted is None or IN_PLACE in wanted:
        names += [name for each in MATRICES if options.match in (name := in_place(*each))]
    if not names:
        print("no job is of these families", file=sys.stderr)
        return 2
    asked = options.tools.split(",")
    tools = [tool for tool in asked if tool in run.TOOLS]
    if tools:
        _compile([job for job in chosen if str(job) in set(names)], target)
        print(f"{len(names)} jobs are compiled after {time.monotonic() - began:.0f} s", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.logs or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        outcomes = {tool: Outcome(tool) for tool in asked}
        for tool, ended in run.run(tools, names, folder, options.limit) if tools else ():
            outcomes[tool].add(ended)
            print(f"{tool}: {len(ended.log.ran)} jobs, {ended.seconds:.0f} s {ended.trouble}", flush=True)
        for mode in instrumented.MODES:
            if mode in asked:
                _instrument(outcomes[mode], names, folder, options.limit)
    found = [each for outcome in outcomes.values() for each in judged(outcome, f"sm_{target.capability}")]
    written = record(list(outcomes.values()), found, names, time.monotonic() - began)
    text = table(written)
    print(text)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.with_suffix(".json").write_text(written.json())
        options.out.with_suffix(".txt").write_text(text)
    return 0 if written.clean else 1


def _instrument(outcome: Outcome, names: list[str], folder: Path, limit: float) -> None:
    """Run jobs with one of Triton's own sanitizers, where this version has it."""
    outcome.missing = instrumented.missing()
    if outcome.missing:
        return
    chosen = instrumented.chosen(outcome.tool, names)
    for ended in instrumented.run(outcome.tool, chosen, folder, limit, os.cpu_count() or 1):
        outcome.add(ended)
    outcome.note(instrumented.compared(outcome.bits, outcome.reference))
    print(f"{outcome.tool}: {outcome.ran} of {outcome.jobs} jobs, {outcome.seconds:.0f} s", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m sanitize", description="weft's kernels under sanitizers")
    known = (*run.TOOLS, *instrumented.MODES)
    parser.add_argument("--tools", default=",".join(known), help=f"of {', '.join(known)}")
    parser.add_argument("--families", default="", help="names of families, as `explain()` has them; all by default")
    parser.add_argument("--match", default="", help="only jobs with this text in their names")
    parser.add_argument("--limit", type=float, default=200.0, help="seconds of a process, or of a mode of Triton's")
    parser.add_argument("--out", type=Path, help="where the results go, without .json and .txt")
    parser.add_argument("--logs", type=Path, help="a folder that keeps what the tools wrote")
    options = parser.parse_args()
    if unknown := set(options.tools.split(",")) - set(known):
        parser.error(f"no tool is called {', '.join(sorted(unknown))}")
    return options


def _compile(chosen: list[Job], target: Target) -> None:
    """Into Triton's cache, where the processes under a tool find it."""
    with Compiler(target, "triton") as compiler:
        futures = {str(job): compiler.submit(job.description, Ranked(job.schedule, 0.0, job.room)) for job in chosen}
        for name, future in futures.items():
            if (reason := future.result()) is not None:
                print(f"{name}: {reason}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
