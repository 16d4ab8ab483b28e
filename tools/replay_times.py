"""Times of networks launched and replayed, and of torch's: `python tools/replay_times.py OUT.json [--cases NAME,...]`.

A row is a network of the suite `networks`, contracted along its path: its steps, the seconds that the cost model
expects of their kernels, and those of a call whose steps are launched one by one, of one that is replayed as a CUDA
graph, of one as weft chooses by itself, and of torch. What the rule of `weft.networks.steps` loses against the faster
of the two is read from the rows: before a change and after it. Where there is no GPU nothing is replayed.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from schedule_times import written
from weft.machine.stamp import command, commit, device_stamp
from weft.machine.timing import measure
from weft_bench.cases.networks import NetworkCase, networks
from weft_bench.networks import NetworkTensors, planned_network
from weft_bench.peers.networks import TorchNetwork
from weft_bench.peers.registry import Prepared

FORMS: dict[str, bool | str] = {"launched": False, "replayed": True, "chosen": "auto"}


def main() -> None:
    options = _options()
    begun, device = time.monotonic(), torch.device("cuda" if torch.cuda.is_available() else "cpu")
    known = {case.name: case for case in networks()}
    if strangers := [name for name in options.cases if name not in known]:
        raise SystemExit(f"no network is called {strangers[0]}: there are {', '.join(known)}")
    record: dict[str, Any] = {
        "command": command(), "commit": commit(), "machine": device_stamp(device), "ended": "finished", "rows": [],
    }  # fmt: skip
    for name in options.cases or known:
        if time.monotonic() - begun > options.seconds:
            record["ended"] = "out of time"
            break
        record["rows"].append(row := row_of(known[name], device, options.budget))
        print(" ".join(f"{key}={value}" for key, value in row.items()), flush=True)
        options.out.write_text(written(record))
    options.out.write_text(written(record))


def row_of(case: NetworkCase, device: torch.device, budget: float) -> dict[str, Any]:
    """The seconds of each form: what the host spends on launches is in them."""
    tensors = NetworkTensors(case.operands(device=device, seed=0))

    def seconds(call: Callable[..., Any]) -> float:
        return _rounded(measure(call, [tensors], device=device, budget=budget, mode="hot", capture=False).seconds)

    row: dict[str, Any] = {"network": case.name}
    for form, graph in FORMS.items():
        net = planned_network(case, tensors, specialize="now", cuda_graph=graph)
        row |= {"steps": len(net.plan.tree.steps), "expected": _rounded(net.report()["seconds"]), form: seconds(net)}
    torchs = TorchNetwork()
    prepared = torchs.prepare(case, tensors)
    assert isinstance(prepared, Prepared)
    with torchs.settings(case):
        return row | {"torch": seconds(prepared.ways[0].run)}


def _rounded(seconds: float) -> float:
    return float(f"{seconds:.4g}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--cases", type=lambda names: names.split(","), default=[], help="names of the suite networks")
    parser.add_argument("--budget", type=float, default=0.3, help="seconds of samples of each form")
    parser.add_argument("--seconds", type=float, default=math.inf, help="after which no further network is begun")
    return parser.parse_args()


if __name__ == "__main__":
    main()
