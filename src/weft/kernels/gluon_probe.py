"""Whether the Triton that is here compiles weft's kernels in Gluon, which is experimental and changes.

Of the versions that the project has tested this is known. With any other it is tried, once for each kind of device: a
process of its own, which needs no GPU and may crash, compiles one schedule of each kernel. What comes of it is kept in
weft's cache.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from functools import cache
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
import triton

from weft.kernels.driver import driver_version
from weft.kernels.triton_versions import is_tested
from weft.plan.schedule import Target
from weft.tune.store import Store

if TYPE_CHECKING:
    from weft.kernels.specialised import SpecialisedLaunch
    from weft.spec import Contraction

ROOM = "probes"  # of the store
SECONDS = 300.0  # that compiling may take: about 5 on an idle core
M, N, K = 8192, 80, 64  # extents for which each kernel has a schedule


def refusal(target: Target) -> str | None:
    """Why kernels in Gluon are not for this Triton, in one sentence; None where nothing stands against it.

    Costs nothing with a tested version, and some seconds with another where nobody has asked before.
    """
    error = None if is_tested() else _known_error(target.capability, triton.__version__)
    return error and f"Triton {triton.__version__} does not compile these kernels: {error}"


@cache
def _known_error(capability: int, version: str) -> str | None:
    """The error of compiling for devices of a compute capability: found earlier, or now."""
    from weft.plan.winners import code_digest, now

    key = {
        "what": "gluon",
        "capability": capability,
        "triton": version,
        "torch": torch.__version__,
        "driver": driver_version(),
        "code": code_digest("triton"),
    }
    store = Store(ROOM)
    answer = store.load(key)
    if not _is_answer(answer):
        answer = asked(capability)
        if not answer.get("passing"):
            store.save(key, answer | {"date": now()})
    error: str | None = answer["error"]
    return error


def _is_answer(value: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict) and "error" in value and isinstance(value["error"], str | None)


def asked(capability: int) -> dict[str, Any]:
    """What a process of its own says: `error`, of which None is good; `passing` where another time may be better."""
    environment = os.environ | {
        "CUDA_VISIBLE_DEVICES": "",
        "TRITON_INTERPRET": "0",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    command = [sys.executable, "-m", "weft.kernels.gluon_probe", str(capability)]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"it took more than {SECONDS:.0f} s", "passing": True}
    except OSError as error:
        return {"error": f"no process could be started for it ({error})", "passing": True}
    with contextlib.suppress(ValueError, IndexError):
        answer = json.loads(done.stdout.splitlines()[-1])
        if _is_answer(answer):
            return {"error": answer["error"]}
    if done.returncode in (-signal.SIGSEGV, -signal.SIGABRT):
        return {"error": f"the compiler crashed ({signal.Signals(-done.returncode).name})"}
    return {"error": f"the compiler ended with status {done.returncode} and said nothing", "passing": True}


def main() -> None:
    """Compile, and say in the last line what came of it."""
    error = None
    try:
        compile_each_kernel(int(sys.argv[1]))
    except Exception as raised:
        error = _first_line(raised)
    print(json.dumps({"error": error}), flush=True)


def compile_each_kernel(capability: int) -> None:
    """Compile one schedule of each kernel of the family, with functions of both operands."""
    from weft.kernels import specialised
    from weft.kernels.inspect import compiled

    target = Target("cuda", name="a GPU that is not here", capability=capability, processors=132, shared_memory=232448)
    contraction = _contraction()
    of_kernel: dict[Any, SpecialisedLaunch] = {}
    schedules: Any = specialised.schedules(contraction, target).schedules
    for schedule in schedules:
        launch: Any = specialised.build(contraction, schedule, target)
        of_kernel.setdefault(launch.kernels[0].kernel, launch)
    for launch in of_kernel.values():
        compiled(launch.kernels[0], f"sm_{capability}")


def _contraction() -> Contraction:
    """Of one tall operand and a small one, with functions of both."""
    from weft.fn import trace
    from weft.spec import Contraction, Layout, canonical, parse
    from weft.spec.arithmetic import resolve
    from weft.spec.contraction import class_modes

    half = torch.float16
    a, b, d = Layout.contiguous([M, K], half), Layout.contiguous([N, K], half), Layout.contiguous([M, N], torch.float32)
    modes = class_modes(parse("ik,jk->ij"), a, b, None, d, {"i": M, "j": N, "k": K})
    relu = trace(torch.relu, (half,))
    return canonical(Contraction(modes, a, b, None, d, resolve(half, half, None), a_fn=relu, b_fn=relu))


def _first_line(error: BaseException) -> str:
    """Of the error at the bottom: the compiler's own say where it met it."""
    while error.__cause__ is not None:
        error = error.__cause__
    said = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


if __name__ == "__main__":
    main()
