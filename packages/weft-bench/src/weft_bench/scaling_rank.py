"""One rank of `weft bench scaling`: ``python -m weft_bench.scaling_rank JOB``, started by torch's launcher.

JOB is a JSON file: which cases, on what device, how they are timed, and the file to which rank 0 adds a line of JSON
for each case.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist

from weft.distributed.ranks import Ranks, find_ranks
from weft.machine.timing import measure_together
from weft.networks.memory import indices, part
from weft.networks.report import growth
from weft_bench.cases.scaling import PlacedCase, ScalingCase
from weft_bench.checking import WrongResult
from weft_bench.networks import LOSS, float64_reference, planned_network
from weft_bench.scaling_product import ProductTask
from weft_bench.suites import entries

_SEED = 1


class Task(Protocol):
    """A case on this rank. Other things than networks that scale over ranks are tasks, too."""

    def run(self) -> torch.Tensor:
        """The call that is timed; every rank makes it."""

    def checked(self, found: torch.Tensor) -> float:
        """The largest error of a result over its bound; every rank makes the call, and each may find something."""

    def about(self) -> dict[str, Any]:
        """JSON values worth recording."""


class NetworkTask:
    """A network whose slices, or intermediates, the ranks share; on one rank it is called without a group."""

    def __init__(self, case: ScalingCase, device: torch.device, ranks: Ranks) -> None:
        self._case, self._labels = case.on(ranks.size)
        self._tensors = self._case.operands(device=device, seed=_SEED)
        self._net = planned_network(self._case, self._tensors, slices=self._labels)
        self._group = ranks.group if ranks.size > 1 else None
        self._first = ranks.rank == 0
        self._way = "modes" if case.kind == "modes" and ranks.size > 1 else "slices"
        if self._way == "slices":  # kernels that are still on their way would make the first number of ranks slow
            with torch.no_grad():
                self._net.warm(*self._tensors)

    def run(self) -> torch.Tensor:
        with torch.no_grad():
            found: torch.Tensor = self._net(*self._tensors, group=self._group, distribute=self._way)
        return found

    def checked(self, found: torch.Tensor) -> float:
        """On rank 0: all ranks have the same bits."""
        return self.error(found) if self._first else 0.0

    def error(self, found: torch.Tensor) -> float:
        """Held against all slices in float64 by torch: within the bound of `weft.networks.report`, and, as that is wide
        for a tree of many steps, within `LOSS` of what the slices come to together, in root mean square. A slice that
        is lost or counted twice is 0.1 of that and more."""
        case, tree = self._case, self._net.plan.tree
        contract = float64_reference(case.slice(self._labels))
        graph = tree.graph
        expected = torch.zeros(case.shape, dtype=torch.float64, device=found.device)
        magnitudes, squares = expected.clone(), expected.clone()
        for where in indices(tree):
            parts = [part(x, term, where) for x, term in zip(self._tensors, graph.terms, strict=True)]
            one = contract([x.double() for x in parts])
            part(expected, graph.output, where).add_(one)
            part(squares, graph.output, where).add_(one**2)
            part(magnitudes, graph.output, where).add_(contract([x.double().abs() for x in parts]))
        relative, low = growth(self._net.plan)
        away = (found.double() - expected).abs()
        worst = float((away / (relative * magnitudes + low)).max())
        lost = LOSS[case.precision or "ieee"] * float(squares.mean().sqrt())
        worst = max(worst, float((away**2).mean().sqrt()) / lost)
        if not worst <= 1:
            raise WrongResult(worst, f"{case.name} in {tree.slices} slices")
        return worst

    def about(self) -> dict[str, Any]:
        report = self._net.report()
        return {"slices": self._net.plan.tree.slices, "flops": report["flops"], "predicted_seconds": report["seconds"]}


TASKS: dict[type, Callable[[Any, torch.device, Ranks], Task]] = {
    ScalingCase: NetworkTask,
    PlacedCase: ProductTask,
}


def main(job_file: str) -> None:
    """Measure the cases of a job."""
    job = json.loads(Path(job_file).read_text())
    cuda = job["device"] == "cuda"
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")
    device = torch.device("cuda", dist.get_rank()) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    ranks = find_ranks(timeout=600)
    try:
        for entry in entries("scaling", job["types"], job["cases"], job["work"]):
            found = measured(entry.case, device, ranks, job)
            if ranks.rank == 0:
                with open(job["out"], "a") as stream:
                    stream.write(json.dumps({"case": entry.case.name, **found}) + "\n")
    finally:
        dist.destroy_process_group()


def measured(case: Any, device: torch.device, ranks: Ranks, job: dict[str, Any]) -> dict[str, Any]:
    """The result of a case, equal on every rank."""

    def largest(mine: float) -> float:
        return max(ranks.exchanged("a time", mine))

    try:
        task = ranks.agreed(f"the begin of {case.name}", lambda: TASKS[type(case)](case, device, ranks))
        result = task.run()  # what fails in it fails on all ranks
        error = ranks.agreed(f"the check of {case.name}", lambda: task.checked(result))
        taken = measure_together(
            task.run, largest, device=device, rrs=job["rrs"], budget=job["budget"], threads=job["threads"]
        )
    except Exception as error_:
        return {"wrong": f"{type(error_).__name__}: {str(error_).partition(chr(10))[0]}"}
    about = json.loads(json.dumps(asdict(taken)))
    samples = about.pop("samples")
    worst = max(ranks.exchanged("errors", error))
    return {"samples": samples, "timing": about, "error_over_bound": worst, "about": task.about()}


if __name__ == "__main__":
    main(sys.argv[1])
