"""Where the time of a first call goes in this environment: phases of a fresh process, each timed once.

The process runs this file as a program, so that nothing is imported before the clock runs. It has the caches and the
pack of kernels that the environment names: what was compiled before is loaded, and what was not is compiled.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from time import perf_counter
from typing import Any, NamedTuple

EXTENT = 192  # of the three modes of the product that is called


class Phase(NamedTuple):
    """One step on the way of a first call."""

    name: str
    seconds: float
    who: str  # "torch", "weft", or "alongside" for what a first call does not wait for


def measured(device: str) -> list[Phase]:
    """The phases of a fresh process. `RuntimeError` with its last line where it fails."""
    from weft.base.interpreter import command, environment

    ran = subprocess.run(command(__file__, device), capture_output=True, text=True, check=False, env=environment())
    if ran.returncode:
        raise RuntimeError((ran.stderr.strip() or "it ended without a word").splitlines()[-1])
    return [Phase(*each) for each in json.loads(ran.stdout.splitlines()[-1])]


def main(device: str) -> None:
    """Run and time all phases of this process, and print them."""
    phases: list[Phase] = []

    @contextmanager
    def clock(name: str, who: str) -> Iterator[None]:
        begun = perf_counter()
        yield
        phases.append(Phase(name, perf_counter() - begun, who))

    _run(device, clock)
    print(json.dumps(phases))


def _run(device: str, clock: Callable[[str, str], Any]) -> None:
    with clock("import torch", "torch"):
        import torch
    with clock("import weft", "weft"):
        weft: Any = import_module("weft")
    wait: Callable[[], Any] = torch.cuda.synchronize if device.startswith("cuda") else lambda: None
    with clock("context of the device, operands", "torch"):
        a, b = (torch.randn(EXTENT, EXTENT, device=device) for _ in range(2))
        wait()
    calls: dict[str, tuple[str, Callable[[], Any]]] = {
        "torch.einsum": ("torch", lambda: torch.einsum("mk,kn->mn", a, b)),
        "weft.contract": ("weft", lambda: weft.contract("mk,kn->mn", a, b)),
        "with a function": ("weft", lambda: weft.contract("mk,kn->mn", a, b, epilogue=torch.tanh)),
    }
    for name, (who, call) in calls.items():
        for turn in ("first", "second"):
            with clock(f"{turn} {name}", who):
                call()
                wait()
    _specialised(clock, weft.plan("mk,kn->mn", a, b, specialize="library"), wait, a, b)


def _specialised(clock: Callable[[str, str], Any], plan: Any, wait: Callable[[], Any], a: Any, b: Any) -> None:
    """The phases in a thread and other processes while calls go on."""
    from weft.plans.select import ServiceRequest, select
    from weft.selftest.gate import admitted

    request = plan.request
    if request.backend == "reference":
        return
    with clock("plan a specialised kernel", "alongside"):
        choice = select(ServiceRequest(plan.contraction, request.backend, request.target))
    with clock("self-test of its family", "alongside"):
        admitted(choice)
        wait()
    with clock("compile or load it", "alongside"):
        launch = choice.built()[1]
    with clock("its first launch", "alongside"):
        launch(a, b, None, a.new_empty(EXTENT, EXTENT), 1.0, 0.0)
        wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
