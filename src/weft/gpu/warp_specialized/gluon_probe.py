"""Whether the Triton that is here compiles weft's kernels in Gluon, which is experimental and changes.

Of the versions that the project has tested this is known. With any other it is tried, once for each kind of device: a
process of its own, which needs no GPU and may crash, compiles one schedule of each kernel. What comes of it is kept in
weft's cache.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
from functools import cache
from typing import Any, TypeGuard

import torch

from weft.base.interpreter import command, environment
from weft.gpu.common.driver import driver_version
from weft.gpu.common.release import is_tested, version
from weft.machine.shortage import says_shortage
from weft.machine.store import Store
from weft.planner.keys import of_backend
from weft.planner.schedule import Target
from weft.planner.validity import now

ROOM = "probes"  # of the store
SECONDS = 300.0  # that compiling may take: about 5 on an idle core


def refusal(target: Target) -> str | None:
    """Why kernels in Gluon are not for this Triton, in one sentence; None where nothing stands against it.

    Costs nothing with a tested version, and some seconds with another where nobody has asked before.
    """
    error = None if is_tested() else _known_error(target.capability, version())
    return error and f"Triton {version()} does not compile these kernels: {error}"


@cache
def _known_error(capability: int, version: str) -> str | None:
    """The error of compiling for devices of a compute capability: found earlier, or now."""
    key = {
        "what": "gluon",
        "capability": capability,
        "triton": version,
        "torch": torch.__version__,
        "driver": driver_version(),
        "code": of_backend("triton"),
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
    """The answer of a process of its own: `error`, None where all is good; `passing` where another time may be
    better."""
    try:
        done = subprocess.run(
            command("-m", "weft.gpu.warp_specialized.gluon_compile", str(capability)),
            env=environment(CUDA_VISIBLE_DEVICES="", TRITON_INTERPRET="0"),
            capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"error": f"it took more than {SECONDS:.0f} s", "passing": True}
    except OSError as error:
        return {"error": f"no process could be started for it ({error})", "passing": True}
    with contextlib.suppress(ValueError, IndexError):
        answer = json.loads(done.stdout.splitlines()[-1])
        if _is_answer(answer):
            return {"error": answer["error"], "passing": bool(answer.get("passing"))}
    if done.returncode in (-signal.SIGSEGV, -signal.SIGABRT):
        crashed = f"the compiler crashed ({signal.Signals(-done.returncode).name})"
        return {"error": crashed, "passing": says_shortage(done.stderr)}
    return {"error": f"the compiler ended with status {done.returncode} and said nothing", "passing": True}
