"""One workload in a process of its own: imports, the device's context and torch's turn come before weft's first call.

The process is told a job as JSON and prints what it measured as JSON, in its last line. Results are checked at the end.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

import torch

import weft
from weft_bench.cases.everyday import EverydayCase
from weft_bench.everyday.calls import tensors_of, torch_call, weft_call
from weft_bench.regret.workloads import CALLS, SHAPES, case_of, small_shapes

SINGLE, STEP = 10, 10  # calls that are waited for one by one; later ones are so many at a time
RECENT = 15  # steps whose median is a call at the end
TORCH_SHARE = 1 / 3  # of the seconds
NEAR = 1e-3  # of a network's result, in the norm

Job = dict[str, Any]


def main(text: str) -> None:
    """Measure a job and print the figures."""
    job = json.loads(text)
    if job["threads"] is not None:
        torch.set_num_threads(job["threads"])
    device = torch.device(job["device"])
    torch.zeros(8, 8, device=device) @ torch.zeros(8, 8, device=device)
    measure = {CALLS: _calls, SHAPES: _shapes}.get(job["kind"], _network)
    print(json.dumps(measure(job, device)), flush=True)


def course(call: Callable[[], Any], wait: Callable[[], Any], seconds: float, marks: list[int]) -> dict[str, Any]:
    """The time that calls have taken in all at each of `marks`, and that of a call at the end.

    It stops so many seconds after the first call; later marks are reckoned from the calls at the end: `reached` says
    how many calls there were.
    """
    totals: dict[int, float] = {}
    steps: list[float] = []
    calls, start = 0, perf_counter()
    ends = float("inf")
    while calls < marks[-1] and perf_counter() < ends:
        begun = perf_counter()
        count = 1 if calls < SINGLE else STEP
        for _ in range(count):
            call()
        wait()
        now = perf_counter()
        ends = min(ends, now + seconds)
        calls += count
        steps.append((now - begun) / count)
        totals |= {mark: now - start for mark in marks if calls - count < mark <= calls}
    late = sorted(steps[1:][-RECENT:] or steps)
    each, total = late[len(late) // 2], perf_counter() - start
    totals |= {mark: total + (mark - calls) * each for mark in marks if mark > calls}
    return {"totals": [totals[mark] for mark in marks], "each": each, "reached": calls, "first": steps[0]}


def _calls(job: Job, device: torch.device) -> dict[str, Any]:
    case = _sized(case_of(job["name"]), job, device)
    tensors, wait = tensors_of(case, device), _waiter(device)
    theirs, ours = torch_call(case), weft_call(case)
    torch_side = course(lambda: theirs(*tensors), wait, job["seconds"] * TORCH_SHARE, job["marks"])
    weft_side = course(lambda: ours(*tensors), wait, job["seconds"], job["marks"])
    return {"torch": torch_side, "weft": weft_side, "wrong": _wrong(case, tensors)}


def _shapes(job: Job, device: torch.device) -> dict[str, Any]:
    """Every shape once, as torch, as weft for the first time, and as weft again."""
    cases, wait = small_shapes(job["count"]), _waiter(device)
    given = [tensors_of(case, device) for case in cases]

    def once(make: Callable[[EverydayCase], Callable[..., Any]]) -> float:
        calls = [make(case) for case in cases]
        start = perf_counter()
        for call, tensors in zip(calls, given, strict=True):
            call(*tensors)
            wait()
        return perf_counter() - start

    once(torch_call)
    found: dict[str, Any] = {"torch": once(torch_call), "first": once(weft_call), "again": once(weft_call)}
    wrong = (_wrong(case, tensors) for case, tensors in zip(cases, given, strict=True))
    return {**found, "wrong": next(filter(None, wrong), "")}


def _network(job: Job, device: torch.device) -> dict[str, Any]:
    """A network along its public path: planned and contracted, then contracted again."""
    from weft_bench.cases.networks import networks, shrunk_network
    from weft_bench.networks import planned_network, ssa_tree

    case = next(each for each in networks() if each.name == job["name"])
    case = shrunk_network(case, job["network work"]) if job["network work"] else case
    operands, wait = case.operands(device=device), _waiter(device)
    tree = ssa_tree(case)
    contract: Callable[[], torch.Tensor] = partial(tree.contract, operands)
    expected = contract()
    torch_seconds = _timed(contract, wait)[0]
    kept: list[Any] = []

    def first() -> torch.Tensor:
        kept.append(planned_network(case, operands))
        return kept[0](*operands)

    first_seconds, result = _timed(first, wait)
    again_seconds, _ = _timed(lambda: kept[0](*operands), wait)
    away = float((result.double() - expected.double()).norm() / expected.double().norm())
    wrong = "" if away <= NEAR else f"{away:.2g} away from torch's result"
    return {"torch": torch_seconds, "first": first_seconds, "again": again_seconds, "wrong": wrong}


def _timed(call: Callable[[], Any], wait: Callable[[], Any]) -> tuple[float, Any]:
    wait()
    start = perf_counter()
    result = call()
    wait()
    return perf_counter() - start, result


def _sized(case: EverydayCase, job: Job, device: torch.device) -> EverydayCase:
    """The case at the size of the device, or at most so much work as the job says."""
    case = case.on_cpu() if device.type == "cpu" else case
    return case.shrunk(job["work"], job["work"]) if job["work"] else case


def _waiter(device: torch.device) -> Callable[[], Any]:
    return partial(torch.cuda.synchronize, device) if device.type == "cuda" else lambda: None


def _wrong(case: EverydayCase, tensors: list[torch.Tensor]) -> str:
    """Why the result is wrong; empty where it is right."""
    from weft_bench.everyday.checking import check_default

    try:
        check_default(case, tensors)
    except (weft.AccuracyError, AssertionError) as error:
        return str(error).partition("\n")[0] or type(error).__name__
    return ""


if __name__ == "__main__":
    main(sys.argv[1])
